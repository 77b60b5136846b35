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
	"k8s.io/client-go/util/workqueue"
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

// statusReconciler writes what policies govern. It counts the stamps on the
// pods, so that the numbers are those of the answers acted on.
type statusReconciler struct {
	Deps
	client client.Client
	queue  *queue
}

func (r *statusReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("policystatus").
		WithOptions(options(1)).
		Watches(&v1alpha1.ResourcePolicy{}, later(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ClusterResourcePolicy{}, later(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.WorkloadProfile{}, later(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Pod{}, later(), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return governs(e.ObjectOld) != governs(e.ObjectNew)
		}})).
		WatchesRawSource(r.queue.source()).
		Complete(r)
}

// governs is the policy a pod counts for, "" for none.
func governs(o client.Object) string {
	if pod, ok := o.(*corev1.Pod); ok && profile.Live(pod) {
		return o.GetAnnotations()[v1alpha1.AnnotationPolicyRef]
	}
	return ""
}

// later enqueues the one request after a while, whatever happened.
func later() handler.EventHandler {
	type work = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, _ event.CreateEvent, q work) { q.AddAfter(everything, gather) },
		UpdateFunc: func(_ context.Context, _ event.UpdateEvent, q work) { q.AddAfter(everything, gather) },
		DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q work) { q.AddAfter(everything, gather) },
	}
}

func (r *statusReconciler) all(ctx context.Context) error { return r.queue.add(ctx, 0, everything) }

// governed is what the controller says of one policy.
type governed struct {
	pods, profiles int32
	overlaps       map[string]bool // references of the other policies
}

// Reconcile counts everything once and writes the policies whose status that changes.
func (r *statusReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	counts, err := r.count(ctx)
	if err != nil {
		return reconcile.Result{}, err
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
		if err := r.write(ctx, ref, p.Status, counts[profile.FormatRef(ref)]); err != nil {
			return reconcile.Result{}, err
		}
	}
	for i := range crps.Items {
		p := &crps.Items[i]
		ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: p.Name}
		if err := r.write(ctx, ref, p.Status, counts[profile.FormatRef(ref)]); err != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// count returns what each policy governs, by its reference as it is stamped.
func (r *statusReconciler) count(ctx context.Context) (map[string]*governed, error) {
	counts := map[string]*governed{}
	of := func(ref string) *governed {
		if counts[ref] == nil {
			counts[ref] = &governed{overlaps: map[string]bool{}}
		}
		return counts[ref]
	}
	var profiles v1alpha1.WorkloadProfileList
	if err := r.client.List(ctx, &profiles, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing profiles: %w", err)
	}
	for i := range profiles.Items {
		of(profile.FormatRef(profile.KeyOfIdentity(profiles.Items[i].Spec.Identity).Ref())).profiles++
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	index := r.Resolver.Policies.Get()
	tied := index.Tied()
	for i := range pods.Items {
		pod := &pods.Items[i]
		ref := governs(pod)
		if ref == "" {
			continue
		}
		of(ref).pods++
		if !tied {
			continue
		}
		kind, _, _, err := r.Resolver.Owners.Top(ctx, pod, pod.Namespace)
		if err != nil {
			return nil, err
		}
		overlap(index.Overlaps(policy.NewInput(pod, pod.Namespace, kind)), of)
	}
	return counts, nil
}

// overlap notes with each of the policies all others.
func overlap(policies []*policy.Policy, of func(string) *governed) {
	for _, p := range policies {
		for _, other := range policies {
			if p != other {
				of(profile.FormatRef(p.Ref)).overlaps[profile.FormatRef(other.Ref)] = true
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
