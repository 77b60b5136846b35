package resize

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	plan "plimsoll.dev/pkg/resize"
)

// action is the action of every event this package records.
const action = "Resize"

func (c *Controller) event(pod *corev1.Pod, kind string, reason plan.Reason, note string) {
	if c.Recorder != nil {
		c.Recorder.Eventf(pod, nil, kind, string(reason), action, "%s", note)
	}
}

// say records the event of an outcome, once per outcome.
func (c *Controller) say(pod *corev1.Pod, r plan.Record) {
	kind, what := corev1.EventTypeWarning, ""
	switch r.State {
	case plan.StateResized:
		kind, what = corev1.EventTypeNormal, "resized"
	case plan.StateWithdrawn:
		what = "a resize was withdrawn"
	case plan.StateReverted:
		what = "a resize was reverted"
	case plan.StateRolledBack:
		what = "a resize was rolled back"
	}
	note := what + ": " + summary(r)
	if r.Message != "" {
		note += " (" + r.Message + ")"
	}
	c.event(pod, kind, r.Reason, note)
}

// summary reads "cpu request of c 500m → 750m, …".
func summary(r plan.Record) string {
	var parts []string
	for _, ch := range r.Changes {
		parts = append(parts, fmt.Sprintf("%s of %s %s → %s", ch.Field, ch.Container, ch.From, ch.To))
	}
	return strings.Join(parts, ", ")
}

// rehearse writes down what would be sent, where it is not written already.
func (cy *cycle) rehearse(ctx context.Context, chosen []candidate) error {
	for _, cand := range chosen {
		d, err := cy.plan(ctx, cand.pod)
		if err != nil {
			return err
		}
		if d.Reason != plan.ReasonChange {
			continue
		}
		cy.counts[plan.ReasonDryRun]++
		r := plan.Begin(cand.pod, cy.c.Replica, d, nil, plan.Record{}, cy.c.Now())
		r.State, r.Reason = plan.StateDryRun, plan.ReasonDryRun
		if old, err := plan.ParseRecord(cand.pod.Annotations[v1alpha1.AnnotationResize]); err == nil &&
			old.State == plan.StateDryRun && slices.Equal(old.Changes, r.Changes) {
			continue
		}
		if err := cy.c.write(ctx, cand.pod, r); err != nil {
			return err
		}
	}
	return nil
}
