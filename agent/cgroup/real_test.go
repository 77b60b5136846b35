package cgroup_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/cgroup/cgrouptest"
)

func TestMain(m *testing.M) { cgrouptest.Main(m) }

// probe reads a real cgroup at will.
type probe struct {
	t   *testing.T
	r   *cgroup.Reader
	buf []byte
}

func newProbe(t *testing.T, g *cgrouptest.Group) *probe {
	t.Helper()
	r, err := g.FS.Open(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &probe{t: t, r: r, buf: make([]byte, cgroup.BufferSize)}
}

func (p *probe) read() cgroup.Reading {
	p.t.Helper()
	var out cgroup.Reading
	if err := p.r.Read(time.Now(), p.buf, &out); err != nil {
		p.t.Fatal(err)
	}
	return out
}

func between(t *testing.T, a, b cgroup.Reading) cgroup.Sample {
	t.Helper()
	s, err := cgroup.Between(&a, &b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// The CPU time of samples adds up to the time the hog says it ran, as the kernel's own file has it.
func TestCPUSecondsOfAHog(t *testing.T) {
	g := cgrouptest.New(t)
	p := newProbe(t, g)
	first := p.read()
	w := g.Start("hog", "300ms")
	prev, sum := first, time.Duration(0)
	for range 20 {
		time.Sleep(50 * time.Millisecond) // the interval of this sampler, nothing waits on it
		cur := p.read()
		s := between(t, prev, cur)
		sum += time.Duration(s.CPU * float64(s.Over))
		prev = cur
	}
	w.Reached()
	last := p.read()
	s := between(t, prev, last)
	sum += time.Duration(s.CPU * float64(s.Over))
	kernel := last.CPU - first.CPU
	if ratio := float64(sum) / float64(kernel); math.Abs(ratio-1) > 0.01 {
		t.Errorf("samples add up to %v, the kernel counted %v", sum, kernel)
	}
	if kernel < 290*time.Millisecond {
		t.Errorf("the kernel counted only %v for a hog of 300 ms", kernel)
	}
}

func TestThrottlingUnderAQuota(t *testing.T) {
	g := cgrouptest.New(t)
	g.LimitCPU(2 * time.Millisecond)
	p := newProbe(t, g)
	first := p.read()
	w := g.Start("hog", "60ms")
	w.Reached()
	s := between(t, first, p.read())
	if s.Periods < 5 || s.ThrottledPeriods < 4 || s.ThrottledPeriods > s.Periods || s.Throttled == 0 {
		t.Errorf("under a quota of 0.02 cores: %d of %d periods throttled for %v", s.ThrottledPeriods, s.Periods, s.Throttled)
	}
	if s.CPU > 0.03 {
		t.Errorf("%.3f cores used under a quota of 0.02", s.CPU)
	}
	limits, err := g.FS.Limits(g.Path)
	if err != nil || limits.CPU != 0.02 {
		t.Errorf("limits %+v, %v; want 0.02 cores", limits, err)
	}
}

func TestMemoryOfAnEater(t *testing.T) {
	g := cgrouptest.New(t)
	p := newProbe(t, g)
	before := p.read()
	w := g.Start("eat", fmt.Sprint(80<<20))
	w.Reached()
	s := between(t, before, p.read())
	if ws := mib(s.WorkingSet); ws < 80 || ws > 100 {
		t.Errorf("working set %.1f MiB with 80 MiB held", ws)
	}
	if anon := mib(s.Anon); anon < 80 || anon > 95 {
		t.Errorf("anonymous %.1f MiB with 80 MiB held", anon)
	}
	if !s.PeakRose || s.Peak < s.WorkingSet {
		t.Errorf("watermark %.1f MiB (rose: %v) below the working set %.1f MiB", mib(s.Peak), s.PeakRose, mib(s.WorkingSet))
	}
}

// C22: reading files fills the page cache, which raises usage and not the memory figure.
func TestC22PageCacheIsNoMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, bytes.Repeat([]byte{7}, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big")
	writeBig(t, big, 100)
	g := cgrouptest.New(t)
	p := newProbe(t, g)
	first := g.Start("read", file)
	first.Reached()
	small := p.read()
	if err := first.Stop(); err != nil {
		t.Log(err)
	}
	w := g.Start("read", big)
	w.Reached()
	large := p.read()
	if grew := mib(large.MemoryUsage) - mib(small.MemoryUsage); grew < 90 {
		t.Fatalf("usage grew by %.1f MiB only: the page cache of 100 MiB was not charged here", grew)
	}
	if grew := mib(large.WorkingSet()) - mib(small.WorkingSet()); grew > 5 {
		t.Errorf("working set grew by %.1f MiB for reading a 100 MiB file twice", grew)
	}
	if grew := mib(large.Anon) - mib(small.Anon); grew > 5 {
		t.Errorf("anonymous memory grew by %.1f MiB for reading files", grew)
	}
}

// writeBig writes a file whose pages are in no cgroup's cache: dropped before the test reads it.
func writeBig(t *testing.T, path string, mib int) {
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
	if err := dropCache(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// C30: the kill of a child counts while the container lives on, and the limit is known to be what was hit.
func TestC30OOMKillOfAChild(t *testing.T) {
	g := cgrouptest.New(t)
	g.LimitMemory(64 << 20)
	p := newProbe(t, g)
	before := p.read()
	w := g.Start("child", "eat", fmt.Sprint(200<<20))
	w.Reached()
	s := between(t, before, p.read())
	if s.OOMKills != 1 || s.OwnOOMKills != 1 || !s.LimitHit {
		t.Errorf("%d kills (%d own), limit hit: %v; want 1, 1, true", s.OOMKills, s.OwnOOMKills, s.LimitHit)
	}
	if limits, err := g.FS.Limits(g.Path); err != nil || limits.Memory != 64<<20 {
		t.Errorf("limits %+v, %v; want 64 MiB", limits, err)
	}
}

// C33: what runs in cgroups inside the container's is its use.
func TestC33NestedCgroupsCount(t *testing.T) {
	g := cgrouptest.New(t)
	inner := g.Child("container").Child("app.service")
	p := newProbe(t, g)
	before := p.read()
	hog := inner.Start("hog", "50ms")
	eat := inner.Start("eat", fmt.Sprint(50<<20))
	eat.Reached()
	hog.Reached()
	after := p.read()
	own := newProbe(t, inner).read()
	if used := after.CPU - before.CPU; used < own.CPU*99/100 || own.CPU == 0 {
		t.Errorf("container used %v, the cgroup inside it %v", used, own.CPU)
	}
	if after.WorkingSet() < 50<<20 {
		t.Errorf("working set %.1f MiB with 50 MiB held inside", mib(after.WorkingSet()))
	}
}

func TestGoneWhileOpen(t *testing.T) {
	g := cgrouptest.New(t)
	p := newProbe(t, g)
	p.read()
	g.Remove()
	var out cgroup.Reading
	if err := p.r.Read(time.Now(), p.buf, &out); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("reading a removed cgroup: %v, want ErrGone", err)
	}
	if _, err := g.FS.Limits(g.Path); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("limits of a removed cgroup: %v, want ErrGone", err)
	}
	if g.FS.Exists(g.Path) {
		t.Error("a removed cgroup exists")
	}
}
