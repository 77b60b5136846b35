package collect_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/cgroup/cgrouptest"
	"plimsoll.dev/agent/collect"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

func TestMain(m *testing.M) { cgrouptest.Main(m) }

// realRig is a loop over the machine's own cgroups. Time is real; the test drives the ticks, ten a second.
type realRig struct {
	t    *testing.T
	d    *discovery.Discovery
	sink *recorder
	loop *collect.Loop
}

// newRealRig makes the cgroup of a pod, in which the test makes containers when it likes.
func newRealRig(t *testing.T) (*realRig, *cgrouptest.Group) {
	t.Helper()
	root := cgrouptest.New(t)
	pod := root.Child("kubepods").Child("burstable").Child("pod" + string(podUID))
	r := &realRig{t: t, d: discovery.New(discovery.NewTree(root.FS.Tree())), sink: &recorder{}}
	p := &policies{sampling: policy.DefaultSettings().Sampling}
	p.sampling.Interval, p.sampling.Startup = tickEvery, 0
	r.loop = collect.NewLoop(root.FS, r.d, p, r.sink, collect.Options{Interval: tickEvery}, slog.New(slog.DiscardHandler))
	r.d.SetPod(newPod(idA))
	r.loop.Tick()
	return r, pod
}

const tickEvery = 100 * time.Millisecond

// during ticks until done is closed, and once more.
func (r *realRig) during(done <-chan struct{}) {
	for {
		select {
		case <-done:
			<-time.After(tickEvery) // the container is due once more
			r.loop.Tick()
			return
		case <-time.After(tickEvery):
			r.loop.Tick()
		}
	}
}

// work runs f while ticking.
func (r *realRig) work(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	r.during(done)
}

func (r *realRig) largest(res sample.Resource) float64 {
	values, _ := r.sink.of(res, false)
	if len(values) == 0 {
		r.t.Fatalf("no sample of %s", res)
	}
	return slices.Max(values) / (1 << 20)
}

// What reaches the sink adds up to the CPU seconds the kernel counted, the container's beginning included.
func TestCPUSecondsReachTheSink(t *testing.T) {
	r, pod := newRealRig(t)
	c := pod.Child(idA)
	r.work(func() { c.Start("hog", "300ms").Reached() })
	reader, err := c.FS.Open(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var kernel cgroup.Reading
	if err := reader.Read(time.Now(), make([]byte, cgroup.BufferSize), &kernel); err != nil {
		t.Fatal(err)
	}
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	var used float64
	for _, a := range r.sink.all {
		if a.resource == sample.CPU {
			used += a.value * a.weight.Seconds()
		}
	}
	if ratio := used / kernel.CPU.Seconds(); ratio < 0.99 || ratio > 1.01 {
		t.Errorf("%.4f CPU seconds in the sink, the kernel counted %.4f", used, kernel.CPU.Seconds())
	}
}

// C20: the peak of a container that lives shortly, and C21: of a spike that is over before it can be sampled.
func TestC20C21PeakOfAShortSpike(t *testing.T) {
	r, pod := newRealRig(t)
	c := pod.Child(idA)
	w := c.Start("eat", fmt.Sprint(400<<20))
	w.Reached()
	if err := w.Stop(); err != nil {
		t.Log(err)
	}
	r.loop.Tick()
	if peak := r.largest(sample.MemoryPeak); peak < 400 || peak > 440 {
		t.Errorf("peak %.0f MiB, want the 400 MiB held before the first sample", peak)
	}
	if memory := r.largest(sample.Memory); memory > 50 {
		t.Errorf("memory %.0f MiB although nothing was held when it was sampled", memory)
	}
}

// C34: a 64 MiB limit and a program reading a 300 MB file: neither memory nor its peak rises. C22 likewise.
func TestC34PageCacheUnderALimit(t *testing.T) {
	small, big := filepath.Join(t.TempDir(), "small"), filepath.Join(t.TempDir(), "big")
	writeUncached(t, small, 1)
	writeUncached(t, big, 300)
	r, pod := newRealRig(t)
	c := pod.Child(idA)
	c.LimitMemory(64 << 20)
	// What the program itself takes, whatever it reads.
	var w *cgrouptest.Worker
	r.work(func() {
		w = c.Start("read", small)
		w.Reached()
	})
	memory, peak := r.largest(sample.Memory), r.largest(sample.MemoryPeak)
	if err := w.Stop(); err != nil {
		t.Log(err)
	}
	r.work(func() { c.Start("read", big).Reached() })
	if usage := r.loop.View()[0].MemoryUsage / (1 << 20); usage < 50 {
		t.Fatalf("usage %.0f MiB: the page cache did not fill the limit, so this shows nothing", usage)
	}
	if now := r.largest(sample.Memory); now > memory+5 {
		t.Errorf("memory rose from %.1f to %.1f MiB by reading a file", memory, now)
	}
	if now := r.largest(sample.MemoryPeak); now > peak+10 {
		t.Errorf("peak rose from %.1f to %.1f MiB by reading a file", peak, now)
	}
}

// writeUncached writes a file of which no page is cached.
func writeUncached(t *testing.T, path string, mib int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	chunk := bytes.Repeat([]byte{7}, 1<<20)
	for range mib {
		if _, err := f.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// C30: an OOM kill of a child while the container lives is a kill of the container, at its limit.
func TestC30KillReachesTheReport(t *testing.T) {
	r, pod := newRealRig(t)
	c := pod.Child(idA)
	c.LimitMemory(64 << 20)
	r.work(func() { c.Start("child", "eat", fmt.Sprint(200<<20)).Reached() })
	kills := r.loop.Report(time.Now()).OOMKills
	if len(kills) != 1 || kills[0].Limit != 64<<20 || kills[0].Scope != store.ScopeContainer || kills[0].Container != "app" {
		t.Errorf("kills %+v, want one of app at 64 MiB", kills)
	}
	if v := r.loop.View()[0]; v.OOMKills != 1 || v.State != "measured" {
		t.Errorf("after the kill: %+v", v)
	}
}

// A container vanishes between two samples, with its cgroup: nothing fails, and its name can come later.
func TestContainerVanishesAndComesBack(t *testing.T) {
	r, pod := newRealRig(t)
	for _, id := range []string{idA, idB} {
		c := pod.Child(id)
		w := c.Start("eat", fmt.Sprint(10<<20))
		w.Reached()
		r.loop.Tick()
		_ = w.Stop()
		c.Remove()
		r.loop.Tick()
		r.loop.Tick()
		if n := len(r.loop.View()); n != 0 {
			t.Fatalf("%d containers left", n)
		}
		status := newPod(idA)
		status.Status.ContainerStatuses[0].ContainerID = "containerd://" + idB
		status.Status.ContainerStatuses[0].State = corev1.ContainerState{}
		r.d.SetPod(status)
	}
	r.loop.Tick()
	if values, _ := r.sink.of(sample.Memory, false); len(values) != 2 {
		t.Errorf("%d samples, want one of each run", len(values))
	}
}
