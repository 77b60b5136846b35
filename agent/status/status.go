// Package status keeps the AgentStatus in which an agent says how it is.
//
// It is written when it says something new, and otherwise once per heartbeat, so
// that many agents cost the API server next to nothing. The object is named
// after the agent's Node and owned by it, so that it goes with the Node.
package status

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
)

// Reasons of an agent's Ready condition.
const (
	ReasonWorking       = "Working"       // it samples, and what it samples reaches Redis
	ReasonNotSampling   = "NotSampling"   // it has not looked at its containers for too long
	ReasonRedisAway     = "RedisAway"     // it samples and keeps what Redis does not take
	ReasonAPIServerAway = "APIServerAway" // it does not know its pods and policies yet
)

const (
	// tick is the time between two looks.
	tick = 10 * time.Second
	// spread is how much later than a heartbeat the next may come, so that agents
	// started together do not write together for ever.
	spread = 30 * time.Second
	// After a write the next one waits: for a new state of health or, which comes
	// more often, for another number of containers.
	waitHealth     = 30 * time.Second
	waitContainers = time.Minute
	// retryAfter is the time between two attempts to write that fail.
	retryAfter = 30 * time.Second
	timeout    = 10 * time.Second

	fieldManager = "plimsoll-agent"
)

// Observation is what an agent finds out about itself.
type Observation struct {
	// Facts are all but conditions, last error and heartbeat.
	Facts v1alpha1.AgentStatusStatus
	// Reason is that of the Ready condition.
	Reason string
	// Err says what is wrong; nil when the agent is well.
	Err error
}

// Options are what a Reporter works with.
type Options struct {
	// Client reads and writes the API server itself, no cache.
	Client client.Client
	// Namespace the status lives in, Plimsoll's own, and the Node it is named after.
	Namespace, Node string
	// Observe looks at the agent.
	Observe func() Observation
	Log     *slog.Logger
	// Now tells the time; nil is time.Now.
	Now func() time.Time
}

// Reporter keeps one agent's status. It is not safe for concurrent use.
type Reporter struct {
	o Options

	read    bool // what was written before this process started has been read
	written v1alpha1.AgentStatusStatus
	at      time.Time     // of the last write, zero for none
	jitter  time.Duration // of the next heartbeat
	retry   time.Time     // no attempt before
	told    string        // the error logged last
}

// New returns a Reporter that has written nothing yet.
func New(o Options) *Reporter {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reporter{o: o}
}

// Run reports until the context ends. The first look comes after a moment, when
// the agent has had time to connect.
func (r *Reporter) Run(ctx context.Context) {
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		}
		err := r.Step(ctx)
		switch {
		case err == nil:
			r.told = ""
		case ctx.Err() == nil && err.Error() != r.told:
			r.told = err.Error()
			r.o.Log.Error("reporting this agent's status failed: measuring goes on, it is tried again", "error", err)
		}
	}
}

// Step looks at the agent once and writes its status if that is due.
func (r *Reporter) Step(ctx context.Context) error {
	now := r.o.Now()
	if now.Before(r.retry) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := r.step(ctx, now)
	if err != nil {
		r.retry = now.Add(retryAfter)
	}
	return err
}

func (r *Reporter) step(ctx context.Context, now time.Time) error {
	if !r.read {
		if err := r.recall(ctx, now); err != nil {
			return err
		}
		r.read = true
	}
	is := r.status(now)
	if !r.due(is, now) {
		return nil
	}
	err := r.apply(ctx, &is)
	if apierrors.IsNotFound(err) {
		if err = r.create(ctx); err == nil {
			err = r.apply(ctx, &is)
		}
	}
	if err != nil {
		return fmt.Errorf("writing AgentStatus %s: %w", r.o.Node, err)
	}
	r.written, r.at, r.jitter = is, now, rand.N(spread)
	return nil
}

// recall reads what an earlier process of this agent wrote.
func (r *Reporter) recall(ctx context.Context, now time.Time) error {
	var s v1alpha1.AgentStatus
	if err := r.o.Client.Get(ctx, r.key(), &s); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading AgentStatus %s: %w", r.o.Node, err)
	}
	r.written = s.Status
	// A heartbeat that is to come was made by a wrong clock.
	if h := s.Status.Heartbeat; h != nil && !h.After(now) {
		r.at = h.Time
	}
	return nil
}

// status is what would be written now.
func (r *Reporter) status(now time.Time) v1alpha1.AgentStatusStatus {
	o := r.o.Observe()
	is := o.Facts
	is.Heartbeat = &metav1.Time{Time: now}
	is.LastError = r.written.LastError
	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: o.Reason,
		Message: "sampling, and Redis takes what is sampled", LastTransitionTime: metav1.NewTime(now),
	}
	if o.Err != nil {
		is.LastError = podstatus.Clip(o.Err.Error())
		ready.Status, ready.Message = metav1.ConditionFalse, is.LastError
	}
	is.Conditions = slices.Clone(r.written.Conditions)
	meta.SetStatusCondition(&is.Conditions, ready)
	return is
}

// due reports whether a status is to be written.
func (r *Reporter) due(is v1alpha1.AgentStatusStatus, now time.Time) bool {
	since := now.Sub(r.at)
	switch was := r.written; {
	case r.at.IsZero() || since < 0 || since >= podstatus.Heartbeat+r.jitter:
		return true
	case !sameHealth(was, is):
		return since >= waitHealth
	default:
		return was.Containers != is.Containers && since >= waitContainers
	}
}

// sameHealth leaves out what changes by itself.
func sameHealth(a, b v1alpha1.AgentStatusStatus) bool {
	x, y := meta.FindStatusCondition(a.Conditions, v1alpha1.ConditionReady), meta.FindStatusCondition(b.Conditions, v1alpha1.ConditionReady)
	return x != nil && y != nil && x.Status == y.Status && x.Reason == y.Reason &&
		a.Version == b.Version && a.KernelVersion == b.KernelVersion && a.CgroupMode == b.CgroupMode && slices.Equal(a.Programs, b.Programs)
}

func (r *Reporter) key() client.ObjectKey {
	return client.ObjectKey{Namespace: r.o.Namespace, Name: r.o.Node}
}

// apply writes the status in one request, without reading: nobody else writes it.
func (r *Reporter) apply(ctx context.Context, s *v1alpha1.AgentStatusStatus) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("AgentStatus"))
	u.SetNamespace(r.o.Namespace)
	u.SetName(r.o.Node)
	return r.o.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager), client.ForceOwnership)
}

// create makes the object, which goes with its Node.
func (r *Reporter) create(ctx context.Context) error {
	var node corev1.Node
	if err := r.o.Client.Get(ctx, client.ObjectKey{Name: r.o.Node}, &node); err != nil {
		return fmt.Errorf("reading the Node that owns it: %w", err)
	}
	err := r.o.Client.Create(ctx, &v1alpha1.AgentStatus{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.o.Namespace, Name: r.o.Node,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: v1alpha1.AgentStatusSpec{NodeName: r.o.Node},
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
