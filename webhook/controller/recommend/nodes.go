package recommend

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/sample"
)

// nodeSizes remembers the largest allocatable of any node, resource by resource. Nodes come and go in minutes; every
// profile asking anew would cost more than all else.
type nodeSizes struct {
	mu    sync.Mutex
	at    time.Time
	sizes map[corev1.ResourceName]sample.Amount
}

const nodesKept = 30 * time.Second

// largest returns the largest allocatable cpu, memory and ephemeral storage; a resource no node reports is absent. The
// map is not to be changed.
func (n *nodeSizes) largest(ctx context.Context, reader client.Reader, now time.Time) (map[corev1.ResourceName]sample.Amount, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if age := now.Sub(n.at); n.sizes != nil && age >= 0 && age < nodesKept {
		return n.sizes, nil
	}
	var nodes corev1.NodeList
	if err := reader.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	sizes := map[corev1.ResourceName]sample.Amount{}
	for i := range nodes.Items {
		for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			q, ok := nodes.Items[i].Status.Allocatable[r]
			if a := sample.FromQuantity(q); ok && a > sizes[r] {
				sizes[r] = a
			}
		}
	}
	n.at, n.sizes = now, sizes
	return sizes, nil
}
