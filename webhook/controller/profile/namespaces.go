package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

// namespaceReconciler copies a namespace's mode to the pods that run in it
// already; admission copies it to those that come.
type namespaceReconciler struct {
	Deps
	client client.Client
	live   client.Reader
	pods   *podReconciler
	queue  *queue
}

func (r *namespaceReconciler) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("namespaces").
		WithOptions(options(1)).
		For(&corev1.Namespace{}, builder.OnlyMetadata, builder.WithPredicates(modeChanges)).
		WatchesRawSource(r.queue.source()).
		Complete(r)
}

// all has every namespace with a mode looked at again.
func (r *namespaceReconciler) all(ctx context.Context) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := r.client.List(ctx, list, client.HasLabels{v1alpha1.LabelMode}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing namespaces: %w", err)
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return r.queue.add(ctx, requests...)
}

var modeChanges = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool { _, ok := e.Object.GetLabels()[v1alpha1.LabelMode]; return ok },
	DeleteFunc: func(event.DeleteEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		a, had := e.ObjectOld.GetLabels()[v1alpha1.LabelMode]
		b, has := e.ObjectNew.GetLabels()[v1alpha1.LabelMode]
		return had != has || a != b
	},
}

const (
	// pageSize bounds the pods held at once while a namespace is walked.
	pageSize = 500
	// patrol is how often a namespace is walked for pods that came while
	// admission was away.
	patrol = 5 * time.Minute
)

// Reconcile has the copies of a namespace's mode brought in step, and makes
// those that are missing.
func (r *namespaceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// Copies that are there are pods like any other; their own owners change them.
	if err := r.pods.inNamespace(ctx, req.Name); err != nil {
		return reconcile.Result{}, err
	}
	if !r.Owns(req.Name) {
		return reconcile.Result{}, nil
	}
	site, err := r.Resolver.Site(ctx, nil, req.Name)
	if err != nil {
		return reconcile.Result{}, err
	}
	text, labelled := site.NamespaceLabels[v1alpha1.LabelMode]
	mode, valid := v1alpha1.ParseMode(text)
	if labelled && !valid {
		r.reportInvalid(req.Name, text)
	}
	if !valid || mode == v1alpha1.ModeOff {
		return reconcile.Result{}, nil
	}
	if err := r.copy(ctx, site); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait.Jitter(patrol, 0.2)}, nil
}

func (r *namespaceReconciler) reportInvalid(namespace, text string) {
	ns := namespaceMetadata()
	ns.Name = namespace
	r.Recorder.Eventf(ns, nil, corev1.EventTypeWarning, string(profile.ReasonInvalidNamespaceMode), "Enrol",
		"label %s=%q counts as off: use one of off, measure, apply, resize", v1alpha1.LabelMode, text)
}

// copy walks the pods without a mode, which no cache holds, page by page.
func (r *namespaceReconciler) copy(ctx context.Context, site profile.Site) error {
	unlabelled, err := labels.NewRequirement(v1alpha1.LabelMode, selection.DoesNotExist, nil)
	if err != nil {
		return fmt.Errorf("selecting pods without a mode: %w", err)
	}
	selector := client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*unlabelled)}
	for next := ""; ; {
		var pods corev1.PodList
		err := r.live.List(ctx, &pods, client.InNamespace(site.Namespace), selector, client.Limit(pageSize), client.Continue(next))
		if err != nil {
			return fmt.Errorf("listing pods without a mode in namespace %s: %w", site.Namespace, err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			set := profile.ModeLabels(pod, site)
			if len(set) == 0 || !profile.Live(pod) {
				continue
			}
			err := patchPod(ctx, r.client, pod, &change{Labels: set, UID: pod.UID})
			if err != nil && !apierrors.IsConflict(err) {
				return err
			}
		}
		if next = pods.Continue; next == "" {
			return nil
		}
	}
}
