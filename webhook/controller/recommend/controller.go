// Package recommend keeps the recommendations on WorkloadProfiles current: for each profile this replica owns it reads the
// measurements, computes, and writes the status when it changed in a way that matters.
package recommend

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/store"
)

// Measurements reads a profile's history and folds what is closed; *store.Store is one.
type Measurements interface {
	Window(ctx context.Context, hash string, now time.Time, r store.Retention) (*store.Window, error)
	Fold(ctx context.Context, hash string, now time.Time, r store.Retention) (fields int, err error)
}

// Pods lists the pods that belong to a profile, by its name.
type Pods interface {
	OfProfile(ctx context.Context, profile string) ([]corev1.Pod, error)
}

// Options are what the controller works with.
type Options struct {
	Client       client.Client // reads from the cache, writes status
	Policies     *policy.Holder
	Measurements Measurements
	Pods         Pods
	Metrics      *Metrics
	Owns         func(profile string) bool // whether this replica owns a profile; nil owns everything
	Interval     time.Duration             // between two computations of a profile; at least a second
	Concurrency  int                       // profiles computed at once; at least 1
	Now          func() time.Time          // nil is time.Now
}

// Controller recommends for the profiles this replica owns. It is safe for concurrent use.
type Controller struct {
	Options
	nodes nodeSizes

	mu sync.Mutex
	// failures counts the reads of each profile that failed in a row.
	failures map[string]int
	down     bool // logged: profiles cannot be read, and not all can again
}

// New returns a controller that is not running yet.
func New(o Options) *Controller {
	o.Interval = max(o.Interval, time.Second)
	o.Concurrency = max(o.Concurrency, 1)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Controller{Options: o, failures: map[string]int{}}
}

// SetupWithManager runs the controller with a manager. A profile is computed when it appears, when its policy changes,
// and once an interval; status writes do not trigger it.
func (c *Controller) SetupWithManager(mgr manager.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	err := builder.ControllerManagedBy(mgr).Named("recommend").
		For(&v1alpha1.WorkloadProfile{}, changed).
		Watches(&v1alpha1.ResourcePolicy{}, handler.EnqueueRequestsFromMapFunc(c.profilesOf), changed).
		Watches(&v1alpha1.ClusterResourcePolicy{}, handler.EnqueueRequestsFromMapFunc(c.profilesOf), changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: c.Concurrency}).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the recommend controller: %w", err)
	}
	return nil
}

// profilesOf returns the profiles a policy governs. Policies change seldom; going through all profiles costs less than an
// index kept for it.
func (c *Controller) profilesOf(ctx context.Context, o client.Object) []reconcile.Request {
	var profiles v1alpha1.WorkloadProfileList
	if err := c.Client.List(ctx, &profiles, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing profiles of a policy")
		return nil
	}
	kind := v1alpha1.KindClusterResourcePolicy
	if o.GetNamespace() != "" {
		kind = v1alpha1.KindResourcePolicy
	}
	want := v1alpha1.PolicyReference{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}
	var out []reconcile.Request
	for i := range profiles.Items {
		if ref := profiles.Items[i].Spec.Identity.PolicyRef; ref != nil && *ref == want {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&profiles.Items[i])})
		}
	}
	return out
}

// shortly is when to look again after something that passes by itself: a write in between, a policy just edited.
const shortly = 500 * time.Millisecond

// Reconcile computes one profile and writes its status if it changed in a way that matters.
func (c *Controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	profile := &v1alpha1.WorkloadProfile{}
	if err := c.Client.Get(ctx, req.NamespacedName, profile); err != nil {
		c.read(ctx, req.Name, nil)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	again := reconcile.Result{RequeueAfter: c.next(profile.Name)}
	if !profile.DeletionTimestamp.IsZero() || c.Owns != nil && !c.Owns(profile.Name) {
		c.read(ctx, req.Name, nil)
		return again, nil
	}
	v, err := c.evaluate(ctx, profile)
	switch {
	case errors.Is(err, errPolicyBehind):
		return reconcile.Result{RequeueAfter: shortly}, nil
	case errors.Is(err, errUnreadable):
		if c.read(ctx, profile.Name, err) < 2 {
			// One failed read is no news: a failover passes within seconds.
			return reconcile.Result{RequeueAfter: again.RequeueAfter / 4}, nil
		}
	case err != nil:
		c.Metrics.outcomes.WithLabelValues(outcomeError).Inc()
		return reconcile.Result{}, err
	default:
		c.read(ctx, profile.Name, nil)
		c.fold(ctx, profile, v)
	}
	if err := c.write(ctx, profile, v, err); err != nil {
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: shortly}, nil
		}
		c.Metrics.outcomes.WithLabelValues(outcomeError).Inc()
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return again, nil
}

// next is the interval, different by up to a tenth from profile to profile so that they spread.
func (c *Controller) next(profile string) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(profile))
	return c.Interval*9/10 + c.Interval/5*time.Duration(h.Sum32()%1000)/1000
}

// read records how reading a profile's measurements went, and returns how often it failed in a row.
func (c *Controller) read(ctx context.Context, profile string, err error) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.failures, profile)
		if c.down && len(c.failures) == 0 {
			c.down = false
			log.FromContext(ctx).Info("measurements can be read again")
		}
		return 0
	}
	if !c.down {
		c.down = true
		log.FromContext(ctx).Error(err, "measurements cannot be read, recommendations keep their last values")
	}
	c.failures[profile]++
	return c.failures[profile]
}

// fold moves closed hours into blocks. A failure costs nothing but a larger read until it succeeds.
func (c *Controller) fold(ctx context.Context, profile *v1alpha1.WorkloadProfile, v evaluation) {
	if !v.foldable {
		return
	}
	if _, err := c.Measurements.Fold(ctx, profile.Spec.Identity.MeasurementHash, c.Now(), v.retention); err != nil {
		c.Metrics.foldFailures.Inc()
		log.FromContext(ctx).V(1).Info("folding measurements failed, the next computation tries again", "error", err.Error())
	}
}

// write patches the status if it changed in a way that matters.
func (c *Controller) write(ctx context.Context, old *v1alpha1.WorkloadProfile, v evaluation, unreadable error) error {
	changed := old.DeepCopy()
	if unreadable != nil {
		c.Metrics.outcomes.WithLabelValues(outcomeUnreadable).Inc()
		v.stale(&changed.Status)
	} else {
		c.Metrics.outcomes.WithLabelValues(outcomeComputed).Inc()
		v.into(&changed.Status, old.Generation, c.Now())
	}
	if !matters(old.Status, changed.Status) {
		return nil
	}
	// The lock keeps another writer's conditions: a merge patch replaces the list.
	patch := client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})
	if err := c.Client.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("writing the status of profile %s: %w", old.Name, err)
	}
	c.Metrics.statusWrites.Inc()
	return nil
}
