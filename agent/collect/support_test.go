package collect_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/collect"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

var (
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	idA   = strings.Repeat("a", 64)
	idB   = strings.Repeat("b", 64)
)

const podUID = types.UID("0d7ee1f5-7b3a-4a9c-9e58-0f9a3c1c7a11")

// added is one call of the sink.
type added struct {
	hash, container string
	resource        sample.Resource
	value           float64
	weight          time.Duration
	startup         bool
}

// recorder is a Sink that remembers.
type recorder struct {
	mu  sync.Mutex
	all []added
}

func (r *recorder) Add(hash, container string, res sample.Resource, value float64, weight time.Duration, startup bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, added{hash, container, res, value, weight, startup})
}

// of returns the values of a resource, and the time they stand for.
func (r *recorder) of(res sample.Resource, startup bool) (values []float64, weight time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.all {
		if a.resource == res && a.startup == startup {
			values = append(values, a.value)
			weight += a.weight
		}
	}
	return values, weight
}

// policies answers with one setting for all.
type policies struct {
	sampling policy.Sampling
	version  uint64
}

func (p *policies) Sampling(string) policy.Sampling { return p.sampling }
func (p *policies) Hash(labels map[string]string, ref string) string {
	return labels["app"] + "@" + ref
}
func (p *policies) Version() uint64 { return p.version }

// rig is a loop over a cgroup tree of plain files which the test writes, in the place of the kernel.
type rig struct {
	t        *testing.T
	root     string
	now      time.Time
	cpu      time.Duration
	d        *discovery.Discovery
	sink     *recorder
	policies *policies
	loop     *collect.Loop
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, root: t.TempDir(), now: start, sink: &recorder{}, policies: &policies{}}
	r.policies.sampling = policy.DefaultSettings().Sampling
	for _, h := range []string{"cpu", "cpuacct", "memory"} {
		if err := os.Mkdir(filepath.Join(r.root, h), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	files, err := cgroup.NewFS(r.root)
	if err != nil {
		t.Fatal(err)
	}
	r.d = discovery.New(discovery.NewTree(files.Tree()))
	r.loop = collect.NewLoop(files, r.d, r.policies, r.sink, collect.Options{
		Interval: time.Second, CPUBudget: 0.02,
		Clock:   func() time.Time { return r.now },
		CPUTime: func() time.Duration { return r.cpu },
	}, slog.New(slog.DiscardHandler))
	return r
}

func (r *rig) path(id string) string { return "kubepods/burstable/pod" + string(podUID) + "/" + id }

// state is what the files say of a container; memory in MiB.
type state struct {
	cpu                                  time.Duration
	usage, anon, inactive, active, peak  int
	periods, throttled, kills, limitHits int
}

func (r *rig) write(id string, s state) {
	r.t.Helper()
	files := map[string]string{
		"cpuacct/cpuacct.usage":            fmt.Sprintln(int64(s.cpu)),
		"cpu/cpu.stat":                     fmt.Sprintf("nr_periods %d\nnr_throttled %d\nthrottled_time 0\n", s.periods, s.throttled),
		"cpu/cpu.cfs_quota_us":             "-1\n",
		"memory/memory.usage_in_bytes":     fmt.Sprintln(s.usage << 20),
		"memory/memory.max_usage_in_bytes": fmt.Sprintln(s.peak << 20),
		"memory/memory.failcnt":            fmt.Sprintln(s.limitHits),
		"memory/memory.limit_in_bytes":     fmt.Sprintln(64 << 20),
		"memory/memory.oom_control":        fmt.Sprintf("oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", s.kills),
		"memory/memory.stat": fmt.Sprintf("total_cache %d\ntotal_rss %d\ntotal_mapped_file 0\ntotal_inactive_file %d\ntotal_active_file %d\n",
			(s.inactive+s.active)<<20, s.anon<<20, s.inactive<<20, s.active<<20),
	}
	for name, text := range files {
		h, file := filepath.Split(name)
		dir := filepath.Join(r.root, h, r.path(id))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) remove(id string) {
	r.t.Helper()
	for _, h := range []string{"cpu", "cpuacct", "memory"} {
		if err := os.RemoveAll(filepath.Join(r.root, h, r.path(id))); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) tick(after time.Duration) time.Duration {
	r.now = r.now.Add(after)
	return r.loop.Tick()
}

func newPod(ids ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", UID: podUID,
			Labels:      map[string]string{v1alpha1.LabelMode: "measure", "app": "web"},
			Annotations: map[string]string{v1alpha1.AnnotationPolicyRef: "p"},
		},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable},
	}
	for i, id := range ids {
		name := []string{"app", "log"}[i]
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: name, ContainerID: "containerd://" + id,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start.Add(-time.Hour))}},
		})
	}
	return pod
}

var mib = func(n float64) float64 { return n * (1 << 20) }

// gather collects everything once, failing on inconsistent metrics, and returns the names.
func gather(t *testing.T, c prometheus.Collector) (names []string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		names = append(names, f.GetName())
	}
	return names
}

func resourceMiB(n int64) *resource.Quantity { return resource.NewQuantity(n<<20, resource.BinarySI) }
