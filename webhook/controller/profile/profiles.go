package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

const (
	// settle gathers the changes of a rollout into one count.
	settle = time.Second
	// newborn is how long a profile may wait for its first pod.
	newborn = time.Minute
	// unconfirmed is how soon pods are counted again that the cache has lost and
	// the API server has not.
	unconfirmed = 5 * time.Second
)

// profileReconciler counts each profile's pods, orphans and deletes it when none
// is left, and removes its measurements when it goes.
type profileReconciler struct {
	Deps
	client client.Client
	live   client.Reader
	queue  *queue
}

func (r *profileReconciler) setup(mgr ctrl.Manager) error {
	allProfiles := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return r.requests(ctx)
	})
	return ctrl.NewControllerManagedBy(mgr).Named("profiles").
		WithOptions(options(profileWorkers)).
		Watches(&v1alpha1.WorkloadProfile{}, profileEvents()).
		Watches(&corev1.Pod{}, podCounts()).
		Watches(&v1alpha1.PlimsollConfig{}, allProfiles, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(r.queue.source()).
		Complete(r)
}

type work = workqueue.TypedRateLimitingInterface[reconcile.Request]

// profileEvents enqueues a profile for what this controller acts on. A new one
// waits for its first pods to be stamped.
func profileEvents() handler.EventHandler {
	request := func(o client.Object) reconcile.Request {
		return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q work) { q.AddAfter(request(e.Object), settle) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q work) {
			if profileChanged(e) {
				q.Add(request(e.ObjectNew))
			}
		},
	}
}

// profileChanged reports what this controller acts on, a state that does not
// follow from the status, which another writer saw an older one of, and a change
// of this controller's part of the status, which a user may have emptied.
func profileChanged(e event.UpdateEvent) bool {
	a, aok := e.ObjectOld.(*v1alpha1.WorkloadProfile)
	b, bok := e.ObjectNew.(*v1alpha1.WorkloadProfile)
	if !aok || !bok {
		return false
	}
	return a.Generation != b.Generation || a.DeletionTimestamp.IsZero() != b.DeletionTimestamp.IsZero() ||
		len(a.Finalizers) != len(b.Finalizers) || b.Status.State != "" && profile.State(b.Status) != b.Status.State ||
		!equality.Semantic.DeepEqual(ownPart(a.Status), ownPart(b.Status))
}

// ownPart is what nobody but this controller writes of a status.
func ownPart(s v1alpha1.WorkloadProfileStatus) v1alpha1.WorkloadProfileStatus {
	return v1alpha1.WorkloadProfileStatus{
		PolicyRef: s.PolicyRef, TupleLabels: s.TupleLabels, MeasurementHash: s.MeasurementHash,
		SelectorLabels: s.SelectorLabels, ActivePods: s.ActivePods, OrphanedAt: s.OrphanedAt,
	}
}

// podCounts enqueues the profiles whose number of live pods a pod's change can change.
func podCounts() handler.EventHandler {
	add := func(q work, names ...string) {
		for _, name := range names {
			if name != "" {
				q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}, settle)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q work) { add(q, countsFor(e.Object)) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q work) { add(q, profileOf(e.Object)) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q work) {
			if a, b := countsFor(e.ObjectOld), countsFor(e.ObjectNew); a != b {
				add(q, a, b)
			}
		},
	}
}

func profileOf(o client.Object) string { return o.GetAnnotations()[v1alpha1.AnnotationProfileRef] }

// countsFor is the profile a pod counts for, "" for none.
func countsFor(o client.Object) string {
	if pod, ok := o.(*corev1.Pod); ok && profile.Live(pod) {
		return profileOf(o)
	}
	return ""
}

func (r *profileReconciler) requests(ctx context.Context) []reconcile.Request {
	var profiles v1alpha1.WorkloadProfileList
	if err := r.client.List(ctx, &profiles, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing profiles")
		return nil
	}
	out := make([]reconcile.Request, 0, len(profiles.Items))
	for i := range profiles.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&profiles.Items[i])})
	}
	return out
}

// all has every profile looked at again.
func (r *profileReconciler) all(ctx context.Context) error {
	return r.queue.add(ctx, r.requests(ctx)...)
}

// Reconcile brings one profile in step with its pods.
func (r *profileReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Owns(req.Name) {
		return reconcile.Result{}, nil
	}
	p := &v1alpha1.WorkloadProfile{}
	if err := r.client.Get(ctx, req.NamespacedName, p); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	pods, err := r.count(ctx, r.client, p, client.MatchingFields{PodsByProfile: p.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, err
	}
	if p.DeletionTimestamp != nil {
		return reconcile.Result{}, r.finalize(ctx, p, pods)
	}
	if err := r.ensureFinalizer(ctx, p); err != nil {
		return reconcile.Result{}, err
	}
	want, wait, err := r.status(ctx, p, pods)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := r.patchStatus(ctx, p, want); err != nil {
		return reconcile.Result{}, err
	}
	if want.OrphanedAt == nil || wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	return r.expire(ctx, p, want.OrphanedAt.Time)
}

// count returns how many live pods of those listed are stamped with the profile.
func (r *profileReconciler) count(ctx context.Context, from client.Reader, p *v1alpha1.WorkloadProfile, opts ...client.ListOption) (int, error) {
	var pods corev1.PodList
	if err := from.List(ctx, &pods, opts...); err != nil {
		return 0, fmt.Errorf("counting the pods of WorkloadProfile %s: %w", p.Name, err)
	}
	n := 0
	for i := range pods.Items {
		if countsFor(&pods.Items[i]) == p.Name {
			n++
		}
	}
	return n, nil
}

// confirm asks the API server itself whether the profile has no pod: a cache that
// comes back empty for a moment must orphan nothing.
func (r *profileReconciler) confirm(ctx context.Context, p *v1alpha1.WorkloadProfile) (bool, error) {
	tuple, _ := labels.SelectorFromSet(p.Spec.Identity.Tuple).Requirements()
	selector := EnrolledPods().Add(tuple...)
	n, err := r.count(ctx, r.live, p, client.MatchingLabelsSelector{Selector: selector})
	return n == 0, err
}

// status returns the part of the status that follows from identity and pods, and
// when to look again if that cannot be said yet.
func (r *profileReconciler) status(ctx context.Context, p *v1alpha1.WorkloadProfile, pods int) (v1alpha1.WorkloadProfileStatus, time.Duration, error) {
	id, key := p.Spec.Identity, profile.KeyOfIdentity(p.Spec.Identity)
	want := *p.Status.DeepCopy()
	want.PolicyRef, want.TupleLabels, want.MeasurementHash = id.PolicyRef, id.Tuple, id.MeasurementHash
	want.SelectorLabels = key.Selector()
	var wait time.Duration
	switch {
	case pods > 0:
		want.ActivePods, want.OrphanedAt = int32(pods), nil
	case p.Status.OrphanedAt != nil:
	case p.Status.ActivePods == 0 && r.Now().Sub(p.CreationTimestamp.Time) < newborn:
		wait = newborn
	default:
		gone, err := r.confirm(ctx, p)
		if err != nil {
			return want, 0, err
		}
		if !gone {
			return want, unconfirmed, nil
		}
		now := metav1.NewTime(r.Now().Truncate(time.Second))
		want.ActivePods, want.OrphanedAt = 0, &now
	}
	want.State = profile.State(want)
	return want, wait, nil
}

// patchStatus writes what has changed of this controller's part of the status.
func (r *profileReconciler) patchStatus(ctx context.Context, p *v1alpha1.WorkloadProfile, want v1alpha1.WorkloadProfileStatus) error {
	if equality.Semantic.DeepEqual(p.Status, want) {
		return nil
	}
	part := func(s v1alpha1.WorkloadProfileStatus) *v1alpha1.WorkloadProfile {
		return &v1alpha1.WorkloadProfile{Status: s}
	}
	body, err := client.MergeFrom(part(p.Status)).Data(part(want))
	if err != nil {
		return fmt.Errorf("comparing the status of WorkloadProfile %s: %w", p.Name, err)
	}
	err = r.client.Status().Patch(ctx, p.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the status of WorkloadProfile %s: %w", p.Name, err)
	}
	return nil
}

// expire deletes a profile that has been orphaned for the configured time.
func (r *profileReconciler) expire(ctx context.Context, p *v1alpha1.WorkloadProfile, orphaned time.Time) (reconcile.Result, error) {
	config, err := r.Resolver.Config(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if left := profile.OrphanTTL(config) - r.Now().Sub(orphaned); left > 0 {
		return reconcile.Result{RequeueAfter: left + time.Second}, nil
	}
	gone, err := r.confirm(ctx, p)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !gone {
		return reconcile.Result{RequeueAfter: unconfirmed}, nil
	}
	log.FromContext(ctx).Info("deleting an orphaned profile", "profile", p.Name, "orphanedAt", orphaned)
	err = r.client.Delete(ctx, p.DeepCopy(), client.Preconditions{UID: &p.UID})
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("deleting orphaned WorkloadProfile %s: %w", p.Name, err)
	}
	return reconcile.Result{}, nil
}
