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
		CPU: 354032432, Periods: 19, ThrottledPeriods: 16, Throttled: 1036013016,
		MemoryUsage: 520192, File: 4096, InactiveFile: 4096, Peak: 64 << 20,
		OOMKills: 1, OwnOOMKills: 1, LimitHits: 207,
	}
	stall := cgroup.Pressure{
		CPUSome: 1108868 * time.Microsecond, CPUFull: 1105415 * time.Microsecond,
		MemorySome: 1546 * time.Microsecond, MemoryFull: 1546 * time.Microsecond,
	}
	v2 := cgroup.Reading{
		At:  now,
		Has: cgroup.HasThrottling | cgroup.HasStat | cgroup.HasSlab | cgroup.HasPeak | cgroup.HasOOM | cgroup.HasOwnOOM,
		CPU: 354032000, Periods: 19, ThrottledPeriods: 16, Throttled: 1036013000,
		MemoryUsage: 40 << 20, Anon: 20 << 20, File: 16 << 20, InactiveFile: 12 << 20, ActiveFile: 4 << 20, MappedFile: 1351680, SlabReclaimable: 2 << 20, Peak: 64 << 20,
		OOMKills: 3, OwnOOMKills: 1, LimitHits: 1,
	}
	old := v2
	old.Has &^= cgroup.HasPeak | cgroup.HasOwnOOM
	old.Peak, old.OwnOOMKills, old.LimitHits = 0, 0, 2
	stallV2 := stall
	stallV2.MemoryFull = 1540 * time.Microsecond

	tests := map[string]struct {
		wantMode       cgroup.Mode
		want           cgroup.Reading
		wantPressure   cgroup.Pressure
		wantWorkingSet uint64
		wantLimits     cgroup.Limits
	}{
		"v1":      {cgroup.V1, v1, cgroup.Pressure{}, 516096, cgroup.Limits{CPU: 0.2, Memory: 64 << 20}},
		"hybrid":  {cgroup.Hybrid, v1, stall, 516096, cgroup.Limits{CPU: 0.2, Memory: 64 << 20}},
		"v2":      {cgroup.V2, v2, stallV2, 22<<20 + 1351680, cgroup.Limits{CPU: 0.2, Memory: 64 << 20}},
		"v2-5.15": {cgroup.V2, old, cgroup.Pressure{}, 22<<20 + 1351680, cgroup.Limits{}},
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
