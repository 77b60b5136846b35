package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"plimsoll.dev/test/node"
)

// leftovers knows a cluster well enough to find what remains of it.
type leftovers struct {
	id         string
	namespaces []string // as /proc/PID/ns/* names them
	interfaces []string // the host's, from outside
}

func remember(t *testing.T, c *node.Cluster) leftovers {
	t.Helper()
	l := leftovers{id: c.ID(), interfaces: interfaces(t)}
	for _, kind := range []string{"net", "pid", "mnt"} {
		name, err := os.Readlink(filepath.Join(filepath.Dir(c.NetNS()), kind))
		if err != nil {
			t.Fatal(err)
		}
		l.namespaces = append(l.namespaces, name)
	}
	if got := l.processes(t); len(got) < 8 {
		t.Fatalf("found only the processes %q in the cluster's namespaces; the test would miss some", got)
	}
	if got := l.cgroups(t); len(got) == 0 {
		t.Fatal("found no cgroup of the cluster; the test would miss them")
	}
	return l
}

func (l leftovers) assertNone(t *testing.T) {
	t.Helper()
	l.assertNoProcess(t)
	for what, got := range map[string][]string{
		"cgroups": l.cgroups(t), "mounts": l.mounts(t), "folders": l.folders(t),
	} {
		if len(got) > 0 {
			t.Errorf("%s left behind: %q", what, got)
		}
	}
	if got := interfaces(t); !slices.Equal(got, l.interfaces) {
		t.Errorf("the host's network interfaces are %q, were %q", got, l.interfaces)
	}
}

func (l leftovers) assertNoProcess(t *testing.T) {
	t.Helper()
	err := node.Poll(t.Context(), 10*time.Second, func() error {
		if got := l.processes(t); len(got) > 0 {
			return fmt.Errorf("processes left behind: %q", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// processes returns the processes with a thread in one of the namespaces.
func (l leftovers) processes(t *testing.T) []string {
	t.Helper()
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, task := range tasks {
		for _, kind := range []string{"net", "pid", "pid_for_children", "mnt"} {
			name, err := os.Readlink(filepath.Join(task, "ns", kind))
			if err == nil && slices.Contains(l.namespaces, name) {
				command, _ := os.ReadFile(filepath.Join(task, "comm")) // it may just have ended
				found[strings.Split(task, "/")[2]+" "+strings.TrimSpace(string(command))] = true
			}
		}
	}
	var out []string
	for p := range found {
		out = append(out, p)
	}
	return out
}

func (l leftovers) cgroups(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/*", "/*/*"} {
		dirs, err := filepath.Glob(node.CgroupRoot + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if filepath.Base(dir) == "plimsoll-"+l.id {
				found = append(found, dir)
			}
		}
	}
	return found
}

// mounts returns the host's mounts that name the cluster, or namespaces kept
// alive by a mount.
func (l leftovers) mounts(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		names := append([]string{"/plimsoll-node/" + l.id, "cni-"}, l.namespaces...)
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			found = append(found, line)
		}
	}
	return found
}

// folders returns those of the cluster, and those that stand for it in places
// of the system that no other cluster uses now.
func (l leftovers) folders(t *testing.T) []string {
	t.Helper()
	dirs := []string{"/var/lib/plimsoll-node/" + l.id}
	if _, err := os.Stat("/var/lib/plimsoll-node"); errors.Is(err, fs.ErrNotExist) {
		dirs = append(dirs, "/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/opt/containerd", "/run/containerd")
	}
	var found []string
	for _, dir := range dirs {
		if entries, err := os.ReadDir(dir); err == nil {
			found = append(found, fmt.Sprint(dir, entries))
		}
	}
	return found
}

func interfaces(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// childVariable makes the test binary a program that starts a cluster and
// then waits ("wait") or keeps it and exits ("keep").
const childVariable = "PLIMSOLL_NODE_TEST_CHILD"

func child(how string) int {
	c, err := node.Start(context.Background(), node.Options{Binaries: binaries, Progress: os.Stderr})
	if err == nil && how == "keep" {
		err = c.Keep()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(c.ID(), c.NetNS())
	if how == "wait" {
		select {}
	}
	return 0
}

// startChild runs a child until its cluster is up.
func startChild(t *testing.T, how string) (child *exec.Cmd, l leftovers) {
	t.Helper()
	child = exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+how)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() }) // it may have ended
	var netns string
	if _, err := fmt.Fscan(out, &l.id, &netns); err != nil {
		t.Fatalf("the child did not start its cluster: %v", err)
	}
	l.interfaces = interfaces(t)
	for _, kind := range []string{"net", "pid", "mnt"} {
		name, err := os.Readlink(filepath.Join(filepath.Dir(netns), kind))
		if err != nil {
			t.Fatal(err)
		}
		l.namespaces = append(l.namespaces, name)
	}
	return child, l
}

// TestKilled kills a cluster's starter: all processes end by themselves, and
// the next start removes the rest.
func TestKilled(t *testing.T) {
	child, left := startChild(t, "wait")
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	left.assertNoProcess(t)
	if got := left.cgroups(t); len(got) == 0 {
		t.Fatal("nothing is left, so nothing is there to sweep")
	}
	if err := start(t).Stop(); err != nil {
		t.Fatal(err)
	}
	left.assertNone(t)
}

// TestKeep keeps a cluster beyond its starter until StopKept.
func TestKeep(t *testing.T) {
	child, left := startChild(t, "keep")
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	kubectl := filepath.Join("/var/lib/plimsoll-node", left.id, "kubectl")
	out, err := exec.Command(kubectl, "get", "nodes").CombinedOutput()
	if err != nil || !strings.Contains(string(out), node.NodeName) {
		t.Errorf("kubectl says %q, %v; want the node", out, err)
	}
	ended, err := node.StopKept(left.id)
	if err != nil || !slices.Equal(ended, []string{left.id}) {
		t.Fatalf("ended the clusters %q, %v; want %q", ended, err, left.id)
	}
	left.assertNone(t)
}

// TestInterrupted ends the context while a cluster starts.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	before, err := filepath.Glob("/var/lib/plimsoll-node/*/lock")
	if err != nil {
		t.Fatal(err)
	}
	progress := writerFunc(func(b []byte) {
		if strings.Contains(string(b), "controller manager") {
			cancel()
		}
	})
	if _, err := node.Start(ctx, node.Options{Binaries: binaries, Progress: progress}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start says %v, want canceled", err)
	}
	after, err := filepath.Glob("/var/lib/plimsoll-node/*/lock")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before, after) {
		t.Errorf("the clusters were %q and are %q", before, after)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
