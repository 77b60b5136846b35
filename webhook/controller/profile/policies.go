package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// policyReconciler keeps the policy index. Every replica keeps its own.
type policyReconciler struct {
	Deps
	cache    client.Reader
	live     client.Reader
	rescoped func(context.Context) error // has every pod resolved again

	// What the last index was made from; only Reconcile touches it.
	namespaced map[client.ObjectKey]v1alpha1.ResourcePolicy
	cluster    map[client.ObjectKey]v1alpha1.ClusterResourcePolicy
	reported   map[v1alpha1.PolicyReference]int64 // generation of the broken policies reported
}

// everything is the one request of a controller that always looks at all.
var everything = reconcile.Request{NamespacedName: client.ObjectKey{Name: "all"}}

func (r *policyReconciler) setup(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{everything}
	})
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	// An index without policies is an index too.
	first := source.Func(func(_ context.Context, work workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		work.Add(everything)
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).Named("policies").
		WithOptions(options(1)).
		Watches(&v1alpha1.ResourcePolicy{}, all, changed).
		Watches(&v1alpha1.ClusterResourcePolicy{}, all, changed).
		WatchesRawSource(first).
		Complete(r)
}

// Reconcile makes a new index of all policies and, when it can answer
// differently from the last one, has every pod resolved again.
func (r *policyReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var rps v1alpha1.ResourcePolicyList
	var crps v1alpha1.ClusterResourcePolicyList
	if err := r.cache.List(ctx, &rps); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing ResourcePolicies: %w", err)
	}
	if err := r.cache.List(ctx, &crps); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing ClusterResourcePolicies: %w", err)
	}
	namespaced, doubtA := confirmed(ctx, r.live, r.namespaced, rps.Items)
	cluster, doubtB := confirmed(ctx, r.live, r.cluster, crps.Items)
	r.namespaced, r.cluster = namespaced, cluster

	last := r.Resolver.Policies.Get()
	index := policy.NewIndex(values(namespaced), values(cluster))
	r.Resolver.Policies.Set(index)
	r.report(ctx, index)
	if last == nil || index.RescopedFrom(last) {
		log.FromContext(ctx).Info("resolving every pod again", "policies", len(namespaced)+len(cluster))
		if err := r.rescoped(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	if doubtA || doubtB {
		return reconcile.Result{RequeueAfter: doubtful}, nil
	}
	return reconcile.Result{}, nil
}

// doubtful is how soon a policy is looked for again that the cache has lost and
// the API server has not.
const doubtful = 2 * time.Second

// confirmed returns the policies there are: those listed, and those known that
// the list lacks though the API server, asked for each, still has it or does not
// answer. A list that comes back empty for a moment must move no pod. The second
// result reports that there are such.
func confirmed[P any, PT interface {
	*P
	client.Object
}](ctx context.Context, live client.Reader, known map[client.ObjectKey]P, listed []P) (map[client.ObjectKey]P, bool) {
	out := make(map[client.ObjectKey]P, len(listed))
	for i := range listed {
		out[client.ObjectKeyFromObject(PT(&listed[i]))] = listed[i]
	}
	doubt := false
	for key, p := range known {
		if _, ok := out[key]; ok {
			continue
		}
		var now P
		switch err := live.Get(ctx, key, PT(&now)); {
		case apierrors.IsNotFound(err):
			continue
		case err == nil:
			p = now
		}
		out[key], doubt = p, true
	}
	return out, doubt
}

func values[K comparable, V any](m map[K]V) []V {
	out := make([]V, 0, len(m))
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// report says once per generation which policies are broken.
func (r *policyReconciler) report(ctx context.Context, index *policy.Index) {
	reported := map[v1alpha1.PolicyReference]int64{}
	for _, b := range index.Broken() {
		reported[b.Ref] = b.Generation
		if generation, ok := r.reported[b.Ref]; ok && generation == b.Generation {
			continue
		}
		log.FromContext(ctx).Error(b.Err, "skipping a policy that does not compile", "policy", profile.FormatRef(b.Ref))
		if !r.Owns(profile.FormatRef(b.Ref)) {
			continue
		}
		if o := r.object(b.Ref); o != nil {
			r.Recorder.Eventf(o, nil, corev1.EventTypeWarning, "PolicyBroken", "Compile", "the policy governs no pod until it is corrected: %s", clip(b.Err.Error()))
		}
	}
	r.reported = reported
}

func (r *policyReconciler) object(ref v1alpha1.PolicyReference) client.Object {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	if ref.Kind == v1alpha1.KindResourcePolicy {
		p := r.namespaced[key]
		return &p
	}
	p := r.cluster[key]
	return &p
}

// clip keeps a message within an event's limit.
func clip(s string) string {
	const most = 900
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
