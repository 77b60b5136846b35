// Package profile keeps WorkloadProfiles in step with pods and policies: which
// profile each enrolled pod belongs to, and the life and death of each profile.
//
// It runs in every replica. Each reconciles only what it owns (Deps.Owns), and
// each keeps its own policy index, which admission reads too.
package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// Purger removes measurements; *store.Store is one.
type Purger interface {
	// Purge removes every key of a measurement hash and nothing else.
	Purge(ctx context.Context, measurementHash string, now time.Time) error
	// Reset does too and leaves a mark, so that nothing measured before it comes back.
	Reset(ctx context.Context, measurementHash string, now time.Time) error
}

// Deps is what the controllers need beside the manager.
type Deps struct {
	// Resolver answers about pods; admission uses the same one. Its Policies
	// receive a new index whenever the policies change.
	Resolver *Resolver
	// Purger removes measurements of profiles that go.
	Purger Purger
	// Owns reports whether this replica owns a key: a profile's name, a pod's or
	// namespace's "namespace/name" or "name", a policy's reference. Nil owns everything.
	Owns func(key string) bool
	// Rebalanced, when not nil, delivers a value after ownership has changed.
	Rebalanced <-chan struct{}
	// Recorder records events.
	Recorder events.EventRecorder
	// Now tells the time; nil is time.Now.
	Now func() time.Time
}

// Concurrent reconciles of pods and profiles: each waits on one API call at most.
const (
	podWorkers     = 8
	profileWorkers = 4
)

// SetupWithManager adds the controllers to a manager whose cache was made with CacheOptions.
func SetupWithManager(mgr ctrl.Manager, d Deps) error {
	if d.Owns == nil {
		d.Owns = func(string) bool { return true }
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if err := indexPods(mgr); err != nil {
		return err
	}
	pods := &podReconciler{Deps: d, client: mgr.GetClient(), queue: newQueue()}
	profiles := &profileReconciler{Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), queue: newQueue()}
	policies := &policyReconciler{Deps: d, cache: mgr.GetClient(), live: mgr.GetAPIReader(), rescoped: pods.all}
	namespaces := &namespaceReconciler{Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), pods: pods, queue: newQueue()}
	status := &statusReconciler{Deps: d, client: mgr.GetClient(), live: mgr.GetAPIReader(), queue: newQueue()}
	for _, c := range []interface{ setup(ctrl.Manager) error }{pods, profiles, policies, namespaces, status} {
		if err := c.setup(mgr); err != nil {
			return fmt.Errorf("setting up profiles: %w", err)
		}
	}
	if d.Rebalanced == nil {
		return nil
	}
	return mgr.Add(&rebalance{Deps: d, then: []func(context.Context) error{pods.all, profiles.all, namespaces.all, status.all}})
}

// options run a controller in every replica.
func options(workers int) controller.Options {
	everywhere := false
	return controller.Options{NeedLeaderElection: &everywhere, MaxConcurrentReconciles: workers}
}

// rebalance looks at everything again when ownership has changed.
type rebalance struct {
	Deps
	then []func(context.Context) error
}

var _ manager.LeaderElectionRunnable = &rebalance{}

// NeedLeaderElection makes it run in every replica.
func (*rebalance) NeedLeaderElection() bool { return false }

// Start runs until the context ends.
func (r *rebalance) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Rebalanced:
		}
		for _, all := range r.then {
			if err := all(ctx); err != nil {
				return err
			}
		}
	}
}

// PodsByProfile is the field index of pods by the profile they are stamped with.
const PodsByProfile = "plimsoll.profile"

func indexPods(mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, PodsByProfile, func(o client.Object) []string {
		if name := o.GetAnnotations()[v1alpha1.AnnotationProfileRef]; name != "" {
			return []string{name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("indexing pods by profile: %w", err)
	}
	return nil
}

// NewResolver returns the Resolver over a manager's cache, for admission and Deps.
func NewResolver(mgr ctrl.Manager, policies *policy.Holder, ownNamespace string) *Resolver {
	return &Resolver{
		Policies:     policies,
		Owners:       NewOwners(mgr.GetCache(), mgr.GetAPIReader()),
		Reader:       mgr.GetClient(),
		Live:         mgr.GetAPIReader(),
		OwnNamespace: ownNamespace,
	}
}
