package collect_test

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/collect"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
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

func TestTickSamplesEachSecond(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	r.write(idA, state{cpu: time.Second, usage: 100, anon: 60, inactive: 30, peak: 100})
	r.tick(0)
	if len(r.sink.all) != 0 {
		t.Errorf("a first reading gave %v", r.sink.all)
	}
	r.write(idA, state{cpu: 1250 * time.Millisecond, usage: 110, anon: 70, inactive: 30, peak: 110})
	if next := r.tick(time.Second); next != time.Second {
		t.Errorf("next tick after %v, want 1s", next)
	}
	want := []added{
		{"web@p", "app", sample.CPU, 0.25, time.Second, false},
		{"web@p", "app", sample.Memory, mib(80), time.Second, false},
		{"web@p", "app", sample.MemoryPeak, mib(80), time.Second, false},
	}
	if diff := cmp.Diff(want, r.sink.all, cmp.AllowUnexported(added{})); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
}

// DESIGN §5: the peak of an interval, and C34: page cache that fills up to the limit is no peak.
func TestC34MemoryPeak(t *testing.T) {
	tests := map[string]struct {
		memory        v1alpha1.MemoryMeasure
		before, after state
		want          float64
	}{
		"steady":                            {"workingSet", state{usage: 50, peak: 60}, state{usage: 50, peak: 60}, 50},
		"falls":                             {"workingSet", state{usage: 50, peak: 60}, state{usage: 40, peak: 60}, 50},
		"spike between the two":             {"workingSet", state{usage: 50, peak: 60}, state{usage: 50, peak: 90}, 90},
		"old watermark, no spike":           {"workingSet", state{usage: 10, peak: 60}, state{usage: 12, peak: 60}, 12},
		"cache fills to the limit":          {"workingSet", state{usage: 10, peak: 10}, state{usage: 64, inactive: 50, active: 4, peak: 64}, 10},
		"spike on top of cache":             {"workingSet", state{usage: 40, inactive: 30, peak: 40}, state{usage: 40, inactive: 30, peak: 60}, 30},
		"watermark reset by someone":        {"workingSet", state{usage: 40, peak: 90}, state{usage: 40, peak: 40}, 40},
		"anonymous memory alone":            {"anon", state{usage: 40, anon: 10, peak: 40}, state{usage: 50, anon: 15, peak: 50}, 15},
		"anonymous memory alone, and spike": {"anon", state{usage: 40, anon: 10, peak: 40}, state{usage: 50, anon: 15, peak: 70}, 35},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.policies.sampling.Memory = tc.memory
			r.d.SetPod(newPod(idA))
			r.write(idA, tc.before)
			r.tick(0)
			r.write(idA, tc.after)
			r.tick(time.Second)
			got, _ := r.sink.of(sample.MemoryPeak, false)
			if len(got) != 1 || got[0] != mib(tc.want) {
				t.Errorf("peak %v, want %v MiB", got, tc.want)
			}
		})
	}
}

// C23: after a counter went backwards the next sample counts from there.
func TestC23NewBaseline(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	for i, cpu := range []time.Duration{10 * time.Second, 11 * time.Second, time.Second, 1500 * time.Millisecond} {
		r.write(idA, state{cpu: cpu})
		r.tick(time.Duration(min(i, 1)) * time.Second)
	}
	if got, _ := r.sink.of(sample.CPU, false); !slices.Equal(got, []float64{1, 0.5}) {
		t.Errorf("cores %v, want 1 and 0.5", got)
	}
}

// C32: one container's files cannot be read: it is skipped with a reason, the pod's other is measured.
func TestC32UnreadableContainer(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA, idB))
	r.write(idA, state{})
	r.write(idB, state{})
	stat := filepath.Join(r.root, "memory", r.path(idA), "memory.stat")
	if err := os.WriteFile(stat, []byte("total_cache none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.tick(0)
	r.tick(time.Second)
	got := map[string]string{}
	for _, v := range r.loop.View() {
		got[v.Container] = v.State + " " + v.Reason
	}
	want := map[string]string{"app": "unreadable parsing memory.stat: total_cache: no number", "log": "measured "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if values, _ := r.sink.of(sample.Memory, false); len(values) != 1 {
		t.Errorf("%d samples, want one of the other container", len(values))
	}
	r.write(idA, state{})
	r.tick(11 * time.Second)
	r.tick(time.Second)
	if v := r.loop.View()[0]; v.State != "measured" {
		t.Errorf("readable again, but %s: %s", v.State, v.Reason)
	}
}

// What a container does before its pod is stamped is held, up to two minutes, and then sent all at once.
func TestUnstampedIsHeld(t *testing.T) {
	r := newRig(t)
	pod := newPod(idA)
	delete(pod.Annotations, v1alpha1.AnnotationPolicyRef)
	r.d.SetPod(pod)
	r.write(idA, state{})
	r.tick(0)
	for range 150 {
		r.tick(time.Second)
	}
	if len(r.sink.all) != 0 {
		t.Fatalf("%d samples sent of an unstamped pod", len(r.sink.all))
	}
	if v := r.loop.View()[0]; v.State != "waiting" || v.Held < 119 || v.Held > 122 {
		t.Errorf("%s with %d held, want two minutes' worth", v.State, v.Held)
	}
	r.d.SetPod(newPod(idA))
	r.tick(time.Second)
	if _, weight := r.sink.of(sample.CPU, false); weight < 119*time.Second || weight > 123*time.Second {
		t.Errorf("%v sent, want the last two minutes", weight)
	}
	if v := r.loop.View()[0]; v.Held != 0 {
		t.Errorf("%d still held", v.Held)
	}
}

// The start-up is kept apart, unless the container ends within it or belongs to a Job.
func TestStartup(t *testing.T) {
	tests := map[string]struct {
		job         bool
		lives       int // seconds
		wantStartup time.Duration
		wantUsage   time.Duration
	}{
		"longer than the start-up": {false, 30, 10 * time.Second, 20 * time.Second},
		"ends within it":           {false, 8, 8 * time.Second, 8 * time.Second},
		"a Job":                    {true, 30, 0, 30 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.policies.sampling.Startup = 10 * time.Second
			pod := newPod(idA)
			pod.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(start)
			if tc.job {
				yes := true
				pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: &yes}}
			}
			r.d.SetPod(pod)
			r.write(idA, state{})
			r.tick(0)
			for range tc.lives {
				r.tick(time.Second)
			}
			r.remove(idA)
			r.d.Gone(podUID, idA)
			r.tick(time.Millisecond)
			_, startup := r.sink.of(sample.CPU, true)
			_, usage := r.sink.of(sample.CPU, false)
			if startup.Round(time.Second) != tc.wantStartup || usage.Round(time.Second) != tc.wantUsage {
				t.Errorf("%v of start-up and %v of use, want %v and %v", startup, usage, tc.wantStartup, tc.wantUsage)
			}
		})
	}
}

// C20: a container whose whole life is between few readings: its use since the beginning and its watermark count, also
// when its pod's status names it only after the end.
func TestC20ShortLife(t *testing.T) {
	r := newRig(t)
	pod := newPod(idA)
	pod.Status.ContainerStatuses = nil
	r.d.SetPod(pod)
	r.tick(0)
	r.write(idA, state{cpu: 400 * time.Millisecond, usage: 50, peak: 400})
	r.tick(6 * time.Second)
	r.remove(idA)
	r.tick(time.Second)
	if len(r.sink.all) != 0 {
		t.Fatalf("sent without knowing the container: %v", r.sink.all)
	}
	pod = newPod(idA)
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ContainerID: "containerd://" + idA, StartedAt: metav1.NewTime(start.Add(5 * time.Second)),
	}}
	r.d.SetPod(pod)
	r.tick(20 * time.Second)
	peaks, _ := r.sink.of(sample.MemoryPeak, false)
	cores, weight := r.sink.of(sample.CPU, false)
	if len(peaks) == 0 || slices.Max(peaks) != mib(400) {
		t.Errorf("peaks %v, want 400 MiB", peaks)
	}
	if used := cores[0] * 6; math.Abs(used-0.4) > 0.001 || weight < 6*time.Second {
		t.Errorf("%v CPU seconds, want 0.4", used)
	}
}

func TestOOMKills(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA, idB))
	r.write(idA, state{usage: 60, peak: 60})
	r.write(idB, state{usage: 60, peak: 60})
	r.tick(0)
	r.write(idA, state{usage: 20, peak: 64, kills: 1, limitHits: 5})
	r.write(idB, state{usage: 20, peak: 60, kills: 1})
	r.tick(time.Second)
	report := r.loop.Report(r.now)
	want := []store.OOMKill{
		{Hash: "web@p", Container: "app", PodUID: string(podUID), At: r.now, Limit: 64 << 20, Usage: 64 << 20, Scope: store.ScopeContainer},
		// C31: no limit of its own was hit.
		{Hash: "web@p", Container: "log", PodUID: string(podUID), At: r.now, Limit: 64 << 20, Usage: 60 << 20, Scope: store.ScopeNode},
	}
	if diff := cmp.Diff(want, report.OOMKills, cmpopts.IgnoreFields(store.OOMKill{}, "KernelTime")); diff != "" {
		t.Errorf("kills (-want +got):\n%s", diff)
	}
	r.loop.Reported(report, []bool{false, true})
	if again := r.loop.Report(r.now).OOMKills; len(again) != 1 || again[0].Container != "app" {
		t.Errorf("after one was stored: %+v", again)
	}
}

// C42: a crash loop whose cgroup is gone before its counter is read: the pod's status tells, once.
func TestC42OOMKillByStatus(t *testing.T) {
	r := newRig(t)
	pod := newPod(idA)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *resourceMiB(32)}
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{}
	pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
		ContainerID: "containerd://" + idB, Reason: "OOMKilled", FinishedAt: metav1.NewTime(start.Add(-time.Minute)),
	}
	r.d.SetPod(pod)
	r.tick(0)
	r.d.SetPod(pod)
	r.tick(time.Second)
	kills := r.loop.Report(r.now).OOMKills
	if len(kills) != 1 || kills[0].Limit != 32<<20 || kills[0].Scope != store.ScopeContainer || !kills[0].At.Equal(start.Add(-time.Minute)) {
		t.Errorf("kills %+v, want one at the limit of 32 MiB a minute before", kills)
	}
}

func TestReport(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	r.write(idA, state{usage: 50, peak: 50})
	r.tick(0)
	r.write(idA, state{usage: 50, peak: 90, periods: 10, throttled: 4})
	r.tick(time.Second)
	r.write(idA, state{usage: 40, inactive: 10, peak: 90, periods: 20, throttled: 4})
	r.tick(time.Second)
	want := collect.Report{Live: []store.Live{{
		Hash: "web@p", PodUID: string(podUID), Container: "app", At: r.now,
		Memory: 30 << 20, MemoryMax: 90 << 20, Throttled: 0.2,
	}}}
	got := r.loop.Report(r.now)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	r.remove(idA)
	r.d.Gone(podUID, idA)
	r.tick(time.Second)
	if got := r.loop.Report(r.now); len(got.Live) != 0 || len(got.Gone) != 1 {
		t.Errorf("after its end: %+v", got)
	}
}

// A second policy with a longer interval; and a policy that changes while the container runs.
func TestIntervalOfThePolicy(t *testing.T) {
	r := newRig(t)
	r.policies.sampling.Interval = 3 * time.Second
	r.d.SetPod(newPod(idA))
	r.write(idA, state{})
	r.tick(0)
	for range 9 {
		r.tick(time.Second)
	}
	if values, weight := r.sink.of(sample.CPU, false); len(values) != 3 || weight != 9*time.Second {
		t.Errorf("%d samples over %v, want 3 over 9s", len(values), weight)
	}
	r.policies.sampling.Interval, r.policies.version = time.Second, 1
	for range 6 {
		r.tick(time.Second)
	}
	if values, weight := r.sink.of(sample.CPU, false); len(values) < 7 || weight < 13*time.Second {
		t.Errorf("%d samples over %v after the policy changed", len(values), weight)
	}
}

func TestCPUBudgetStretchesIntervals(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	r.write(idA, state{})
	r.tick(0)
	spend := func(cores float64, ticks int) (next time.Duration) {
		for range ticks {
			r.cpu += time.Duration(cores * float64(time.Second))
			next = r.tick(time.Second)
		}
		return next
	}
	if next := spend(0.01, 25); next > time.Second {
		t.Errorf("within its budget, but the next tick is after %v", next)
	}
	spend(0.08, 60)
	if v := r.loop.View()[0]; v.Interval != "10s" {
		t.Errorf("over its budget whatever the interval: %s, want the longest, 10s", v.Interval)
	}
	spend(0.001, 60)
	if v := r.loop.View()[0]; v.Interval != "1s" {
		t.Errorf("idle again, interval %s, want 1s", v.Interval)
	}
}

func TestMetricsDieWithTheirContainer(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	r.write(idA, state{cpu: 2 * time.Second, usage: 10})
	r.tick(0)
	r.tick(time.Second)
	families := gather(t, r.loop)
	for _, want := range []string{"plimsoll_container_cpu_usage_seconds_total", "plimsoll_container_memory_working_set_bytes"} {
		if !slices.Contains(families, want) {
			t.Errorf("no %s among %q", want, families)
		}
	}
	r.remove(idA)
	r.d.Gone(podUID, idA)
	r.tick(time.Second)
	for _, f := range gather(t, r.loop) {
		if strings.HasPrefix(f, "plimsoll_container_") {
			t.Errorf("%s outlived its container", f)
		}
	}
}

// Two runs of a container exist at once; the series must not be given twice.
func TestMetricsOfTwoRuns(t *testing.T) {
	r := newRig(t)
	r.d.SetPod(newPod(idA))
	r.write(idA, state{cpu: 2 * time.Second})
	r.tick(0)
	r.d.SetPod(newPod(idB))
	r.write(idB, state{cpu: time.Second})
	r.tick(time.Second)
	r.tick(time.Second)
	if n := len(r.loop.View()); n != 2 {
		t.Fatalf("%d containers, want both runs", n)
	}
	gather(t, r.loop)
}
