package fakekubelet

import (
	"cmp"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/utils/ptr"
)

// containerManager is the kubelet's stub with pod cgroups kept in memory, which
// a resize reads and writes.
type containerManager struct {
	cm.ContainerManager
	pods *podCgroups
}

func newContainerManager() *containerManager {
	stub := cm.NewStubContainerManager()
	return &containerManager{
		ContainerManager: stub,
		pods:             &podCgroups{PodContainerManager: stub.NewPodContainerManager(), configs: map[types.UID]*cm.ResourceConfig{}},
	}
}

// NewPodContainerManager implements cm.ContainerManager.
func (c *containerManager) NewPodContainerManager() cm.PodContainerManager { return c.pods }

type podCgroups struct {
	cm.PodContainerManager
	mu      sync.Mutex
	configs map[types.UID]*cm.ResourceConfig
}

// GetPodCgroupConfig returns what was last written to a pod's cgroup, at first
// what the kubelet would have made it with.
func (p *podCgroups) GetPodCgroupConfig(pod *corev1.Pod, _ corev1.ResourceName) (*cm.ResourceConfig, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := *p.config(pod)
	return &c, nil
}

// config expects the lock to be held.
func (p *podCgroups) config(pod *corev1.Pod) *cm.ResourceConfig {
	const cfsPeriod = 100_000 // microseconds, the kernel's default
	c := p.configs[pod.UID]
	if c == nil {
		c = cm.ResourceConfigForPod(pod, true, cfsPeriod, false, kubeletconfig.NoneMemoryReservationPolicy)
		// A cgroup without limits reads as unlimited, never as nothing.
		c.Memory = cmp.Or(c.Memory, ptr.To[int64](-1))
		c.CPUQuota = cmp.Or(c.CPUQuota, ptr.To[int64](-1))
		c.CPUPeriod = cmp.Or(c.CPUPeriod, ptr.To[uint64](cfsPeriod))
		p.configs[pod.UID] = c
	}
	return c
}

// SetPodCgroupConfig changes the fields of a pod's cgroup that are set.
func (p *podCgroups) SetPodCgroupConfig(_ klog.Logger, pod *corev1.Pod, to *cm.ResourceConfig) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.config(pod)
	if to.Memory != nil {
		c.Memory = to.Memory
	}
	if to.CPUShares != nil {
		c.CPUShares = to.CPUShares
	}
	if to.CPUQuota != nil {
		c.CPUQuota = to.CPUQuota
	}
	if to.CPUPeriod != nil {
		c.CPUPeriod = to.CPUPeriod
	}
	return nil
}
