package resize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
	plan "plimsoll.dev/pkg/resize"
)

const (
	// writtenAfter is how long a resize may be on its way before the pod says
	// so. Most are done sooner and need no word until then.
	writtenAfter = 5 * time.Second
	// toldAfter is how long the word of a resize that is done may have to wait
	// for others that are being sent.
	toldAfter = 30 * time.Second
	// peerAfter is how long a live peer's resize is its own to follow.
	peerAfter = time.Minute
	// watchEvery is how many intervals pass between two looks at a pod that is
	// watched: events tell all but its live use.
	watchEvery = 3
)

// fieldManager owns the annotation this package writes.
const fieldManager = "plimsoll"

// sentNow notes a resize that the API server accepted.
func (c *Controller) sentNow(before, after *corev1.Pod, profile string, r plan.Record) {
	if by, at, ok := plan.LastBy(after); ok && by == c.Replica {
		r.At = at
	}
	c.book.put(before.UID, sent{record: r, generation: after.Generation, pod: client.ObjectKeyFromObject(before), profile: profile})
	c.book.sentAt(c.Now())
	c.follow(client.ObjectKeyFromObject(before), writtenAfter)
}

// turnedDown notes why a pod was not resized, on the pod where somebody has to
// know, and for a while in memory where trying again would be the same.
func (c *Controller) turnedDown(ctx context.Context, pod *corev1.Pod, a answer) error {
	switch a.reason {
	case plan.ReasonRefused, plan.ReasonUnsupported:
		c.book.refuse(pod.UID, pod.Generation, c.Now().Add(refusedFor))
		c.event(pod, corev1.EventTypeWarning, a.reason, "a resize was refused: "+a.message)
	case plan.ReasonFieldOwnedByOther:
		c.book.refuse(pod.UID, pod.Generation, c.Now().Add(refusedFor))
		r := c.record(pod)
		if r.State == plan.StateLeft && r.Message == a.message {
			return nil
		}
		r.State, r.Since, r.Reason, r.Message = plan.StateLeft, c.Now(), a.reason, a.message
		c.event(pod, corev1.EventTypeWarning, a.reason, "the pod is not resized: its resources are "+a.message)
		return c.write(ctx, pod, r)
	}
	return nil
}

// FollowPod looks at what became of a pod's last resize and does what comes
// next: says that it is done, takes it back, or waits.
func (c *Controller) FollowPod(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	pod := &corev1.Pod{}
	if err := c.Client.Get(ctx, req.NamespacedName, pod, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	s, ours := c.book.sent(pod.UID)
	if !resizes(pod) || pod.DeletionTimestamp != nil {
		c.book.forget(pod.UID)
		return reconcile.Result{}, nil
	}
	if ours && pod.Generation < s.generation {
		return reconcile.Result{RequeueAfter: shortly}, nil // the cache is behind
	}
	settings, hash := c.settingsOf(ctx, pod)
	r := c.record(pod)
	if !ours {
		if !c.active() || !c.owns(podKey(pod)) {
			return reconcile.Result{}, nil
		}
		if wait := c.adopt(pod, &r); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	}
	live, err := c.live.of(ctx, hash, c.Now())
	if err != nil {
		live = nil
	}
	step := plan.Follow(plan.FollowInput{Pod: pod, Record: r, Settings: settings.Resize, Live: live[string(pod.UID)], Now: c.Now()})
	if step.Changed && ours && step.Record.State == plan.StateResized {
		s.record, s.written = step.Record, false
		c.book.put(pod.UID, s)
		c.wake(s.profile)
	} else if step.Changed {
		return c.take(ctx, pod, step, settings.Resize.Interval)
	}
	if ours && !s.written && s.record.State == plan.StateResized {
		return c.tell(ctx, pod, s, step.Again)
	}
	return c.wait(ctx, pod, s, ours, step)
}

// tell says on the pod, in an event and in the metrics that a resize is done.
// While this replica is sending others, that is more urgent than words.
func (c *Controller) tell(ctx context.Context, pod *corev1.Pod, s sent, again time.Duration) (reconcile.Result, error) {
	now := c.Now()
	if now.Sub(c.book.lastSent()) < shortly && now.Sub(s.record.At) < toldAfter {
		return reconcile.Result{RequeueAfter: shortly + rand.N(shortly)}, nil
	}
	if err := c.write(ctx, pod, s.record); err != nil {
		return reconcile.Result{}, err
	}
	s.written = true
	c.book.put(pod.UID, s)
	c.say(pod, s.record)
	c.Metrics.outcome(s.profile, s.record.Reason)
	return reconcile.Result{RequeueAfter: min(again, watchEvery*c.Interval)}, nil
}

// lastWords writes, on the way out, what could not be told yet: the replicas
// that go on know then what to go back to.
func (c *Controller) lastWords(ctx context.Context) error {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writtenAfter)
	defer cancel()
	for uid, s := range c.book.untold() {
		pod := &corev1.Pod{}
		pod.Name, pod.Namespace, pod.UID = s.pod.Name, s.pod.Namespace, uid
		if err := c.write(ctx, pod, s.record); err != nil {
			return err
		}
	}
	return nil
}

// settingsOf returns the settings of the policy that governs a pod, and its
// measurement hash, as far as they are known.
func (c *Controller) settingsOf(ctx context.Context, pod *corev1.Pod) (policy.Settings, string) {
	settings, hash := policy.DefaultSettings(), ""
	ref, err := profile.ParseRef(pod.Annotations[v1alpha1.AnnotationPolicyRef])
	if index := c.Policies.Get(); err == nil && index != nil {
		if p, ok := index.Load(ref); ok {
			settings = p.Settings
		}
	}
	wp := &v1alpha1.WorkloadProfile{}
	key := types.NamespacedName{Name: pod.Annotations[v1alpha1.AnnotationProfileRef]}
	if key.Name != "" && c.Client.Get(ctx, key, wp, client.UnsafeDisableDeepCopy) == nil {
		hash = wp.Spec.Identity.MeasurementHash
	}
	return settings, hash
}

// adopt fills in the record of a change that no living replica follows, and
// returns how long to leave one to the peer that does.
func (c *Controller) adopt(pod *corev1.Pod, r *plan.Record) time.Duration {
	by, at, missing := unrecorded(pod, *r)
	if !missing {
		by, at = r.By, r.At
	}
	if by != c.Replica && c.Ring != nil && c.Ring.Live(by) && (missing || r.State == plan.StateRequested) {
		if left := at.Add(peerAfter).Sub(c.Now()); left > 0 {
			return left
		}
	}
	if missing {
		*r = plan.Adopt(pod, by, at)
	}
	return 0
}

// unrecorded returns the last change of a pod, when and by whom, if the record
// does not know of it: its replica was killed, or has not said so yet.
func unrecorded(pod *corev1.Pod, r plan.Record) (by string, at time.Time, ok bool) {
	by, at, ok = plan.LastBy(pod)
	return by, at, ok && at.After(r.At.Add(shortly))
}

// wait writes down a resize that takes long, and forgets one that is written.
func (c *Controller) wait(ctx context.Context, pod *corev1.Pod, s sent, ours bool, step plan.Step) (reconcile.Result, error) {
	again := step.Again
	if step.Record.State == plan.StateResized {
		again = min(again, watchEvery*c.Interval)
	}
	if !ours {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	stands, err := plan.ParseRecord(pod.Annotations[v1alpha1.AnnotationResize])
	if s.written && err == nil && stands.State == s.record.State && stands.Since.Equal(s.record.Since) {
		if s.record.State != plan.StateRequested {
			c.book.settle(pod.UID)
		}
		return reconcile.Result{RequeueAfter: again}, nil
	}
	if s.written || s.record.State != plan.StateRequested {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	if age := c.Now().Sub(s.record.At); age < writtenAfter {
		return reconcile.Result{RequeueAfter: writtenAfter - age}, nil
	}
	if err := c.write(ctx, pod, step.Record); err != nil {
		return reconcile.Result{}, err
	}
	s.written = true
	c.book.put(pod.UID, s)
	return reconcile.Result{RequeueAfter: again}, nil
}

// take does what a step asks for: sends what takes a change back, writes the
// record, says so.
func (c *Controller) take(ctx context.Context, pod *corev1.Pod, step plan.Step, interval time.Duration) (reconcile.Result, error) {
	release, ok := c.book.reserve(pod.UID)
	if !ok {
		return reconcile.Result{RequeueAfter: shortly}, nil
	}
	defer release()
	generation := pod.Generation
	if len(step.TakeBack) > 0 {
		after, err := c.takeBack(ctx, pod, &step, interval)
		if errors.Is(err, errNotActive) {
			return reconcile.Result{RequeueAfter: shortly}, nil
		}
		if err != nil {
			return reconcile.Result{}, err
		}
		if after != nil {
			generation = after.Generation
		}
	}
	if err := c.write(ctx, pod, step.Record); err != nil {
		return reconcile.Result{}, err
	}
	profile := pod.Annotations[v1alpha1.AnnotationProfileRef]
	c.book.put(pod.UID, sent{record: step.Record, generation: generation, pod: client.ObjectKeyFromObject(pod), profile: profile, written: true})
	c.learn(pod, step.Record)
	c.say(pod, step.Record)
	c.Metrics.outcome(profile, step.Record.Reason)
	c.wake(profile)
	return reconcile.Result{RequeueAfter: step.Again}, nil
}

// takeBack sends the changes that undo a resize and puts what came of it into
// the step's record. It returns the pod after it, nil when nothing was changed.
func (c *Controller) takeBack(ctx context.Context, pod *corev1.Pod, step *plan.Step, interval time.Duration) (*corev1.Pod, error) {
	if !c.active() {
		return nil, errNotActive
	}
	if stop, err := c.suspended(ctx); err != nil || stop {
		return nil, errors.Join(err, errNotActive)
	}
	a, err := c.send(ctx, pod, step.TakeBack, interval)
	switch {
	case err != nil:
		return nil, err
	case a.reason == plan.ReasonConflict || a.reason == plan.ReasonPeer:
		return nil, errNotActive // look again: the pod may be another's by now
	case a.reason != "":
		step.Record.Message += "; it was not taken back: " + a.message
		return nil, nil
	}
	if by, at, ok := plan.LastBy(a.pod); ok && by == c.Replica {
		step.Record.At = at
	}
	if step.Record.State == plan.StateReverted {
		step.Record.Refused = a.pod.Generation
	}
	return a.pod, nil
}

// learn remembers a node that pins cores: no field of the API tells.
func (c *Controller) learn(pod *corev1.Pod, r plan.Record) {
	if r.Reason == plan.ReasonInfeasible && strings.Contains(r.Message, `CPU Manager policy "static"`) {
		c.book.learnPinning(pod.Spec.NodeName)
	}
}

// write puts a record on the pod.
func (c *Controller) write(ctx context.Context, pod *corev1.Pod, r plan.Record) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "annotations": map[string]string{v1alpha1.AnnotationResize: r.String()},
	}})
	if err != nil {
		return fmt.Errorf("encoding the record of a resize: %w", err)
	}
	target := &corev1.Pod{}
	target.Name, target.Namespace = pod.Name, pod.Namespace
	err = c.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body), client.FieldOwner(fieldManager))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the record of a resize on pod %s: %w", podKey(pod), err)
	}
	return nil
}
