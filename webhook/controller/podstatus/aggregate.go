package podstatus

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
	"plimsoll.dev/pkg/profile"
)

// fieldManager owns status.byPod and the Ready condition of policies.
const fieldManager = "plimsoll-replicas"

// reports is what is known of one policy.
type reports struct {
	replicas []string // that should report
	items    []v1alpha1.PolicyPodStatus
	later    time.Duration // when not zero, nothing can be said before this is over
}

// reported gathers the reports in Plimsoll's namespace.
type reported struct {
	namespace string
	reader    client.Reader
	ring      Ring
}

func (s *reported) gather(ctx context.Context, _ parent, ref v1alpha1.PolicyReference) (reports, error) {
	var list v1alpha1.PolicyPodStatusList
	err := s.reader.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingFields{reportsByPolicy: profile.FormatRef(ref)})
	if err != nil {
		return reports{}, fmt.Errorf("listing the reports about %s: %w", profile.FormatRef(ref), err)
	}
	return reports{replicas: s.ring.Members(), items: list.Items}, nil
}

// aggregator rebuilds what the replicas say together in the status of the
// policies this replica owns.
type aggregator struct {
	Deps
	client client.Client
	live   client.Reader
	source func(context.Context, parent, v1alpha1.PolicyReference) (reports, error)

	mu    sync.Mutex
	since map[reconcile.Request]time.Time // when reports began to lack
}

func (a *aggregator) setup(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	b := ctrl.NewControllerManagedBy(mgr).Named("policyreplicas").
		WithOptions(options(policyWorkers)).
		Watches(&v1alpha1.ResourcePolicy{}, soon(), changed).
		Watches(&v1alpha1.ClusterResourcePolicy{}, soon(), changed).
		WatchesRawSource(a.rebalanced(a.all))
	if a.Ring != nil {
		b = b.Watches(&v1alpha1.PolicyPodStatus{}, soon(), builder.WithPredicates(predicate.Funcs{UpdateFunc: telling}))
	}
	return b.Complete(a)
}

// telling reports whether a report says something else than before about the policy.
func telling(e event.UpdateEvent) bool {
	a, aok := e.ObjectOld.(*v1alpha1.PolicyPodStatus)
	b, bok := e.ObjectNew.(*v1alpha1.PolicyPodStatus)
	if !aok || !bok {
		return false
	}
	was, is := a.Status, b.Status
	was.PodsMatched, is.PodsMatched = 0, 0
	return was != is || a.Spec != b.Spec
}

// soon enqueues policies, and the policies that reports are about, after a moment.
func soon() handler.EventHandler {
	add := func(q work, o client.Object) {
		if _, ok := o.(*v1alpha1.PolicyPodStatus); ok {
			for _, r := range parentOf(context.Background(), o) {
				q.AddAfter(r, gather)
			}
			return
		}
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}, gather)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q work) { add(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q work) { add(q, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q work) { add(q, e.Object) },
	}
}

// all requests every policy.
func (a *aggregator) all(ctx context.Context) ([]reconcile.Request, error) {
	var out []reconcile.Request
	for _, kind := range []string{v1alpha1.KindResourcePolicy, v1alpha1.KindClusterResourcePolicy} {
		var err error
		add := func(o client.Object) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
		}
		if kind == v1alpha1.KindResourcePolicy {
			var list v1alpha1.ResourcePolicyList
			err = a.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
			for i := range list.Items {
				add(&list.Items[i])
			}
		} else {
			var list v1alpha1.ClusterResourcePolicyList
			err = a.client.List(ctx, &list, client.UnsafeDisableDeepCopy)
			for i := range list.Items {
				add(&list.Items[i])
			}
		}
		if err != nil {
			return out, fmt.Errorf("listing %s: %w", kind, err)
		}
	}
	return out, nil
}

// Reconcile writes what the replicas say about a policy if that is news.
func (a *aggregator) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ref := refOf(req)
	if !a.owns(profile.FormatRef(ref)) {
		a.settle(req)
		return reconcile.Result{}, nil
	}
	p, err := getParent(ctx, a.client, req)
	if err != nil {
		a.settle(req)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	said, r, err := a.aggregate(ctx, p, ref)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.later > 0 {
		return reconcile.Result{RequeueAfter: r.later}, nil
	}
	if same(p, said) {
		a.settle(req)
		return reconcile.Result{}, nil
	}
	if left := a.patience(req); !said.Complete && left > 0 {
		return reconcile.Result{RequeueAfter: left}, nil
	}
	a.settle(req)
	if err := a.write(ctx, req, p); err != nil {
		return reconcile.Result{}, fmt.Errorf("writing what the replicas say about %s: %w", profile.FormatRef(ref), err)
	}
	return reconcile.Result{}, nil
}

func (a *aggregator) aggregate(ctx context.Context, p parent, ref v1alpha1.PolicyReference) (podstatus.Aggregate, reports, error) {
	r, err := a.source(ctx, p, ref)
	return podstatus.NewAggregate(podstatus.Policy{UID: p.GetUID(), Generation: p.GetGeneration()}, r.replicas, r.items), r, err
}

// patience returns how much longer a policy's reports are waited for.
func (a *aggregator) patience(req reconcile.Request) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.Now()
	if _, ok := a.since[req]; !ok {
		a.since[req] = now
	}
	return patience - now.Sub(a.since[req])
}

func (a *aggregator) settle(req reconcile.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.since, req)
}

// write rebuilds the aggregate from what there is now and applies it on top of
// the version it was compared with.
func (a *aggregator) write(ctx context.Context, req reconcile.Request, cached parent) error {
	ref := refOf(req)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		p, err := getParent(ctx, a.live, req)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		if p.GetUID() != cached.GetUID() || p.GetGeneration() != cached.GetGeneration() {
			return nil // the reports about it as it is now are waited for when the cache has it
		}
		said, r, err := a.aggregate(ctx, p, ref)
		if err != nil || r.later > 0 || same(p, said) {
			return err
		}
		err = applyStatus(ctx, a.client, ref.Kind, p, fieldManager, &v1alpha1.ResourcePolicyStatus{
			ByPod: said.ByPod, Conditions: a.ready(p, said),
		})
		if err == nil {
			a.tell(p, said)
		}
		return client.IgnoreNotFound(err) // gone meanwhile
	})
}

// tell records an event when the replicas begin or cease to be of one mind.
func (a *aggregator) tell(p parent, said podstatus.Aggregate) {
	old := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionReady)
	switch {
	case said.Status == metav1.ConditionFalse && (old == nil || old.Reason != said.Reason):
		a.Recorder.Eventf(p.Object, nil, corev1.EventTypeWarning, said.Reason, "Aggregate", "%s", said.Message)
	case said.Status == metav1.ConditionTrue && old != nil && old.Status == metav1.ConditionFalse:
		a.Recorder.Eventf(p.Object, nil, corev1.EventTypeNormal, said.Reason, "Aggregate", "%s", said.Message)
	}
}

// ready returns the Ready condition, alone.
func (a *aggregator) ready(p parent, said podstatus.Aggregate) []metav1.Condition {
	var conditions []metav1.Condition
	if old := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionReady); old != nil {
		conditions = append(conditions, *old)
	}
	meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: said.Status, Reason: said.Reason, Message: said.Message,
		ObservedGeneration: p.GetGeneration(), LastTransitionTime: metav1.NewTime(a.Now()),
	})
	return conditions
}

func same(p parent, said podstatus.Aggregate) bool {
	c := meta.FindStatusCondition(p.status.Conditions, v1alpha1.ConditionReady)
	return c != nil && c.Status == said.Status && c.Reason == said.Reason && c.Message == said.Message &&
		c.ObservedGeneration == p.GetGeneration() && slices.Equal(p.status.ByPod, said.ByPod)
}

// applyStatus applies one manager's part of an object's status. It conflicts if
// the object is no longer the version given.
func applyStatus(ctx context.Context, c client.Client, kind string, o client.Object, manager string, status any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	u.SetResourceVersion(o.GetResourceVersion())
	return c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(manager), client.ForceOwnership)
}
