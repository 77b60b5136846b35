package main

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
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
	by := map[client.Object]cache.ByObject{
		&corev1.Pod{}:               {Label: enrolled(), Transform: stripPod},
		&corev1.Node{}:              {Transform: stripNode},
		&corev1.Namespace{}:         {Transform: keepLabels},
		&appsv1.ReplicaSet{}:        {Transform: keepOwners},
		&batchv1.Job{}:              {Transform: keepOwners},
		&coordinationv1.Lease{}:     {Namespaces: own},
		&v1alpha1.PolicyPodStatus{}: {Namespaces: own},
		&v1alpha1.AgentStatus{}:     {Namespaces: own},
	}
	if o.certMode == certSelfSigned {
		maps.Copy(by, o.certificates().CacheOptions())
	}
	resync := o.resync
	return cache.Options{
		SyncPeriod:       &resync,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         by,
	}
}

// enrolled selects pods with a mode label other than off: the API server sends
// no others.
func enrolled() labels.Selector {
	has, err := labels.NewRequirement(v1alpha1.LabelMode, selection.Exists, nil)
	utilruntime.Must(err)
	on, err := labels.NewRequirement(v1alpha1.LabelMode, selection.NotIn, []string{string(v1alpha1.ModeOff)})
	utilruntime.Must(err)
	return labels.NewSelector().Add(*has, *on)
}

// stripPod drops what nothing reads. managedFields stay on pods that may be
// resized: they say who owns a resource field.
func stripPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // a tombstone
	}
	if pod.Labels[v1alpha1.LabelMode] != string(v1alpha1.ModeResize) {
		pod.ManagedFields = nil
	}
	pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints = nil, nil, nil, nil
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Command, c.Args, c.Env, c.EnvFrom, c.VolumeMounts, c.VolumeDevices = nil, nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle, c.SecurityContext = nil, nil, nil, nil, nil
		}
	}
	return pod, nil
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

func keepLabels(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations = nil, nil
	}
	return o, nil
}

func keepOwners(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ManagedFields, m.Annotations, m.Labels = nil, nil, nil
	}
	return o, nil
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
