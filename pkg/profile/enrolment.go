package profile

import (
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Reason says why a pod is enrolled or not.
type Reason string

// The reasons of Enrolment.
const (
	// ReasonPodLabel: the pod's own mode label says so.
	ReasonPodLabel Reason = "PodLabel"
	// ReasonNamespaceLabel: the namespace's mode label says so.
	ReasonNamespaceLabel Reason = "NamespaceLabel"
	// ReasonNotLabelled: neither pod nor namespace has a mode label.
	ReasonNotLabelled Reason = "NotLabelled"
	// ReasonOff: the label that counts says off.
	ReasonOff Reason = "Off"
	// ReasonInvalidMode: the pod's own mode label names no mode.
	ReasonInvalidMode Reason = "InvalidMode"
	// ReasonInvalidNamespaceMode: the namespace's mode label names no mode.
	ReasonInvalidNamespaceMode Reason = "InvalidNamespaceMode"
	// ReasonSystemNamespace: pods of kube-system are never enrolled.
	ReasonSystemNamespace Reason = "SystemNamespace"
	// ReasonOwnNamespace: pods of Plimsoll's own namespace are never enrolled.
	ReasonOwnNamespace Reason = "OwnNamespace"
	// ReasonStaticPod: a static pod's resources cannot be changed through the API.
	ReasonStaticPod Reason = "StaticPod"
	// ReasonWindowsPod: a Windows container has no cgroup.
	ReasonWindowsPod Reason = "WindowsPod"
	// ReasonPodLevelResources: the pod sets resources as a whole.
	ReasonPodLevelResources Reason = "PodLevelResources"
	// ReasonNoIdentity: the pod carries none of the identity labels, so it
	// cannot be told from any other such pod.
	ReasonNoIdentity Reason = "NoIdentity"
)

// Site is what enrolment depends on beside the pod.
type Site struct {
	Namespace       string            // where the pod lives; at admission the request's
	NamespaceLabels map[string]string // of that namespace
	OwnNamespace    string            // Plimsoll's own; empty outside a cluster
	IdentityLabels  []string          // PlimsollConfig's, or the default ones
}

// Enrolment says in which mode a pod is enrolled and why. ModeOff means it is
// not; an invalid mode, reported by its reason, counts as off.
func Enrolment(pod *corev1.Pod, site Site) (v1alpha1.Mode, Reason) {
	mode, reason := requested(pod, site)
	if mode == v1alpha1.ModeOff {
		return mode, reason
	}
	if not := ineligible(pod, site); not != "" {
		return v1alpha1.ModeOff, not
	}
	return mode, reason
}

// requested returns the mode the labels ask for. A mode copied from the
// namespace is not the pod's own: the namespace's label counts, also when it is gone.
func requested(pod *corev1.Pod, site Site) (v1alpha1.Mode, Reason) {
	if OwnMode(pod) {
		return parse(pod.Labels[v1alpha1.LabelMode], ReasonPodLabel, ReasonInvalidMode)
	}
	if ns, ok := site.NamespaceLabels[v1alpha1.LabelMode]; ok {
		return parse(ns, ReasonNamespaceLabel, ReasonInvalidNamespaceMode)
	}
	return v1alpha1.ModeOff, ReasonNotLabelled
}

func parse(text string, good, bad Reason) (v1alpha1.Mode, Reason) {
	switch mode, ok := v1alpha1.ParseMode(text); {
	case !ok:
		return v1alpha1.ModeOff, bad
	case mode == v1alpha1.ModeOff:
		return mode, ReasonOff
	default:
		return mode, good
	}
}

func ineligible(pod *corev1.Pod, site Site) Reason {
	switch {
	case site.Namespace == "kube-system":
		return ReasonSystemNamespace
	case site.OwnNamespace != "" && site.Namespace == site.OwnNamespace:
		return ReasonOwnNamespace
	case static(pod):
		return ReasonStaticPod
	case windows(pod):
		return ReasonWindowsPod
	case podLevelResources(pod):
		return ReasonPodLevelResources
	case !KeyOf(pod.Labels, site.IdentityLabels, v1alpha1.PolicyReference{}).Identified():
		return ReasonNoIdentity
	default:
		return ""
	}
}

// static recognises the API's mirror of a pod that the kubelet runs from a file.
func static(pod *corev1.Pod) bool {
	if _, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return true
	}
	for _, o := range pod.OwnerReferences {
		if o.Kind == "Node" && o.APIVersion == "v1" {
			return true
		}
	}
	return false
}

func windows(pod *corev1.Pod) bool {
	if pod.Spec.OS != nil {
		return pod.Spec.OS.Name == corev1.Windows
	}
	return pod.Spec.NodeSelector[corev1.LabelOSStable] == "windows"
}

func podLevelResources(pod *corev1.Pod) bool {
	r := pod.Spec.Resources
	return r != nil && len(r.Requests)+len(r.Limits) > 0
}

// OwnMode reports whether the pod has a mode label that is not a copy of its namespace's.
func OwnMode(pod *corev1.Pod) bool {
	_, labelled := pod.Labels[v1alpha1.LabelMode]
	return labelled && !Copied(pod)
}

// Copied reports whether the pod is marked as carrying a copy of its namespace's mode.
func Copied(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.LabelModeSource] == v1alpha1.ModeSourceNamespace
}

// Live reports whether a pod counts: it has neither ended nor been told to end.
func Live(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// ModeLabels returns the change of labels that makes the pod's copy of its
// namespace's mode right: values to set, nil for a label to remove. It is empty
// when nothing is to be done, always so for a pod whose mode is its own.
func ModeLabels(pod *corev1.Pod, site Site) map[string]*string {
	if OwnMode(pod) {
		return nil
	}
	mode, reason := Enrolment(pod, site)
	own, labelled := pod.Labels[v1alpha1.LabelMode]
	switch {
	case reason == ReasonNamespaceLabel:
		if own == string(mode) {
			return nil
		}
		value, source := string(mode), v1alpha1.ModeSourceNamespace
		return map[string]*string{v1alpha1.LabelMode: &value, v1alpha1.LabelModeSource: &source}
	case labelled:
		return map[string]*string{v1alpha1.LabelMode: nil, v1alpha1.LabelModeSource: nil}
	default:
		return nil
	}
}
