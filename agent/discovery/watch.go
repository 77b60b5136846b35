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
