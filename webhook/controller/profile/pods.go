package profile

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// podReconciler stamps pods with the answer of the Resolver and makes the
// profiles the stamps name.
type podReconciler struct {
	Deps
	client   client.Client
	queue    *queue
	making   making
	reported sync.Map // pods whose refusal was reported: UIDs by namespace and name
}

func (r *podReconciler) setup(mgr ctrl.Manager) error {
	allPods := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		return r.requests(ctx)
	})
	return ctrl.NewControllerManagedBy(mgr).Named("pods").
		WithOptions(options(podWorkers)).
		For(&corev1.Pod{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: podChanged})).
		Watches(&v1alpha1.PlimsollConfig{}, allPods, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// A profile that is gone is made again by the pods that are left.
		Watches(&v1alpha1.WorkloadProfile{}, handler.EnqueueRequestsFromMapFunc(r.podsOf), builder.WithPredicates(deletions)).
		WatchesRawSource(r.queue.source()).
		Complete(r)
}

var deletions = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	UpdateFunc:  func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// podChanged leaves out what changes most and matters here least: status.
func podChanged(e event.UpdateEvent) bool {
	a, b := e.ObjectOld, e.ObjectNew
	return !maps.Equal(a.GetLabels(), b.GetLabels()) || !maps.Equal(a.GetAnnotations(), b.GetAnnotations()) ||
		ownerOf(a) != ownerOf(b)
}

func ownerOf(o client.Object) types.UID {
	if ref := metav1.GetControllerOf(o); ref != nil {
		return ref.UID
	}
	return ""
}

// requests are all enrolled pods: which pods a change of policies moves is not
// the same as which pods a policy matches.
func (r *podReconciler) requests(ctx context.Context) []reconcile.Request {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing pods")
		return nil
	}
	// Pods of one profile stand together, so that when they move its count
	// changes once and not over the whole of the fan-out.
	order := make([]*corev1.Pod, 0, len(pods.Items))
	for i := range pods.Items {
		order = append(order, &pods.Items[i])
	}
	slices.SortFunc(order, func(a, b *corev1.Pod) int { return cmp.Compare(profileOf(a), profileOf(b)) })
	out := make([]reconcile.Request, 0, len(order))
	for _, pod := range order {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)})
	}
	return out
}

func requestsFor(pods []corev1.Pod) []reconcile.Request {
	out := make([]reconcile.Request, 0, len(pods))
	for i := range pods {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods[i])})
	}
	return out
}

// all has every enrolled pod resolved again.
func (r *podReconciler) all(ctx context.Context) error {
	return r.queue.add(ctx, r.requests(ctx)...)
}

// inNamespace has the enrolled pods of a namespace resolved again.
func (r *podReconciler) inNamespace(ctx context.Context, namespace string) error {
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing pods of namespace %s: %w", namespace, err)
	}
	return r.queue.add(ctx, requestsFor(pods.Items)...)
}

func (r *podReconciler) podsOf(ctx context.Context, p client.Object) []reconcile.Request {
	r.making.forget(p.GetName())
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.MatchingFields{PodsByProfile: p.GetName()}, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing a profile's pods", "profile", p.GetName())
		return nil
	}
	return requestsFor(pods.Items)
}

// Reconcile brings one pod in step with the current policies and config.
func (r *podReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Owns(req.String()) {
		return reconcile.Result{}, nil
	}
	pod := &corev1.Pod{}
	if err := r.client.Get(ctx, req.NamespacedName, pod, client.UnsafeDisableDeepCopy); err != nil {
		r.reported.Delete(req.NamespacedName)
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !profile.Live(pod) {
		return reconcile.Result{}, nil
	}
	if r.Resolver.Policies.Get() == nil {
		return reconcile.Result{}, nil // the first index has every pod resolved again
	}
	answer, err := r.Resolver.Resolve(ctx, pod, pod.Namespace)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.report(pod, answer)
	change := podChange(pod, answer)
	if answer.Mode != v1alpha1.ModeOff {
		// A profile comes before the stamp that names it.
		if err := r.ensureProfile(ctx, answer.Key); err != nil {
			return reconcile.Result{}, err
		}
	}
	if change == nil {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, patchPod(ctx, r.client, pod, change)
}

// refusals say why a pod that asks to be enrolled is not.
var refusals = map[profile.Reason]string{
	profile.ReasonInvalidMode:       "the label plimsoll.dev/mode counts as off: use one of off, measure, apply, resize",
	profile.ReasonSystemNamespace:   "pods of kube-system are never enrolled",
	profile.ReasonOwnNamespace:      "pods of Plimsoll's own namespace are never enrolled",
	profile.ReasonStaticPod:         "a static pod's resources cannot be changed through the API",
	profile.ReasonWindowsPod:        "containers of Windows pods cannot be measured",
	profile.ReasonPodLevelResources: "pods with resources for the pod as a whole are not supported",
	profile.ReasonNoIdentity:        "the pod has none of the identity labels (PlimsollConfig spec.identityLabels), so it belongs to no workload",
}

// report says once per pod why its own mode label is not followed.
func (r *podReconciler) report(pod *corev1.Pod, answer Answer) {
	note, refused := refusals[answer.Reason]
	if !refused || !profile.OwnMode(pod) {
		return
	}
	if last, _ := r.reported.Swap(client.ObjectKeyFromObject(pod), pod.UID); last != pod.UID {
		r.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, string(answer.Reason), "Enrol", "not enrolled: %s", note)
	}
}

// change is the part of a pod that follows from the answer; a nil value removes.
type change struct {
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
	// UID keeps the change from a later pod of the same name.
	UID types.UID `json:"uid"`
}

// podChange returns what is to be written on the pod, nil when nothing is.
func podChange(pod *corev1.Pod, answer Answer) *change {
	c := &change{Labels: answer.Labels, Annotations: map[string]*string{}, UID: pod.UID}
	var stamps map[string]string
	if answer.Mode != v1alpha1.ModeOff {
		stamps = answer.Stamps()
	}
	for _, key := range []string{v1alpha1.AnnotationPolicyRef, v1alpha1.AnnotationProfileRef} {
		want, stamp := stamps[key]
		have, stamped := pod.Annotations[key]
		switch {
		case stamp && have != want:
			c.Annotations[key] = &want
		case !stamp && stamped:
			c.Annotations[key] = nil
		}
	}
	if len(c.Labels)+len(c.Annotations) == 0 {
		return nil
	}
	return c
}

// patchPod writes the change; a pod that is gone needs none.
func patchPod(ctx context.Context, c client.Client, pod *corev1.Pod, change *change) error {
	body, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return fmt.Errorf("encoding the change of a pod: %w", err)
	}
	// The answer is asked for as metadata: the pod itself comes by the watch.
	object := metadataOf(corev1.SchemeGroupVersion.WithKind("Pod"))
	object.Namespace, object.Name = pod.Namespace, pod.Name
	if err := c.Patch(ctx, object, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stamping pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
