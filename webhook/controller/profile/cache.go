package profile

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// CacheOptions returns what the manager's cache must hold at most: pods with a
// mode label other than off, and of owners nothing but who owns them.
func CacheOptions() cache.Options {
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Label: EnrolledPods(), Transform: slimPod(&fieldSets{})},
	}
	for _, gvk := range climbed {
		byObject[metadataOf(gvk)] = cache.ByObject{Transform: slimOwner}
	}
	byObject[namespaceMetadata()] = cache.ByObject{Transform: slimNamespace}
	return cache.Options{ByObject: byObject}
}

// EnrolledPods selects the pods with a mode label other than off.
func EnrolledPods() labels.Selector {
	s := labels.NewSelector()
	for _, r := range []struct {
		op     selection.Operator
		values []string
	}{{selection.Exists, nil}, {selection.NotIn, []string{string(v1alpha1.ModeOff)}}} {
		requirement, err := labels.NewRequirement(v1alpha1.LabelMode, r.op, r.values)
		if err != nil {
			panic(err) // constants only
		}
		s = s.Add(*requirement)
	}
	return s
}

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(gvk)
	return o
}

// slimPod drops what no controller looks at and what makes most of a pod's size,
// and shares what pods have in common.
func slimPod(shared *fieldSets) toolscache.TransformFunc {
	return func(o any) (any, error) {
		pod, ok := o.(*corev1.Pod)
		if !ok {
			return o, nil
		}
		pod.Spec.Volumes, pod.Spec.Affinity, pod.Spec.Tolerations, pod.Spec.TopologySpreadConstraints = nil, nil, nil, nil
		for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				c := &containers[i]
				c.Env, c.EnvFrom, c.VolumeMounts, c.VolumeDevices = nil, nil, nil, nil
				c.Command, c.Args, c.Lifecycle = nil, nil, nil
				c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
			}
		}
		for i := range pod.ManagedFields {
			pod.ManagedFields[i].FieldsV1 = shared.share(pod.ManagedFields[i].FieldsV1)
		}
		return pod, nil
	}
}

// fieldSets holds each set of managed fields once: the pods of a workload have
// the same ones, and they are a third of what a pod needs in memory.
type fieldSets struct {
	mu   sync.Mutex
	sets map[string]*metav1.FieldsV1
}

// mostFieldSets bounds the table; the pods keep what they have when it is emptied.
const mostFieldSets = 4096

// share returns an equal set, which nobody may change.
func (f *fieldSets) share(set *metav1.FieldsV1) *metav1.FieldsV1 {
	if set == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.sets[string(set.GetRawBytes())]; ok {
		return known
	}
	if f.sets == nil || len(f.sets) >= mostFieldSets {
		f.sets = map[string]*metav1.FieldsV1{}
	}
	f.sets[set.GetRawString()] = set
	return set
}

// slimOwner leaves of a ReplicaSet or Job who it is and who owns it.
func slimOwner(o any) (any, error) {
	meta, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return o, nil
	}
	meta.ObjectMeta = metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion, OwnerReferences: meta.OwnerReferences,
	}
	return meta, nil
}

func slimNamespace(o any) (any, error) {
	if meta, ok := o.(*metav1.PartialObjectMetadata); ok {
		meta.ManagedFields, meta.Annotations = nil, nil
	}
	return o, nil
}
