package resize

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	plan "plimsoll.dev/pkg/resize"
)

// ConditionResizing is a profile's condition that sums up its pods' resizes:
// False while some were taken back or could not be sent.
const ConditionResizing = "Resizing"

// reasonAsRecommended is the reason of the condition once all is well again.
const reasonAsRecommended = "AsRecommended"

// trouble counts the pods whose last resize came to nothing, by reason.
func (cy *cycle) trouble() map[plan.Reason]int {
	out := map[plan.Reason]int{}
	for _, r := range cy.records {
		switch r.State {
		case plan.StateRolledBack, plan.StateReverted, plan.StateWithdrawn, plan.StateLeft:
			out[r.Reason]++
		}
	}
	return out
}

// sumUp writes the condition when it changed; only the profile's owner does.
// A profile that never had trouble has none.
func (cy *cycle) sumUp(ctx context.Context) error {
	if cy.slots.first != cy.c.Replica {
		return nil
	}
	found := cy.trouble()
	want := metav1.Condition{Type: ConditionResizing, Status: metav1.ConditionTrue, Reason: reasonAsRecommended, Message: "no resize was taken back"}
	if len(found) > 0 {
		want.Status = metav1.ConditionFalse
		var parts []string
		most := 0
		for _, r := range slices.Sorted(maps.Keys(found)) {
			parts = append(parts, fmt.Sprintf("%d %s", found[r], r))
			if found[r] > most {
				most, want.Reason = found[r], string(r)
			}
		}
		want.Message = fmt.Sprintf("of %d pods: %s", cy.pods, strings.Join(parts, ", "))
	}
	has := meta.FindStatusCondition(cy.profile.Status.Conditions, ConditionResizing)
	if has == nil && len(found) == 0 || has != nil && has.Status == want.Status && has.Reason == want.Reason && has.Message == want.Message {
		return nil
	}
	changed := cy.profile.DeepCopy()
	want.ObservedGeneration = changed.Generation
	meta.SetStatusCondition(&changed.Status.Conditions, want)
	// The lock keeps another writer's conditions: a merge patch replaces the list.
	patch := client.MergeFromWithOptions(cy.profile, client.MergeFromWithOptimisticLock{})
	err := cy.c.Client.Status().Patch(ctx, changed, patch)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next cycle sees what changed
	}
	if err != nil {
		return fmt.Errorf("writing the status of profile %s: %w", cy.profile.Name, err)
	}
	return nil
}
