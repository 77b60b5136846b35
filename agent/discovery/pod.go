package discovery

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Pod is what the agent knows of an enrolled pod. It is never changed: a newer state is a new Pod.
type Pod struct {
	types.NamespacedName
	UID    types.UID
	QOS    corev1.PodQOSClass
	Labels map[string]string
	// PolicyRef and ProfileRef are the stamps of admission; empty until the pod has them.
	PolicyRef  string
	ProfileRef string
	// Job says that the pod belongs to a Job: it is meant to end.
	Job bool

	containers map[string]containerSpec // by name
	statuses   map[string]containerStatus
	settled    bool
}

type containerSpec struct {
	resources corev1.ResourceRequirements
	measured  bool
}

type containerStatus struct {
	name      string
	startedAt time.Time
	ended     bool
	// oomKilledAt is zero unless the runtime gave an OOM kill as the reason of the end.
	oomKilledAt time.Time
}

// reasonOOMKilled is the reason a kubelet gives for a container which ended by an OOM kill.
const reasonOOMKilled = "OOMKilled"

func endOf(name string, t *corev1.ContainerStateTerminated) containerStatus {
	s := containerStatus{name: name, startedAt: t.StartedAt.Time, ended: true}
	if t.Reason == reasonOOMKilled {
		s.oomKilledAt = t.FinishedAt.Time
	}
	return s
}

// NewPod reads an API object; false when the pod is not enrolled for measuring or has ended.
func NewPod(p *corev1.Pod) (*Pod, bool) {
	mode, ok := v1alpha1.ParseMode(p.Labels[v1alpha1.LabelMode])
	if !ok || !mode.Measures() {
		return nil, false
	}
	pod := &Pod{
		NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
		UID:            p.UID,
		QOS:            p.Status.QOSClass,
		Labels:         p.Labels,
		PolicyRef:      p.Annotations[v1alpha1.AnnotationPolicyRef],
		ProfileRef:     p.Annotations[v1alpha1.AnnotationProfileRef],
		containers:     make(map[string]containerSpec, len(p.Spec.Containers)),
		statuses:       make(map[string]containerStatus, len(p.Status.ContainerStatuses)),
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		pod.Job = owner.Kind == "Job"
	}
	pod.readSpec(&p.Spec)
	pod.readStatus(&p.Status)
	return pod, true
}

// readSpec notes each container and whether it is measured: app containers and native sidecars (init containers that
// always restart) are, those that run to completion before the app and those attached for debugging are not.
func (p *Pod) readSpec(spec *corev1.PodSpec) {
	for i := range spec.Containers {
		c := &spec.Containers[i]
		p.containers[c.Name] = containerSpec{resources: c.Resources, measured: true}
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		p.containers[c.Name] = containerSpec{resources: c.Resources, measured: sidecar}
	}
	for i := range spec.EphemeralContainers {
		p.containers[spec.EphemeralContainers[i].Name] = containerSpec{}
	}
}

// readStatus notes which container each id is, of the present run and of the one before.
func (p *Pod) readStatus(status *corev1.PodStatus) {
	running := 0
	for _, list := range [][]corev1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			s := &list[i]
			if t := s.LastTerminationState.Terminated; t != nil {
				p.note(t.ContainerID, endOf(s.Name, t))
			}
			current := containerStatus{name: s.Name}
			switch t := s.State.Terminated; {
			case s.State.Running != nil:
				current.startedAt = s.State.Running.StartedAt.Time
				running++
			case t != nil && t.ContainerID == s.ContainerID:
				current = endOf(s.Name, t)
			case s.State.Waiting != nil && s.LastTerminationState.Terminated != nil &&
				s.LastTerminationState.Terminated.ContainerID == s.ContainerID:
				// Between two runs the id is still that of the last.
				continue
			}
			p.note(s.ContainerID, current)
		}
	}
	measured := 0
	for _, c := range p.containers {
		if c.measured {
			measured++
		}
	}
	p.settled = running >= measured
}

func (p *Pod) note(id string, s containerStatus) {
	if id = statusID(id); id != "" {
		p.statuses[id] = s
	}
}
