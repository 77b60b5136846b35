package resize

import (
	corev1 "k8s.io/api/core/v1"
)

// Progress is what the kubelet says of a pod's resize (KEP-1287).
type Progress struct {
	// Stage is how far the kubelet is.
	Stage Stage
	// Reason and Message are the kubelet's.
	Reason, Message string
}

// Stage is how far the kubelet is with a resize.
type Stage string

// The stages of a resize.
const (
	// StageDone: the containers run with what the pod's spec says.
	StageDone Stage = "Done"
	// StageUnseen: the kubelet has not said anything about the change yet.
	StageUnseen Stage = "Unseen"
	// StageDeferred: the node has no room now.
	StageDeferred Stage = "Deferred"
	// StageInfeasible: the node can never do it.
	StageInfeasible Stage = "Infeasible"
	// StageInProgress: the kubelet has allocated it and is changing the containers.
	StageInProgress Stage = "InProgress"
	// StageError: changing the containers failed; the kubelet tries again.
	StageError Stage = "Error"
)

// InFlight reports whether a resize is under way.
func (p Progress) InFlight() bool { return p.Stage != StageDone }

// String returns the stage and the kubelet's message.
func (p Progress) String() string {
	if p.Message == "" {
		return string(p.Stage)
	}
	return string(p.Stage) + ": " + p.Message
}

// Observe reads how far the kubelet is with a pod's resize. It is done only
// when no condition speaks of a resize and every running container has the
// cpu and memory its spec asks for.
func Observe(pod *corev1.Pod) Progress {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodResizePending || c.Status != corev1.ConditionTrue {
			continue
		}
		if c.ObservedGeneration != 0 && c.ObservedGeneration < pod.Generation {
			return Progress{Stage: StageUnseen}
		}
		switch c.Reason {
		case corev1.PodReasonInfeasible:
			return Progress{StageInfeasible, c.Reason, c.Message}
		default:
			return Progress{StageDeferred, c.Reason, c.Message}
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodResizeInProgress || c.Status != corev1.ConditionTrue {
			continue
		}
		if c.Reason == corev1.PodReasonError {
			return Progress{StageError, c.Reason, c.Message}
		}
		return Progress{StageInProgress, c.Reason, c.Message}
	}
	if !actuated(pod) {
		return Progress{Stage: StageUnseen}
	}
	return Progress{Stage: StageDone}
}

// actuated compares what long-running containers have with what they should
// have. A resource that the runtime does not report counts as actuated only if
// the kubelet reports nothing at all of the container's resources.
func actuated(pod *corev1.Pod) bool {
	has := map[string]*corev1.ResourceRequirements{}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			has[s.Name] = s.Resources
		}
	}
	for _, c := range longRunning(pod) {
		r := has[c.Name]
		if r == nil {
			continue
		}
		for _, res := range resizeResources {
			if !same(c.Resources.Requests, r.Requests, res) || !same(c.Resources.Limits, r.Limits, res) {
				return false
			}
		}
	}
	return true
}

func same(want, have corev1.ResourceList, res corev1.ResourceName) bool {
	w, h := amountIn(want, res), amountIn(have, res)
	if w == h || w <= 0 && h <= 0 {
		return true
	}
	// The kernel's smallest cpu shares and quota stand for anything below.
	return res == corev1.ResourceCPU && w >= 0 && h >= 0 && w <= minCPU && h <= minCPU
}

// minCPU is the least cpu, in millicores, that cgroups can express as a limit
// (a quota of 1 ms in a period of 100 ms).
const minCPU = 10
