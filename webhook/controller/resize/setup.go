package resize

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// everyReplica is a Runnable that runs without being elected.
type everyReplica func(context.Context) error

func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }
func (everyReplica) NeedLeaderElection() bool          { return false }

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// SetupWithManager runs the controller with a manager, in every replica:
// rebalanced, when not nil, delivers a value after ownership has changed.
func (c *Controller) SetupWithManager(ctx context.Context, mgr ctrl.Manager, rebalanced <-chan struct{}) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexNode, nodeOf); err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	if err := mgr.Add(everyReplica(c.lastWords)); err != nil {
		return fmt.Errorf("adding the last words: %w", err)
	}
	everywhere := false
	options := controller.Options{MaxConcurrentReconciles: c.Concurrency, NeedLeaderElection: &everywhere}
	err := ctrl.NewControllerManagedBy(mgr).Named("resize").
		For(&v1alpha1.WorkloadProfile{}).
		Watches(&v1alpha1.PlimsollConfig{}, handler.EnqueueRequestsFromMapFunc(c.everyProfile)).
		WatchesRawSource(source.Func(func(ctx context.Context, q queue) error {
			c.cycles.Store(&q)
			return nil
		})).
		WithOptions(options).
		Complete(c)
	if err != nil {
		return fmt.Errorf("setting up the resize controller: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("resize-follow").
		For(&corev1.Pod{}).
		WithEventFilter(predicate.Funcs{
			CreateFunc:  func(e event.CreateEvent) bool { return wanted(e.Object) },
			UpdateFunc:  func(e event.UpdateEvent) bool { return wanted(e.ObjectNew) },
			DeleteFunc:  c.deleted,
			GenericFunc: func(event.GenericEvent) bool { return false },
		}).
		WatchesRawSource(source.Func(func(ctx context.Context, q queue) error {
			c.looks.Store(&q)
			if rebalanced != nil {
				go c.rebalance(ctx, rebalanced, q)
			}
			return nil
		})).
		WithOptions(options).
		Complete(reconcile.Func(c.FollowPod))
	if err != nil {
		return fmt.Errorf("setting up the controller that follows resizes: %w", err)
	}
	return nil
}

func wanted(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	return ok && resizes(pod)
}

func (c *Controller) deleted(e event.DeleteEvent) bool {
	c.book.forget(e.Object.GetUID())
	return false
}

// everyProfile asks for a cycle of every profile.
func (c *Controller) everyProfile(ctx context.Context, _ client.Object) []reconcile.Request {
	var profiles v1alpha1.WorkloadProfileList
	if err := c.Client.List(ctx, &profiles, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing profiles")
		return nil
	}
	out := make([]reconcile.Request, 0, len(profiles.Items))
	for i := range profiles.Items {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: profiles.Items[i].Name}})
	}
	return out
}

// rebalance looks at everything again when this replica may own other keys.
func (c *Controller) rebalance(ctx context.Context, rebalanced <-chan struct{}, q queue) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-rebalanced:
			if !ok {
				return
			}
		}
		for _, r := range c.everyProfile(ctx, nil) {
			if cycles := c.cycles.Load(); cycles != nil {
				(*cycles).Add(r)
			}
		}
		var pods corev1.PodList
		if err := c.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "listing pods")
			continue
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; resizes(p) {
				q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
			}
		}
	}
}
