package main_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "workload-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "workload")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the workload: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// TestCPU runs the workload until it has used some CPU: that takes as long as
// it was asked to take, or longer where the machine has no time to give.
func TestCPU(t *testing.T) {
	for name, c := range map[string]struct {
		args      []string
		use, over time.Duration
	}{
		"steady":    {[]string{"-cpu=0.2"}, 600 * time.Millisecond, 3 * time.Second},
		"two cores": {[]string{"-cpu=1.2"}, 1200 * time.Millisecond, time.Second},
		"bursty":    {[]string{"-burst=1", "-burst-for=100ms", "-burst-every=500ms"}, 600 * time.Millisecond, 2500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, c.args...)
			start := time.Now()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill() // it runs until it is told to end
				_ = cmd.Wait()         // it was killed
			}()
			for used(t, cmd.Process.Pid) < c.use {
				if time.Since(start) > time.Minute {
					t.Fatalf("used only %s of CPU in a minute, want %s in %s", used(t, cmd.Process.Pid), c.use, c.over)
				}
				time.Sleep(5 * time.Millisecond)
			}
			// A tenth for the clock ticks that the kernel counts in.
			if took := time.Since(start); took < c.over*9/10 {
				t.Errorf("used %s of CPU in %s, want it to take %s", c.use, took, c.over)
			}
		})
	}
}

// used returns the CPU time of a process, in the kernel's ticks of 10 ms.
func used(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// TestEnd runs a workload that ends by itself.
func TestEnd(t *testing.T) {
	start := time.Now()
	if out, err := exec.Command(program, "-end=300ms").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("it ended after %s, want 300ms", took)
	}
}

// TestMemory looks at a workload while it holds, grows and spikes.
func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []int // MiB to be seen, in this order
	}{
		"held":    {[]string{"-memory=50"}, []int{50}},
		"growing": {[]string{"-memory=20", "-grow-to=60", "-grow-over=2s"}, []int{20, 40, 60}},
		"spikes":  {[]string{"-memory=20", "-spike=80", "-spike-for=500ms", "-spike-every=1s"}, []int{20, 100, 20, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, c.args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Signal(syscall.SIGTERM) // the only failure is that it has ended
				if err := cmd.Wait(); err != nil {
					t.Errorf("ending in order: %v", err)
				}
			}()
			for _, want := range c.want {
				for {
					got := resident(t, cmd.Process.Pid)
					if got >= want && got <= want+8 { // the program itself takes a few
						break
					}
					if ctx.Err() != nil {
						t.Fatalf("it never held %d MiB; now it holds %d", want, got)
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
	}
}

// resident returns a process's resident memory in MiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("VmRSS:"))
	kib, err := strconv.Atoi(strings.Fields(string(rest))[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// TestBadArguments are told and not ignored.
func TestBadArguments(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown argument": {[]string{"spin"}, `unexpected argument "spin"`},
		"both kinds":       {[]string{"-cpu=1", "-burst=1"}, "either -cpu or -burst"},
		"too much memory":  {[]string{"-memory=1000000000"}, "allocating 1000000000 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(program, c.args...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("it says %q, %v; want %q", out, err, c.want)
			}
		})
	}
}
