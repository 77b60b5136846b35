package podstatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// LabelPolicy is the discriminator of the policy a PolicyPodStatus is about: a
// label cannot hold a policy's whole name, which is in the spec.
const LabelPolicy = "plimsoll.dev/policy"

// compiling is how soon a policy is looked at again that this replica has not compiled yet.
const compiling = 200 * time.Millisecond

// opinions are what this replica has made of the policies.
type opinions struct {
	policies *policy.Holder
	reader   client.Reader
}

// of returns what this replica works by; false until it has compiled the policy as given.
func (o *opinions) of(p parent, ref v1alpha1.PolicyReference) (v1alpha1.PolicyPodStatusStatus, bool) {
	is := func(uid types.UID, generation int64) bool {
		return uid == p.GetUID() && generation >= p.GetGeneration()
	}
	index := o.policies.Get()
	if c, ok := index.Load(ref); ok && is(c.UID, c.Generation) {
		return v1alpha1.PolicyPodStatusStatus{ParentUID: string(c.UID), ParentGeneration: c.Generation, State: v1alpha1.PolicyCompiled}, true
	}
	for _, b := range index.Broken() {
		if b.Ref == ref && is(b.UID, b.Generation) {
			return v1alpha1.PolicyPodStatusStatus{
				ParentUID: string(b.UID), ParentGeneration: b.Generation, State: v1alpha1.PolicyError, Message: podstatus.Clip(b.Err.Error()),
			}, true
		}
	}
	return v1alpha1.PolicyPodStatusStatus{}, false
}

// alone is a source for the aggregator: this process is the only replica.
func (o *opinions) alone(_ context.Context, p parent, ref v1alpha1.PolicyReference) (reports, error) {
	s, ok := o.of(p, ref)
	if !ok {
		return reports{later: compiling}, nil
	}
	report := v1alpha1.PolicyPodStatus{Spec: v1alpha1.PolicyPodStatusSpec{Pod: alone, PolicyRef: ref}, Status: s}
	return reports{replicas: []string{alone}, items: []v1alpha1.PolicyPodStatus{report}}, nil
}

// replicaReconciler writes what this replica says about each policy.
type replicaReconciler struct {
	Deps
	client   client.Client
	live     client.Reader
	opinions *opinions
}

func (r *replicaReconciler) setup(mgr ctrl.Manager) error {
	changed := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	own := builder.WithPredicates(predicate.Funcs{
		// What this replica said before it was started again may be about policies that are gone.
		CreateFunc: func(e event.CreateEvent) bool { return e.IsInInitialList && r.own(e.Object) },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
		DeleteFunc: func(e event.DeleteEvent) bool { return r.own(e.Object) },
	})
	return ctrl.NewControllerManagedBy(mgr).Named("replicastatus").
		WithOptions(options(policyWorkers)).
		Watches(&v1alpha1.ResourcePolicy{}, &handler.EnqueueRequestForObject{}, changed).
		Watches(&v1alpha1.ClusterResourcePolicy{}, &handler.EnqueueRequestForObject{}, changed).
		Watches(&v1alpha1.PolicyPodStatus{}, handler.EnqueueRequestsFromMapFunc(parentOf), own).
		Watches(&corev1.Pod{}, r.pods()).
		Complete(r)
}

func (r *replicaReconciler) own(o client.Object) bool {
	s, ok := o.(*v1alpha1.PolicyPodStatus)
	return ok && s.Spec.Pod == r.Replica
}

// parentOf maps a report to the policy it is about, also when either is gone.
func parentOf(_ context.Context, o client.Object) []reconcile.Request {
	s, ok := o.(*v1alpha1.PolicyPodStatus)
	if !ok {
		return nil
	}
	ref, err := podstatus.Parent(s)
	if err != nil {
		return nil // nobody's report
	}
	return []reconcile.Request{requestOf(ref)}
}

// pods has the policies counted again, after a while, whose number of pods changes.
func (r *replicaReconciler) pods() handler.EventHandler {
	count := func(q work, refs ...string) {
		for _, text := range refs {
			if ref, err := profile.ParseRef(text); err == nil && text != profile.NoPolicy {
				q.AddAfter(requestOf(ref), r.GatherPods)
			}
		}
	}
	of := func(o client.Object) string {
		if pod, ok := o.(*corev1.Pod); ok {
			return governs(pod)
		}
		return ""
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q work) {
			if !e.IsInInitialList { // those are counted with the policies
				count(q, of(e.Object))
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q work) {
			if a, b := of(e.ObjectOld), of(e.ObjectNew); a != b {
				count(q, a, b)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q work) { count(q, of(e.Object)) },
	}
}

// Reconcile writes this replica's report about a policy if it says anything new.
func (r *replicaReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ref := refOf(req)
	p, err := getParent(ctx, r.client, req)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.withdraw(ctx, ref)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading %s: %w", profile.FormatRef(ref), err)
	}
	want, ok := r.opinions.of(p, ref)
	if !ok {
		return reconcile.Result{RequeueAfter: compiling}, nil
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.MatchingFields{podsByPolicy: profile.FormatRef(ref)}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the pods of %s: %w", profile.FormatRef(ref), err)
	}
	want.PodsMatched = int32(len(pods.Items))
	return reconcile.Result{}, r.write(ctx, ref, want)
}

func (r *replicaReconciler) key(ref v1alpha1.PolicyReference) client.ObjectKey {
	return client.ObjectKey{Namespace: r.Namespace, Name: podstatus.Pack(r.Replica, ref)}
}

// withdraw deletes the report about a policy that is gone.
func (r *replicaReconciler) withdraw(ctx context.Context, ref v1alpha1.PolicyReference) error {
	var s v1alpha1.PolicyPodStatus
	err := r.client.Get(ctx, r.key(ref), &s)
	if err == nil {
		err = r.client.Delete(ctx, &s)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("withdrawing the status of %s: %w", profile.FormatRef(ref), err)
	}
	return nil
}

// write makes the report say what it should. The cache may not have what was
// written last, so that the API server is asked before anything is written.
func (r *replicaReconciler) write(ctx context.Context, ref v1alpha1.PolicyReference, want v1alpha1.PolicyPodStatusStatus) error {
	var cached v1alpha1.PolicyPodStatus
	if err := r.client.Get(ctx, r.key(ref), &cached); err == nil && cached.Status == want && r.owned(&cached) {
		return nil
	}
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, again, func() error {
		var s v1alpha1.PolicyPodStatus
		err := r.live.Get(ctx, r.key(ref), &s)
		switch {
		case apierrors.IsNotFound(err):
			s = r.report(ref)
			err = r.client.Create(ctx, &s)
		case err == nil && !r.owned(&s):
			// It is of an earlier pod of this name, and would go with that one.
			s.OwnerReferences = r.report(ref).OwnerReferences
			err = r.client.Update(ctx, &s)
		}
		if err != nil || s.Status == want {
			return err
		}
		s.Status = want
		return r.client.Status().Update(ctx, &s)
	})
	if err != nil {
		return fmt.Errorf("writing this replica's status of %s: %w", profile.FormatRef(ref), err)
	}
	return nil
}

func (r *replicaReconciler) owned(s *v1alpha1.PolicyPodStatus) bool {
	return r.PodUID == "" || len(s.OwnerReferences) == 1 && s.OwnerReferences[0].UID == r.PodUID
}

// report is a report that says nothing yet. It goes with its pod.
func (r *replicaReconciler) report(ref v1alpha1.PolicyReference) v1alpha1.PolicyPodStatus {
	key := r.key(ref)
	s := v1alpha1.PolicyPodStatus{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{LabelPolicy: profile.Discriminator(ref)}},
		Spec:       v1alpha1.PolicyPodStatusSpec{Pod: r.Replica, PolicyRef: ref},
	}
	if r.PodUID != "" {
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: r.Replica, UID: r.PodUID}}
	}
	return s
}
