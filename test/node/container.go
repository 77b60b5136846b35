package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Cgroup is what the kernel says about one container.
type Cgroup struct {
	// CPULimit is the CFS quota in cores; 0 means none.
	CPULimit float64
	// CPUWeight is the share of CPU under contention: cpu.shares on cgroup v1,
	// cpu.weight on v2.
	CPUWeight uint64
	// MemoryLimit is the hard limit in bytes; 0 means none.
	MemoryLimit uint64
	// Memory is the memory charged to the container in bytes, page cache included.
	Memory uint64
	// CPUSeconds is the CPU time used since the container started.
	CPUSeconds float64
}

// ContainerPath is the cgroup of a pod's running container, relative to the
// root of each hierarchy.
func (c *Cluster) ContainerPath(pod *corev1.Pod, container string) (string, error) {
	for _, s := range append(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses...) {
		_, id, ok := strings.Cut(s.ContainerID, "://")
		if s.Name != container || !ok {
			continue
		}
		parts := []string{c.cgroup, "kubepods", strings.ToLower(string(pod.Status.QOSClass)), "pod" + string(pod.UID), id}
		if pod.Status.QOSClass == corev1.PodQOSGuaranteed {
			parts = append(parts[:2], parts[3:]...)
		}
		return filepath.Join(parts...), nil
	}
	return "", fmt.Errorf("container %s of pod %s/%s has not started", container, pod.Namespace, pod.Name)
}

// ReadCgroup reads the kernel's values of a running container.
func (c *Cluster) ReadCgroup(pod *corev1.Pod, container string) (Cgroup, error) {
	path, err := c.ContainerPath(pod, container)
	if err != nil {
		return Cgroup{}, err
	}
	if c.unified {
		return readV2(filepath.Join(CgroupRoot, path))
	}
	return readV1(path)
}

// CgroupOf is ReadCgroup for a pod known by its name.
func (c *Cluster) CgroupOf(ctx context.Context, namespace, pod, container string) (Cgroup, error) {
	p, err := c.Pod(ctx, namespace, pod)
	if err != nil {
		return Cgroup{}, err
	}
	return c.ReadCgroup(p, container)
}

func readV1(path string) (Cgroup, error) {
	r := reader{}
	quota := r.number(filepath.Join(CgroupRoot, "cpu", path, "cpu.cfs_quota_us"))
	period := r.number(filepath.Join(CgroupRoot, "cpu", path, "cpu.cfs_period_us"))
	g := Cgroup{
		CPUWeight:   uint64(r.number(filepath.Join(CgroupRoot, "cpu", path, "cpu.shares"))),
		MemoryLimit: uint64(r.number(filepath.Join(CgroupRoot, "memory", path, "memory.limit_in_bytes"))),
		Memory:      uint64(r.number(filepath.Join(CgroupRoot, "memory", path, "memory.usage_in_bytes"))),
		CPUSeconds:  r.number(filepath.Join(CgroupRoot, "cpuacct", path, "cpuacct.usage")) / 1e9,
	}
	if quota > 0 {
		g.CPULimit = quota / period
	}
	if g.MemoryLimit >= 1<<62 { // v1 writes "none" as the largest number of pages
		g.MemoryLimit = 0
	}
	return g, r.err
}

func readV2(dir string) (Cgroup, error) {
	r := reader{}
	quota, period, _ := strings.Cut(r.text(filepath.Join(dir, "cpu.max")), " ")
	g := Cgroup{
		CPUWeight:   uint64(r.number(filepath.Join(dir, "cpu.weight"))),
		MemoryLimit: uint64(r.number(filepath.Join(dir, "memory.max"))),
		Memory:      uint64(r.number(filepath.Join(dir, "memory.current"))),
	}
	if quota != "max" {
		g.CPULimit = r.parse("cpu.max", quota) / r.parse("cpu.max", period)
	}
	for line := range strings.Lines(r.text(filepath.Join(dir, "cpu.stat"))) {
		if usec, ok := strings.CutPrefix(line, "usage_usec "); ok {
			g.CPUSeconds = r.parse("cpu.stat", strings.TrimSpace(usec)) / 1e6
		}
	}
	return g, r.err
}

// reader reads small files and keeps the first error.
type reader struct{ err error }

func (r *reader) text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("reading a cgroup file: %w", err)
	}
	return strings.TrimSpace(string(b))
}

// number reads a file of one number; "max" is 0.
func (r *reader) number(path string) float64 {
	text := r.text(path)
	if text == "max" || r.err != nil {
		return 0
	}
	return r.parse(path, text)
}

func (r *reader) parse(path, text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("parsing %s: %w", path, err)
	}
	return v
}
