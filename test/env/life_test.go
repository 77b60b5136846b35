package env_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"plimsoll.dev/test/env"
)

// asChild is the environment variable that makes this test binary a process
// that starts everything, and whose value all its descendants carry.
const asChild = "PLIMSOLL_ENV_CHILD"

// childMain starts everything, stops it when a line arrives, and ends when its
// input does.
func childMain() {
	input := bufio.NewReader(os.Stdin)
	err := env.Run(context.Background(), func(t env.TB) {
		a := env.StartAPI(t, env.Options{ControllerManager: true, Scheduler: true, Kubelets: 1})
		r := env.StartRedis(t, env.RedisOptions{})
		// An open watch must not hold up the end.
		cs, err := kubernetes.NewForConfig(a.Config)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if _, err := cs.CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatalf("%v", err)
		}
		fmt.Println("started", r.Addr())
		if _, err := input.ReadString('\n'); err != nil {
			t.Fatalf("%v", err)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("stopped")
	_, _ = io.Copy(io.Discard, input)
}

// descendants lists the other programs that carry the mark.
func descendants(t *testing.T, mark string, child int) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environ, []byte(asChild+"="+mark+"\x00")) {
			continue
		}
		dir := filepath.Dir(file)
		if filepath.Base(dir) == fmt.Sprint(child) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err == nil && len(cmdline) > 0 {
			program, _, _ := strings.Cut(string(cmdline), "\x00")
			found = append(found, filepath.Base(program))
		}
	}
	return found
}

func TestNothingIsLeft(t *testing.T) {
	tests := map[string]func(t *testing.T, child *exec.Cmd, stdin io.Writer, stdout *bufio.Reader){
		"after stopping": func(t *testing.T, _ *exec.Cmd, stdin io.Writer, stdout *bufio.Reader) {
			fmt.Fprintln(stdin)
			if line, err := stdout.ReadString('\n'); err != nil || line != "stopped\n" {
				t.Fatalf("stopping: %q, %v", line, err)
			}
		},
		"after being killed": func(t *testing.T, child *exec.Cmd, _ io.Writer, _ *bufio.Reader) {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			// Short, because the kubelet puts sockets into it.
			mark, err := os.MkdirTemp("", "env")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(mark)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			child := exec.CommandContext(t.Context(), self)
			child.Env = append(os.Environ(), asChild+"="+mark, "TMPDIR="+mark)
			child.Stderr = os.Stderr
			stdin, err := child.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			output, err := child.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				stdin.Close()
				_ = child.Wait() // the one that was killed says so
			}()
			stdout := bufio.NewReader(output)
			var redis string
			if _, err := fmt.Fscanf(stdout, "started %s\n", &redis); err != nil {
				t.Fatalf("starting: %v", err)
			}
			if got := descendants(t, mark, child.Process.Pid); len(got) != 5 {
				t.Errorf("started %v, want etcd, kube-apiserver, kube-controller-manager, kube-scheduler and fakekubelet", got)
			}
			end(t, child, stdin, stdout)
			eventually(t, "all to end", func() error {
				if got := descendants(t, mark, child.Process.Pid); len(got) > 0 {
					return fmt.Errorf("%v run", got)
				}
				// Redis overwrites its environment with its title.
				if conn, err := net.Dial("tcp", redis); err == nil {
					conn.Close()
					return fmt.Errorf("redis at %s runs", redis)
				}
				return nil
			})
			if name == "after stopping" {
				if left, err := filepath.Glob(filepath.Join(mark, "*")); err != nil || len(left) > 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			}
		})
	}
}

func TestServerOutage(t *testing.T) {
	a := env.StartAPI(t, env.Options{})
	cfg := a.User("survivor", "system:masters")
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	before, err := cs.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.StopServer()
	if _, err := cs.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
		t.Error("a stopped API server answers")
	}
	a.StartServer()
	after, err := cs.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if before.UID != after.UID {
		t.Errorf("the namespace was %s and is %s", before.UID, after.UID)
	}
}
