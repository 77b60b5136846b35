package recommend

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

// Reasons of the condition Ready; those of Sufficient are pkg/recommend's, and PolicyNotFound.
const (
	ReasonMeasuring        = "Measuring"
	ReasonNoPods           = "NoPods"
	ReasonAwaitingSamples  = "AwaitingSamples"
	ReasonNoNewSamples     = "NoNewSamples"
	ReasonRedisUnavailable = "RedisUnavailable"
	ReasonPolicyNotFound   = "PolicyNotFound"
)

// silentAfter is how long running pods may go without a sample before measuring counts as broken: many flushes, and far
// longer than any agent takes to restart.
const silentAfter = 10 * time.Minute

// into writes what was computed into a status.
func (v evaluation) into(s *v1alpha1.WorkloadProfileStatus, generation int64, now time.Time) {
	s.PolicyGeneration = v.generation
	s.Containers = v.result.Statuses()
	s.CPU = v.result.Summary(corev1.ResourceCPU)
	s.Memory = v.result.Summary(corev1.ResourceMemory)
	s.UpdatedAt = &metav1.Time{Time: now}
	v.ready(s, generation)
	sufficient := metav1.Condition{
		Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionFalse, ObservedGeneration: generation,
		Reason: string(v.result.Reason), Message: v.result.Message,
	}
	switch {
	case v.noPolicy:
		sufficient.Reason, sufficient.Message = ReasonPolicyNotFound, "the policy is gone or does not compile; nothing is recommended until pods move to another or it is corrected"
	case v.result.Sufficient:
		sufficient.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&s.Conditions, sufficient)
	s.State = profile.State(*s)
}

// ready tells whether measuring works.
func (v evaluation) ready(s *v1alpha1.WorkloadProfileStatus, generation int64) {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: generation}
	silence := v.now.Sub(v.lastSample)
	switch {
	case v.runPods == 0:
		c.Reason, c.Message = ReasonNoPods, "no pod is running; what was measured stays valid"
	case v.lastSample.IsZero() && v.now.Sub(v.created) < silentAfter:
		c.Status = metav1.ConditionUnknown
		c.Reason, c.Message = ReasonAwaitingSamples, "no agent has reported a sample yet"
	case v.lastSample.IsZero() || silence > silentAfter:
		c.Status = metav1.ConditionFalse
		c.Reason, c.Message = ReasonNoNewSamples, "pods are running, but no agent has reported a sample for more than ten minutes; see kubectl get agentstatuses"
	default:
		c.Reason, c.Message = ReasonMeasuring, "agents report samples"
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

// stale marks a status whose measurements cannot be read; the values stay.
func (v evaluation) stale(s *v1alpha1.WorkloadProfileStatus) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonRedisUnavailable,
		Message: "measurements cannot be read from Redis; recommendations keep their last values and are not acted on",
	})
	s.State = profile.State(*s)
}
