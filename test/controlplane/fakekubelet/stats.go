package fakekubelet

import (
	"context"
	"fmt"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
)

// ListContainerStats implements the CRI for a filter by sandbox, the only one
// the kubelet uses.
func (r *runtime) ListContainerStats(_ context.Context, filter *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	r.Lock()
	defer r.Unlock()
	var stats []*cri.ContainerStats
	for _, c := range r.Containers {
		if filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == c.SandboxID {
			stats = append(stats, r.stats(c))
		}
	}
	return stats, nil
}

// PodSandboxStats implements the CRI.
func (r *runtime) PodSandboxStats(_ context.Context, id string) (*cri.PodSandboxStats, error) {
	r.Lock()
	defer r.Unlock()
	s := r.Sandboxes[id]
	if s == nil {
		return nil, fmt.Errorf("pod sandbox %q not found", id)
	}
	return r.podStats(s), nil
}

// ListPodSandboxStats implements the CRI without its filter, which the kubelet
// does not use.
func (r *runtime) ListPodSandboxStats(context.Context, *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	r.Lock()
	defer r.Unlock()
	var stats []*cri.PodSandboxStats
	for _, s := range r.Sandboxes {
		stats = append(stats, r.podStats(s))
	}
	return stats, nil
}

// stats expects the lock to be held, as podStats does.
func (r *runtime) stats(c *apitest.FakeContainer) *cri.ContainerStats {
	return &cri.ContainerStats{
		Attributes: &cri.ContainerAttributes{Id: c.Id, Metadata: c.Metadata, Labels: c.Labels, Annotations: c.Annotations},
		Cpu:        &cri.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &cri.UInt64Value{}},
		Memory:     memoryUsage(r.inUse(c)),
	}
}

func (r *runtime) podStats(s *apitest.FakePodSandbox) *cri.PodSandboxStats {
	linux := &cri.LinuxPodSandboxStats{
		Cpu: &cri.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: &cri.UInt64Value{}},
	}
	var bytes uint64
	for _, c := range r.Containers {
		if c.SandboxID == s.Id {
			bytes += r.inUse(c)
			linux.Containers = append(linux.Containers, r.stats(c))
		}
	}
	linux.Memory = memoryUsage(bytes)
	return &cri.PodSandboxStats{
		Attributes: &cri.PodSandboxAttributes{Id: s.Id, Metadata: s.Metadata, Labels: s.Labels, Annotations: s.Annotations},
		Linux:      linux,
	}
}

// inUse returns a container's memory in bytes; one that does not run has none.
func (r *runtime) inUse(c *apitest.FakeContainer) uint64 {
	if c.State != cri.ContainerState_CONTAINER_RUNNING {
		return 0
	}
	if n, ok := r.memory[c.Id]; ok {
		return n
	}
	return memoryInUse
}

func memoryUsage(bytes uint64) *cri.MemoryUsage {
	return &cri.MemoryUsage{
		Timestamp:       time.Now().UnixNano(),
		UsageBytes:      &cri.UInt64Value{Value: bytes},
		WorkingSetBytes: &cri.UInt64Value{Value: bytes},
		RssBytes:        &cri.UInt64Value{Value: bytes},
	}
}
