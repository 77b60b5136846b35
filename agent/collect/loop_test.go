package collect_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/agent/collect"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

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
