package admission

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// Nodes know how much the largest node offers of each resource, so that no
// request asks for what no node has. The zero Nodes know no node and bound nothing.
type Nodes struct {
	mu          sync.RWMutex
	allocatable map[string]corev1.ResourceList // by node
	largest     corev1.ResourceList            // replaced, never changed
}

// NewNodes returns Nodes that follow a cache's Node objects.
func NewNodes(ctx context.Context, c cache.Cache) (*Nodes, error) {
	informer, err := c.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	n := &Nodes{}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { n.put(o) },
		UpdateFunc: func(_, o any) { n.put(o) },
		DeleteFunc: func(o any) {
			if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if node, ok := o.(*corev1.Node); ok {
				n.Set(node.Name, nil)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	return n, nil
}

func (n *Nodes) put(o any) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	if node.Labels[corev1.LabelOSStable] == "windows" {
		n.Set(node.Name, nil)
		return
	}
	n.Set(node.Name, node.Status.Allocatable)
}

// Set records what a node offers; nil forgets the node.
func (n *Nodes) Set(name string, allocatable corev1.ResourceList) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if same(n.allocatable[name], allocatable) {
		return // a heartbeat
	}
	if n.allocatable == nil {
		n.allocatable = map[string]corev1.ResourceList{}
	}
	if n.allocatable[name] = allocatable; len(allocatable) == 0 {
		delete(n.allocatable, name)
	}
	largest := corev1.ResourceList{}
	for _, list := range n.allocatable {
		for _, res := range sized {
			if q, ok := list[res]; ok && q.Cmp(largest[res]) > 0 {
				largest[res] = q
			}
		}
	}
	n.largest = largest
}

// sized are the resources that recommendations set.
var sized = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

func same(a, b corev1.ResourceList) bool {
	for _, res := range sized {
		qa, hasA := a[res]
		qb, hasB := b[res]
		if hasA != hasB || qa.Cmp(qb) != 0 {
			return false
		}
	}
	return true
}

// Largest returns, for each resource, the most that any node offers. It must
// not be changed.
func (n *Nodes) Largest() corev1.ResourceList {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.largest
}
