// Package cgrouptest makes real cgroups for tests and runs work in them: CPU hogs, memory eaters, readers of files.
// The work is done by the test's own binary, started anew; call Main from TestMain.
package cgrouptest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"plimsoll.dev/agent/cgroup"
)

// Root is where the machine's cgroup file system is mounted.
const Root = "/sys/fs/cgroup"

const workVariable = "PLIMSOLL_TEST_WORK"

var serial atomic.Int64

// IsWorker reports whether this process was started to do work; Main then does it and does not return.
func IsWorker() bool { return os.Getenv(workVariable) != "" }

// Main runs the work if this process is a worker, else the tests.
func Main(m *testing.M) {
	if w := os.Getenv(workVariable); w != "" {
		os.Exit(work(strings.Split(w, " ")))
	}
	os.Exit(m.Run())
}

// Group is a cgroup in every hierarchy that the readers use.
type Group struct {
	FS   cgroup.FS
	Path string

	t    testing.TB
	dirs []string
}

// New makes an empty cgroup, removed with everything in it at the end of the test. It fails the test when the machine
// does not let it.
func New(t testing.TB) *Group {
	t.Helper()
	return newAt(t, fmt.Sprintf("/plimsoll-test-%d-%d", os.Getpid(), serial.Add(1)))
}

// Child makes a cgroup inside g.
func (g *Group) Child(name string) *Group {
	g.t.Helper()
	return newAt(g.t, filepath.Join(g.Path, name))
}

func newAt(t testing.TB, path string) *Group {
	t.Helper()
	f, err := cgroup.NewFS(Root)
	if err != nil {
		t.Fatalf("this test needs cgroups: %v", err)
	}
	g := &Group{FS: f, Path: path, t: t}
	if f.Mode() == cgroup.V2 {
		enable(t, filepath.Dir(filepath.Join(Root, path)))
		g.dirs = []string{filepath.Join(Root, path)}
	} else {
		for _, h := range []string{"cpu", "cpuacct", "memory", "unified"} {
			if _, err := os.Stat(filepath.Join(Root, h)); err == nil {
				g.dirs = append(g.dirs, filepath.Join(Root, h, path))
			}
		}
	}
	for _, d := range g.dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatalf("this test makes cgroups, which takes root: %v", err)
		}
	}
	t.Cleanup(g.Remove)
	return g
}

// enable hands the controllers down to the children of a v2 directory.
func enable(t testing.TB, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory"), 0); err != nil {
		t.Fatalf("enabling cpu and memory controllers in %s: %v", dir, err)
	}
}

// Remove kills what runs in the cgroup and removes it; it may be called more than once.
func (g *Group) Remove() {
	deadline := time.Now().Add(10 * time.Second)
	for _, d := range g.dirs {
		for {
			err := os.Remove(d)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(deadline) {
				g.t.Errorf("removing the test's cgroup: %v", err)
				break
			}
			g.kill(d)
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (g *Group) kill(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, pid := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(pid); err == nil {
			if p, err := os.FindProcess(n); err == nil {
				_ = p.Kill()
			}
		}
	}
}

// LimitMemory sets the memory limit in bytes.
func (g *Group) LimitMemory(bytes int64) {
	g.t.Helper()
	if g.FS.Mode() == cgroup.V2 {
		g.write("memory.max", strconv.FormatInt(bytes, 10))
		return
	}
	g.write("memory.limit_in_bytes", strconv.FormatInt(bytes, 10))
}

// LimitCPU sets the quota per 100 ms.
func (g *Group) LimitCPU(quota time.Duration) {
	g.t.Helper()
	if g.FS.Mode() == cgroup.V2 {
		g.write("cpu.max", fmt.Sprintf("%d 100000", quota.Microseconds()))
		return
	}
	g.write("cpu.cfs_quota_us", strconv.FormatInt(quota.Microseconds(), 10))
}

// write writes to the file in whichever hierarchy has it.
func (g *Group) write(name, value string) {
	g.t.Helper()
	for _, d := range g.dirs {
		if _, err := os.Stat(filepath.Join(d, name)); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(d, name), []byte(value), 0); err != nil {
			g.t.Fatalf("setting %s: %v", name, err)
		}
		return
	}
	g.t.Fatalf("no %s in %v: this test needs its controller", name, g.dirs)
}

// Worker is a process at work in a cgroup.
type Worker struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// Start starts a worker in the cgroup, which begins once it is inside. See work for what it can be told to do.
func (g *Group) Start(job ...string) *Worker {
	g.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), workVariable+"="+strings.Join(job, " "), "GOMAXPROCS=2", "GOGC=off")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		g.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		g.t.Fatalf("starting a worker: %v", err)
	}
	w := &Worker{t: g.t, cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	g.t.Cleanup(func() { _ = w.Stop() })
	for _, d := range g.dirs {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			g.t.Fatalf("moving a worker into the cgroup: %v", err)
		}
	}
	w.Go()
	return w
}

// Go lets the worker begin, or go on after Reached.
func (w *Worker) Go() {
	if _, err := io.WriteString(w.stdin, "\n"); err != nil && !errors.Is(err, os.ErrClosed) {
		w.t.Logf("telling the worker to go on: %v", err)
	}
}

// Reached waits until the worker says that it has done its work and is holding what it got.
func (w *Worker) Reached() {
	w.t.Helper()
	if _, err := w.out.ReadString('\n'); err != nil {
		w.t.Fatalf("the worker ended before its work was done: %v", err)
	}
}

// Wait waits for the worker's end and returns how it ended.
func (w *Worker) Wait() error { return w.cmd.Wait() }

// Stop kills the worker and waits for its end.
func (w *Worker) Stop() error {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
	return w.stdin.Close()
}
