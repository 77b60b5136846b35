package resize

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	plan "plimsoll.dev/pkg/resize"
)

// attempts bounds how often a resize is sent again after a conflict.
const attempts = 3

// answer is how sending a resize went. Reason is empty when it was accepted;
// Pod is then the pod as the API server has it now.
type answer struct {
	pod     *corev1.Pod
	reason  plan.Reason
	message string
	other   string // the field manager that stands against it
}

// send sends changes to a pod's resize, by the ownership table: unforced where
// nobody else owns a field, forced with the resourceVersion where the table
// says so, not at all where somebody does. An error means that the API server
// could not be asked, and whether it acted is not known.
func (c *Controller) send(ctx context.Context, pod *corev1.Pod, changes []plan.Change, interval time.Duration) (answer, error) {
	for try := 0; ; try++ {
		claim := plan.ClaimOf(pod, c.Replica, changes, c.peers(), interval, c.Now())
		if claim.Reason != "" {
			return answer{reason: claim.Reason, other: claim.Other, message: "owned by field manager " + claim.Other}, nil
		}
		after, err := c.apply(ctx, pod, changes, claim)
		switch {
		case err == nil:
			return answer{pod: after}, nil
		case noSubresource(err):
			return answer{reason: plan.ReasonUnsupported, message: "the API server has no pods/resize: new pods are sized, running ones are not"}, nil
		case apierrors.IsNotFound(err):
			return answer{reason: plan.ReasonGone, message: err.Error()}, nil
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
			return answer{reason: plan.ReasonRefused, message: err.Error()}, nil
		case !apierrors.IsConflict(err):
			return answer{}, fmt.Errorf("resizing pod %s: %w", podKey(pod), err)
		case try+1 == attempts:
			return answer{reason: plan.ReasonConflict, message: err.Error()}, nil
		}
		c.Metrics.conflicts.WithLabelValues(conflictKind(err)).Inc()
		fresh := &corev1.Pod{}
		if err := c.Uncached.Get(ctx, client.ObjectKeyFromObject(pod), fresh); err != nil {
			if apierrors.IsNotFound(err) {
				return answer{reason: plan.ReasonGone, message: err.Error()}, nil
			}
			return answer{}, fmt.Errorf("reading pod %s again: %w", podKey(pod), err)
		}
		if fresh.UID != pod.UID || fresh.DeletionTimestamp != nil {
			return answer{reason: plan.ReasonGone, message: "the pod was replaced"}, nil
		}
		if !stillApplies(fresh, changes) {
			return answer{reason: plan.ReasonConflict, message: "somebody else resized the pod meanwhile"}, nil
		}
		pod = fresh
	}
}

func (c *Controller) apply(ctx context.Context, pod *corev1.Pod, changes []plan.Change, claim plan.Claim) (*corev1.Pod, error) {
	body, err := plan.ApplyBody(pod, changes, claim)
	if err != nil {
		return nil, fmt.Errorf("encoding a resize: %w", err)
	}
	opts := []client.SubResourcePatchOption{client.FieldOwner(plan.ManagerPrefix + c.Replica)}
	if claim.Force {
		opts = append(opts, client.ForceOwnership)
	}
	after := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
	c.Metrics.applies.Inc()
	if err := c.Client.SubResource("resize").Patch(ctx, after, client.RawPatch(types.ApplyPatchType, body), opts...); err != nil {
		return nil, err
	}
	return after, nil
}

// stillApplies reports whether the pod still has the values the changes start from.
func stillApplies(pod *corev1.Pod, changes []plan.Change) bool {
	for _, ch := range changes {
		has, ok := plan.ValueOf(pod, ch.Field)
		if !ok || ch.From == nil || has.Cmp(*ch.From) != 0 {
			return false
		}
	}
	return true
}

// The kinds of conflict.
const (
	conflictFieldManager    = "FieldManager"
	conflictResourceVersion = "ResourceVersion"
)

// noSubresource tells a path the API server does not know from a pod that is
// gone: only the latter has a name.
func noSubresource(err error) bool {
	status := apierrors.APIStatus(nil)
	return apierrors.IsNotFound(err) && errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Name == "")
}

// conflictKind tells a conflict over who owns a field from one over the
// object's version: only the former names fields.
func conflictKind(err error) string {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			if cause.Type == metav1.CauseTypeFieldManagerConflict {
				return conflictFieldManager
			}
		}
	}
	return conflictResourceVersion
}
