// Package resize brings running pods toward their profile's recommendations,
// in place: a cycle per profile chooses pods and sends resizes, and every
// resize that was sent is followed until the kubelet has acted on it and the
// pod has been watched. plimsoll.dev/pkg/resize decides; this package acts.
package resize

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/pkg/store"
)

// Pods lists the pods that belong to a profile, by its name.
type Pods interface {
	OfProfile(ctx context.Context, profile string) ([]corev1.Pod, error)
}

// Measurements tells what a profile's containers use now; *store.Store is one.
type Measurements interface {
	Live(ctx context.Context, hash string, now time.Time) ([]store.Live, error)
}

// Owners finds a pod's top-level owner.
type Owners interface {
	Top(ctx context.Context, pod *corev1.Pod, namespace string) (kind, name string, known bool, err error)
}

// Ring says which replica owns a key, and which replicas are alive.
type Ring interface {
	// Self is this replica's name.
	Self() string
	// Owner returns the replica that owns a key, "" when there is none.
	Owner(key string) string
	// Live reports whether a replica is a member now.
	Live(replica string) bool
	// Active reports whether this replica may act: not when it could not
	// renew its own membership.
	Active() bool
}

// Options are what the controller works with.
type Options struct {
	Client       client.Client // reads from the cache, writes
	Uncached     client.Reader // reads a pod again after a conflict
	Policies     *policy.Holder
	Pods         Pods
	Measurements Measurements         // nil: no use is known, memory is never lowered
	Owners       Owners               // nil: a pod's direct owner is its only one
	Ring         Ring                 // nil: this replica owns everything
	Replica      string               // names the field manager plimsoll-<replica>
	Recorder     events.EventRecorder // nil records none
	Metrics      *Metrics
	Interval     time.Duration    // between two cycles of a profile; at least a second
	Concurrency  int              // profiles resized at once; at least 1
	Now          func() time.Time // nil is time.Now
	// Unpartitioned makes every replica work on every pod, to measure what the
	// ring is worth.
	Unpartitioned bool
}

// Controller resizes pods. It is safe for concurrent use.
type Controller struct {
	Options
	book   *book
	live   *liveCache
	cycles atomic.Pointer[queue] // asks for cycles of profiles, once it runs
	looks  atomic.Pointer[queue] // asks for looks at pods, once it runs
}

// wake asks for a cycle of a profile that has candidates waiting.
func (c *Controller) wake(profile string) {
	if q := c.cycles.Load(); q != nil && c.book.hasQueue(profile) {
		(*q).Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: profile}})
	}
}

// follow asks for a look at a pod after a while.
func (c *Controller) follow(pod types.NamespacedName, after time.Duration) {
	if q := c.looks.Load(); q != nil {
		(*q).AddAfter(reconcile.Request{NamespacedName: pod}, after)
	}
}

// maxManager is the longest field manager the API server takes.
const maxManager = 128

// New returns a controller that is not running yet.
func New(o Options) (*Controller, error) {
	if o.Replica == "" || len(plan.ManagerPrefix+o.Replica) > maxManager {
		return nil, fmt.Errorf("replica name %q must have 1 to %d characters", o.Replica, maxManager-len(plan.ManagerPrefix))
	}
	o.Interval = max(o.Interval, time.Second)
	o.Concurrency = max(o.Concurrency, 1)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	c := &Controller{Options: o, book: newBook()}
	c.live = &liveCache{from: o.Measurements, ttl: o.Interval / 2, byHash: map[string]liveValues{}}
	return c, nil
}

// errNotActive: this replica's membership is in doubt, so it does nothing.
var errNotActive = errors.New("this replica is not an active member")

func (c *Controller) active() bool { return c.Ring == nil || c.Ring.Active() }

// owner returns who owns a key.
func (c *Controller) owner(key string) string {
	if c.Ring == nil || c.Unpartitioned {
		return c.Replica
	}
	if o := c.Ring.Owner(key); o != "" {
		return o
	}
	return c.Replica
}

func (c *Controller) owns(key string) bool { return c.owner(key) == c.Replica }

// peers are the other replicas, for the claim.
func (c *Controller) peers() plan.Peers {
	if c.Ring == nil {
		return nil
	}
	return c.Ring
}

// suspended reads the kill switch.
func (c *Controller) suspended(ctx context.Context) (bool, error) {
	config := &v1alpha1.PlimsollConfig{}
	err := c.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.ConfigName}, config)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return config.Spec.Suspended != nil && *config.Spec.Suspended, nil
}

func podKey(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// record returns the newest word on a pod's last resize.
func (c *Controller) record(pod *corev1.Pod) plan.Record {
	return c.book.newest(pod.UID, pod.Annotations[v1alpha1.AnnotationResize])
}
