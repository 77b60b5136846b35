package discovery

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// NodePods is the field that selects the pods of one node, the only ones an agent may see.
const NodePods = "spec.nodeName"

// Watch feeds the Discovery from a cache of pods selected by NodePods. It does not wait for the cache to fill.
//
// The pods are not selected by label: a pod that loses its label would look deleted, and what is only deleted is
// measured on until its cgroups vanish.
func (d *Discovery) Watch(ctx context.Context, pods cache.Informers) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, err := pods.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching the node's pods: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    d.set,
		UpdateFunc: func(_, object any) { d.set(object) },
		DeleteFunc: d.delete,
	})
	if err != nil {
		return nil, fmt.Errorf("watching the node's pods: %w", err)
	}
	return registration, nil
}

func (d *Discovery) set(object any) {
	if pod, ok := object.(*corev1.Pod); ok {
		d.SetPod(pod)
	}
}

func (d *Discovery) delete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		d.DeletePod(pod.UID)
	}
}

// StripPod is a cache transform which drops of a pod what discovery does not read.
func StripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	stripped := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta, Status: corev1.PodStatus{
		QOSClass:                   pod.Status.QOSClass,
		InitContainerStatuses:      pod.Status.InitContainerStatuses,
		ContainerStatuses:          pod.Status.ContainerStatuses,
		EphemeralContainerStatuses: pod.Status.EphemeralContainerStatuses,
	}}
	stripped.ManagedFields = nil
	stripped.Spec.NodeName = pod.Spec.NodeName
	stripped.Spec.InitContainers = stripContainers(pod.Spec.InitContainers)
	stripped.Spec.Containers = stripContainers(pod.Spec.Containers)
	for i := range pod.Spec.EphemeralContainers {
		stripped.Spec.EphemeralContainers = append(stripped.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: pod.Spec.EphemeralContainers[i].Name},
		})
	}
	return stripped, nil
}

func stripContainers(all []corev1.Container) []corev1.Container {
	stripped := make([]corev1.Container, len(all))
	for i := range all {
		c := &all[i]
		stripped[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
	return stripped
}
