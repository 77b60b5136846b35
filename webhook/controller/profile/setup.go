// Package profile keeps WorkloadProfiles in step with pods and policies: which
// profile each enrolled pod belongs to, and the life and death of each profile.
//
// It runs in every replica. Each reconciles only what it owns (Deps.Owns), and
// each keeps its own policy index, which admission reads too.
package profile

import (
	"context"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"plimsoll.dev/pkg/policy"
)

// Purger removes measurements; *store.Store is one.
type Purger interface {
	// Purge removes every key of a measurement hash and nothing else.
	Purge(ctx context.Context, measurementHash string) error
	// Reset does too and leaves a mark, so that nothing measured before it comes back.
	Reset(ctx context.Context, measurementHash string, at time.Time) error
}

// Deps is what the controllers need beside the manager.
type Deps struct {
	// Policies receives the index whenever the policies change.
	Policies *policy.Holder
	// Resolver answers about pods; admission uses the same one.
	Resolver *Resolver
	// Purger removes measurements of profiles that go.
	Purger Purger
	// Owns reports whether this replica owns a key: a profile's name, a pod's
	// "namespace/name", a policy's reference. Nil owns everything.
	Owns func(key string) bool
	// Rebalanced, when not nil, delivers a value after ownership has changed.
	Rebalanced <-chan struct{}
	// Recorder records events; nil records none.
	Recorder events.EventRecorder
	// Now tells the time; nil is time.Now.
	Now func() time.Time
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
