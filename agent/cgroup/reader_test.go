package cgroup_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/agent/cgroup"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func read(t *testing.T, f cgroup.FS, path string) (cgroup.Reading, cgroup.Pressure) {
	t.Helper()
	r, err := f.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	buf := make([]byte, cgroup.BufferSize)
	var got cgroup.Reading
	if err := r.Read(now, buf, &got); err != nil {
		t.Fatal(err)
	}
	p, err := r.ReadPressure(buf)
	if err != nil {
		t.Fatal(err)
	}
	return got, p
}

func TestRead(t *testing.T) {
	v1 := cgroup.Reading{
		At:  now,
		Has: cgroup.HasThrottling | cgroup.HasStat | cgroup.HasPeak | cgroup.HasOOM | cgroup.HasOwnOOM,
		CPU: 677036389, Periods: 36, ThrottledPeriods: 31, Throttled: 1170231972,
		MemoryUsage: 32886784, Anon: 21024768, File: 11583488, InactiveFile: 7274496, ActiveFile: 4308992, Peak: 64 << 20,
		OOMKills: 1, OwnOOMKills: 1, LimitHits: 2067,
	}
	hybridStall := cgroup.Pressure{
		CPUSome: 1519654 * time.Microsecond, CPUFull: 1397404 * time.Microsecond,
		MemorySome: 49087 * time.Microsecond, MemoryFull: 29050 * time.Microsecond,
	}
	v2 := cgroup.Reading{
		At:  now,
		Has: cgroup.HasThrottling | cgroup.HasStat | cgroup.HasSlab | cgroup.HasPeak | cgroup.HasOOM | cgroup.HasOwnOOM,
		CPU: 5865443 * time.Microsecond, Periods: 314, ThrottledPeriods: 290, Throttled: 23610939 * time.Microsecond,
		MemoryUsage: 32948224, Anon: 23224320, File: 9306112, InactiveFile: 7077888, ActiveFile: 2228224,
		MappedFile: 2 << 20, SlabReclaimable: 244600, Peak: 64 << 20,
		OOMKills: 3, OwnOOMKills: 1, LimitHits: 1,
	}
	v2Stall := cgroup.Pressure{
		CPUSome: 26502691 * time.Microsecond, CPUFull: 23796099 * time.Microsecond,
		MemorySome: 3846576 * time.Microsecond, MemoryFull: 1037426 * time.Microsecond,
	}
	v2At61 := v2
	v2At61.CPU, v2At61.Periods, v2At61.ThrottledPeriods = 4668645*time.Microsecond, 242, 225
	v2At61.Throttled = 17588314 * time.Microsecond
	v2At61.Peak = 64<<20 + 4096 // a page beyond the limit, as kernels do
	v2At61.MemoryUsage, v2At61.Anon, v2At61.File = 31375360, 21020672, 9969664
	v2At61.InactiveFile, v2At61.ActiveFile, v2At61.SlabReclaimable = 5775360, 4194304, 243704
	v2At61Stall := cgroup.Pressure{
		CPUSome: 19269156 * time.Microsecond, CPUFull: 17776878 * time.Microsecond,
		MemorySome: 3728040 * time.Microsecond, MemoryFull: 1105162 * time.Microsecond,
	}
	old := v2At61
	old.Has &^= cgroup.HasPeak | cgroup.HasOwnOOM
	old.Peak, old.OwnOOMKills, old.LimitHits = 0, 0, 3

	limits := cgroup.Limits{CPU: 0.2, Memory: 64 << 20}
	tests := map[string]struct {
		wantMode       cgroup.Mode
		want           cgroup.Reading
		wantPressure   cgroup.Pressure
		wantWorkingSet uint64
		wantLimits     cgroup.Limits
	}{
		"v1":      {cgroup.V1, v1, cgroup.Pressure{}, 21303296, limits},
		"hybrid":  {cgroup.Hybrid, v1, hybridStall, 21303296, limits},
		"v2":      {cgroup.V2, v2, v2Stall, 25494664, limits},
		"v2-6.1":  {cgroup.V2, v2At61, v2At61Stall, 23259144, limits},
		"v2-5.15": {cgroup.V2, old, cgroup.Pressure{}, 23259144, cgroup.Limits{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for kind, descriptors := range map[string]int{"kept open": 100, "opened each time": 0} {
				f, err := cgroup.NewFS(filepath.Join("testdata", name))
				if err != nil {
					t.Fatal(err)
				}
				f.LimitDescriptors(descriptors)
				if f.Mode() != tc.wantMode {
					t.Errorf("mode %s, want %s", f.Mode(), tc.wantMode)
				}
				got, pressure := read(t, f, "pod/web")
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: reading (-want +got):\n%s", kind, diff)
				}
				if diff := cmp.Diff(tc.wantPressure, pressure); diff != "" {
					t.Errorf("%s: pressure (-want +got):\n%s", kind, diff)
				}
				if ws := got.WorkingSet(); ws != tc.wantWorkingSet {
					t.Errorf("%s: working set %d, want %d", kind, ws, tc.wantWorkingSet)
				}
				limits, err := f.Limits("pod/web")
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.wantLimits, limits); diff != "" {
					t.Errorf("limits (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestNewFSRefuses(t *testing.T) {
	empty := t.TempDir()
	onlyCPU := t.TempDir()
	if err := os.Mkdir(filepath.Join(onlyCPU, "cpuacct"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ root, want string }{
		"no directory":         {filepath.Join(empty, "nowhere"), "no such file"},
		"no controllers":       {empty, "no cpu and memory controller"},
		"no memory controller": {onlyCPU, "no memory controller"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := cgroup.NewFS(tc.root)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// C32: one container's files cannot be read, the error names which; a container that is gone is told apart.
func TestC32OpenNamesTheFile(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("testdata/v1")); err != nil {
		t.Fatal(err)
	}
	f, err := cgroup.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open("pod/other"); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("absent cgroup: got %v, want ErrGone", err)
	}
	if err := os.Remove(filepath.Join(root, "memory/pod/web/memory.stat")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open("pod/web"); err == nil || errors.Is(err, cgroup.ErrGone) || !strings.Contains(err.Error(), "memory.stat") {
		t.Errorf("absent file: got %v, want an error naming memory.stat", err)
	}
	if err := os.WriteFile(filepath.Join(root, "memory/pod/web/memory.stat"), []byte("total_cache x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := f.Open("pod/web")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var out cgroup.Reading
	if err := r.Read(now, make([]byte, cgroup.BufferSize), &out); err == nil || !strings.Contains(err.Error(), "memory.stat: total_cache") {
		t.Errorf("garbage: got %v, want an error naming memory.stat and total_cache", err)
	}
	if err := r.Read(now, make([]byte, 16), &out); err == nil || !strings.Contains(err.Error(), "longer than the buffer") {
		t.Errorf("short buffer: got %v", err)
	}
}
