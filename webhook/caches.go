package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/controller/profile"
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// cacheOptions keep in memory no more than something reads: pods only where
// they are enrolled, owners as metadata, and of each object the parts in use.
func cacheOptions(o *options) cache.Options {
	own := map[string]cache.Config{o.namespace: {}}
	by := profile.CacheOptions().ByObject
	by[&corev1.Node{}] = cache.ByObject{Transform: stripNode}
	by[&coordinationv1.Lease{}] = cache.ByObject{Namespaces: own}
	by[&appsv1.DaemonSet{}] = cache.ByObject{Namespaces: own}
	by[&v1alpha1.PolicyPodStatus{}] = cache.ByObject{Namespaces: own}
	by[&v1alpha1.AgentStatus{}] = cache.ByObject{Namespaces: own}
	for object, options := range by {
		if _, ok := object.(*corev1.Pod); ok {
			options.Transform = stripPod(options.Transform)
			by[object] = options
		}
	}
	resync := o.resync
	return cache.Options{
		SyncPeriod:       &resync,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         by,
	}
}

// stripPod keeps managedFields only of pods that may be resized: they say who
// owns a resource field.
func stripPod(then toolscache.TransformFunc) toolscache.TransformFunc {
	return func(o any) (any, error) {
		if pod, ok := o.(*corev1.Pod); ok {
			if pod.Labels[v1alpha1.LabelMode] != string(v1alpha1.ModeResize) {
				pod.ManagedFields = nil
			}
			pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints = nil, nil, nil
		}
		return then(o)
	}
}

func stripNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	node.ManagedFields = nil
	node.Status.Images, node.Status.VolumesInUse, node.Status.VolumesAttached = nil, nil, nil
	return node, nil
}

// watch starts the caches that admission reads, so that being ready includes them.
func watch(ctx context.Context, c cache.Cache) error {
	objects := []client.Object{
		metadata(corev1.SchemeGroupVersion.WithKind("Namespace")),
		metadata(appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
		metadata(batchv1.SchemeGroupVersion.WithKind("Job")),
		&corev1.LimitRange{}, &corev1.ResourceQuota{}, &autoscalingv2.HorizontalPodAutoscaler{},
		&v1alpha1.PlimsollConfig{}, &v1alpha1.WorkloadProfile{},
		&v1alpha1.ResourcePolicy{}, &v1alpha1.ClusterResourcePolicy{},
	}
	for _, o := range objects {
		if _, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	return nil
}

func metadata(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	return m
}
