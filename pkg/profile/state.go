package profile

import (
	"k8s.io/apimachinery/pkg/api/meta"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// State sums a profile's status up in one word, from orphanedAt and the
// conditions alone: whoever writes either writes the state this returns.
//
// No pod left: Orphaned. Ready is False, that is measurements cannot be read:
// Stale. Sufficient is True: Sufficient. Else Learning.
func State(status v1alpha1.WorkloadProfileStatus) v1alpha1.ProfileState {
	switch {
	case status.OrphanedAt != nil:
		return v1alpha1.ProfileOrphaned
	case meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionReady):
		return v1alpha1.ProfileStale
	case meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionSufficient):
		return v1alpha1.ProfileSufficient
	default:
		return v1alpha1.ProfileLearning
	}
}
