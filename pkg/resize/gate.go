package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// gatePod refuses pods of kinds that are never changed.
func gatePod(pod *corev1.Pod) (Decision, bool) {
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return Decision{Reason: ReasonStaticPod, Message: "the kubelet made the pod from a file"}, false
	case pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows, pod.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		return Decision{Reason: ReasonWindows, Message: "the pod runs on Windows"}, false
	case pod.Spec.Resources != nil && len(pod.Spec.Resources.Requests)+len(pod.Spec.Resources.Limits) > 0:
		return Decision{Reason: ReasonPodResources, Message: "the pod has resources of its own"}, false
	}
	return Decision{}, true
}

// gateProfile says whether the profile's recommendations may be acted on, and
// whether only on raises of memory after OOM kills: those need no history.
func gateProfile(s *policy.Settings, p *v1alpha1.WorkloadProfileStatus) (raisesOnly bool, d Decision, ok bool) {
	switch {
	case s == nil || len(s.Rules) == 0:
		return false, Decision{Reason: ReasonNoPolicy, Message: "no policy sets any of the pod's resources"}, false
	case p == nil:
		return false, Decision{Reason: ReasonNotSufficient, Message: "the pod has no profile yet"}, false
	case p.State != v1alpha1.ProfileStale && meta.IsStatusConditionTrue(p.Conditions, v1alpha1.ConditionSufficient):
		return false, Decision{}, true
	}
	for _, c := range p.Containers {
		for _, r := range c.Recommendations {
			if r.Resource == corev1.ResourceMemory && (c.OOMKills > 0 || r.Reason == reasonRaisedByOOM) {
				return true, Decision{}, true
			}
		}
	}
	if p.State == v1alpha1.ProfileStale {
		return false, Decision{Reason: ReasonStale, Message: "the profile's measurements could not be read lately"}, false
	}
	d = Decision{Reason: ReasonNotSufficient, Message: "the profile has too little history"}
	if c := meta.FindStatusCondition(p.Conditions, v1alpha1.ConditionSufficient); c != nil && c.Message != "" {
		d.Message += ": " + c.Message
	}
	return false, d, false
}
