package main_test

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"plimsoll.dev/agent/cgroup"
)

// What is captured can be read, and tells what was done.
func TestCaptureOfThisMachine(t *testing.T) {
	program, out := filepath.Join(t.TempDir(), "capture"), t.TempDir()
	if b, err := exec.Command("go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, b)
	}
	if b, err := exec.Command(program, out).CombinedOutput(); err != nil {
		t.Fatalf("capturing takes root and cgroups: %v\n%s", err, b)
	}
	f, err := cgroup.NewFS(out)
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Open("pod/web")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got cgroup.Reading
	if err := r.Read(time.Now(), make([]byte, cgroup.BufferSize), &got); err != nil {
		t.Fatal(err)
	}
	if got.CPU < 300*time.Millisecond || got.Periods == 0 || got.OwnOOMKills != 1 || got.LimitHits == 0 {
		t.Errorf("got %+v, want 300 ms of CPU, periods, one OOM kill of its own, limits hit", got)
	}
	if got.Peak>>20 != 64 || got.MemoryUsage < 20<<20 || got.InactiveFile == 0 || got.WorkingSet() > 30<<20 {
		t.Errorf("got %+v, want a watermark of 64 MiB, 20 MiB held, and page cache", got)
	}
	limits, err := f.Limits("pod/web")
	if want := (cgroup.Limits{CPU: 0.2, Memory: 64 << 20}); err != nil || limits != want {
		t.Errorf("limits %+v, %v; want %+v", limits, err, want)
	}
}
