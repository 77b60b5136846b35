package profile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

const (
	// ConditionOverlap is true on a policy while another of the same scope and
	// priority matches some of the same pods.
	ConditionOverlap = "Overlap"
	// ReasonEqualPriority is its reason: only the name decides.
	ReasonEqualPriority = "EqualPriority"

	// fieldManager owns this controller's part of a policy's status.
	fieldManager = "plimsoll-profiles"
	// gather is how long changes of pods and profiles are gathered into one count.
	gather = 3 * time.Second
)

// statusReconciler writes what policies govern: the profiles made for them and
// the pods counted there.
type statusReconciler struct {
	Deps
	client client.Client
	live   client.Reader
	queue  *queue

	known map[client.ObjectKey]v1alpha1.WorkloadProfile // counted last; only Reconcile touches it
}

func (r *statusReconciler) setup(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	counted := builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		a, aok := e.ObjectOld.(*v1alpha1.WorkloadProfile)
		b, bok := e.ObjectNew.(*v1alpha1.WorkloadProfile)
		return aok && bok && a.Status.ActivePods != b.Status.ActivePods
	}})
	return ctrl.NewControllerManagedBy(mgr).Named("policystatus").
		WithOptions(options(1)).
		Watches(&v1alpha1.ResourcePolicy{}, later(), changed).
		Watches(&v1alpha1.ClusterResourcePolicy{}, later(), changed).
		Watches(&v1alpha1.WorkloadProfile{}, later(), counted).
		WatchesRawSource(r.queue.source()).
		Complete(r)
}

// later enqueues the one request after a while, whatever happened.
func later() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q work) { q.AddAfter(everything, gather) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q work) { q.AddAfter(everything, gather) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q work) { q.AddAfter(everything, gather) },
	}
}

func (r *statusReconciler) all(ctx context.Context) error { return r.queue.add(ctx, everything) }

// governed is what the controller says of one policy.
type governed struct {
	pods, profiles int32
	overlaps       map[string]bool // references of the other policies
}

// Reconcile counts everything once and writes the policies whose status that changes.
func (r *statusReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	counts, doubt, err := r.count(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if doubt {
		return reconcile.Result{RequeueAfter: doubtful}, nil
	}
	var rps v1alpha1.ResourcePolicyList
	var crps v1alpha1.ClusterResourcePolicyList
	if err := r.client.List(ctx, &rps, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing ResourcePolicies: %w", err)
	}
	if err := r.client.List(ctx, &crps, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing ClusterResourcePolicies: %w", err)
	}
	for i := range rps.Items {
		p := &rps.Items[i]
		ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: p.Namespace, Name: p.Name}
		if err := r.write(ctx, ref, p.Status, counts[ref]); err != nil {
			return reconcile.Result{}, err
		}
	}
	for i := range crps.Items {
		p := &crps.Items[i]
		ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: p.Name}
		if err := r.write(ctx, ref, p.Status, counts[ref]); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// counts is what each policy governs.
type counts map[v1alpha1.PolicyReference]*governed

func (c counts) of(ref v1alpha1.PolicyReference) *governed {
	if c[ref] == nil {
		c[ref] = &governed{overlaps: map[string]bool{}}
	}
	return c[ref]
}

// count counts profiles and their pods; doubt is true while the cache does not
// hold all that there is.
func (r *statusReconciler) count(ctx context.Context) (c counts, doubt bool, err error) {
	var list v1alpha1.WorkloadProfileList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false, fmt.Errorf("listing profiles: %w", err)
	}
	if r.known, doubt = confirmed(ctx, r.live, r.known, list.Items); doubt {
		return nil, true, nil
	}
	c = counts{}
	pods := 0
	for i := range list.Items {
		g := c.of(profile.KeyOfIdentity(list.Items[i].Spec.Identity).Ref())
		g.profiles++
		g.pods += list.Items[i].Status.ActivePods
		pods += int(list.Items[i].Status.ActivePods)
	}
	if pods == 0 || !r.Resolver.Policies.Get().Tied() {
		return c, false, nil
	}
	doubt, err = r.overlaps(ctx, c)
	return c, doubt, err
}

// overlaps asks for each pod which policies only the name keeps apart.
func (r *statusReconciler) overlaps(ctx context.Context, c counts) (doubt bool, err error) {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	index := r.Resolver.Policies.Get()
	for i := range pods.Items {
		pod := &pods.Items[i]
		if countsFor(pod) == "" {
			continue
		}
		kind, _, _, err := r.Resolver.Owners.Top(ctx, pod, pod.Namespace)
		if err != nil {
			return false, err
		}
		overlap(index.Overlaps(policy.NewInput(pod, pod.Namespace, kind)), c)
	}
	return len(pods.Items) == 0, nil
}

// overlap notes with each of the policies all others.
func overlap(policies []*policy.Policy, c counts) {
	for _, p := range policies {
		for _, other := range policies {
			if p != other {
				c.of(p.Ref).overlaps[profile.FormatRef(other.Ref)] = true
			}
		}
	}
}

// write applies this controller's part of a policy's status if it differs.
func (r *statusReconciler) write(ctx context.Context, ref v1alpha1.PolicyReference, now v1alpha1.ResourcePolicyStatus, g *governed) error {
	if !r.Owns(profile.FormatRef(ref)) {
		return nil
	}
	g = cmp.Or(g, &governed{})
	want := v1alpha1.ResourcePolicyStatus{
		ProfileDiscriminator: profile.Discriminator(ref), Pods: g.pods, Profiles: g.profiles,
		Conditions: r.overlapCondition(now.Conditions, g.overlaps),
	}
	old := meta.FindStatusCondition(now.Conditions, ConditionOverlap)
	if now.ProfileDiscriminator == want.ProfileDiscriminator && now.Pods == want.Pods && now.Profiles == want.Profiles &&
		sameCondition(old, meta.FindStatusCondition(want.Conditions, ConditionOverlap)) {
		return nil
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil {
		return fmt.Errorf("encoding the status of %s: %w", profile.FormatRef(ref), err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(ref.Kind))
	u.SetNamespace(ref.Namespace)
	u.SetName(ref.Name)
	err = r.client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager), client.ForceOwnership)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of %s: %w", profile.FormatRef(ref), err)
	}
	return nil
}

// overlapCondition returns the condition, alone, or none when nothing overlaps.
func (r *statusReconciler) overlapCondition(now []metav1.Condition, others map[string]bool) []metav1.Condition {
	if len(others) == 0 {
		return nil
	}
	var conditions []metav1.Condition
	if old := meta.FindStatusCondition(now, ConditionOverlap); old != nil {
		conditions = append(conditions, *old)
	}
	const most = 5
	names := slices.Sorted(maps.Keys(others))
	more := ""
	if len(names) > most {
		names, more = names[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: ConditionOverlap, Status: metav1.ConditionTrue, Reason: ReasonEqualPriority,
		LastTransitionTime: metav1.NewTime(r.Now()),
		Message: fmt.Sprintf("has the same priority and matches some of the same pods as %s%s; among them the name decides",
			strings.Join(names, ", "), more),
	})
	return conditions
}

func sameCondition(a, b *metav1.Condition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}
