package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/test/node"
)

var binaries node.Binaries

// patience is how many times longer than usual everything may take.
var patience = 1

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if how := os.Getenv(childVariable); how != "" {
		os.Exit(child(how))
	}
	os.Exit(m.Run())
}

// prepare builds the programs, or takes those that test/kernel has put into
// its guest, where there is no compiler.
func prepare() (err error) {
	dir := os.Getenv("PLIMSOLL_NODE_BINARIES")
	if dir == "" {
		binaries, err = node.Build(context.Background(), os.Stderr)
		return err
	}
	binaries = node.Binaries{
		ControlPlane: filepath.Join(dir, "controlplane"), Runtime: filepath.Join(dir, "runtime"),
		CNI: filepath.Join(dir, "cni"), Init: filepath.Join(dir, "init"), Workload: filepath.Join(dir, "workload"),
	}
	if patience, err = strconv.Atoi(os.Getenv("PLIMSOLL_NODE_PATIENCE")); err != nil {
		return fmt.Errorf("reading PLIMSOLL_NODE_PATIENCE: %w", err)
	}
	return nil
}

// start starts a cluster that ends with the test at the latest.
func start(t *testing.T) *node.Cluster {
	t.Helper()
	c, err := node.Start(t.Context(), node.Options{Binaries: binaries, Logs: t.ArtifactDir(), Progress: testWriter{t}, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(b)))
	return len(b), nil
}

// TestResizeInPlace is what the whole package is for: a Deployment runs, a
// running pod is resized, the kernel's values follow and nothing restarts; and
// afterwards the machine is as it was. Twice, to see that it can be repeated.
func TestResizeInPlace(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			tunables := readTunables(t)
			began := time.Now()
			c := start(t)
			if took := time.Since(began); took > time.Duration(patience)*time.Minute {
				t.Errorf("starting took %s, want at most %d minutes", took, patience)
			}
			pod := runDeployment(t, c)
			assertAgentSees(t, c, pod)
			resize(t, c, pod)
			logs, err := c.Kubectl(t.Context(), "logs", pod.Name)
			if err != nil || strings.TrimSpace(logs) != "" {
				t.Errorf("kubectl logs says %q, %v; want nothing", logs, err)
			}
			left := remember(t, c)
			if err := c.Stop(); err != nil {
				t.Fatal(err)
			}
			left.assertNone(t)
			if diff := cmp.Diff(tunables, readTunables(t)); diff != "" {
				t.Errorf("kernel tunables of the machine (-before +after):\n%s", diff)
			}
		})
	}
}

// readTunables reads what a kubelet usually sets for its machine.
func readTunables(t *testing.T) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys"} {
		b, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			t.Fatal(err)
		}
		values[name] = string(b)
	}
	return values
}

// runDeployment creates a Deployment of one pod and returns the running pod.
func runDeployment(t *testing.T, c *node.Cluster) *corev1.Pod {
	t.Helper()
	labels := map[string]string{"app": "busy"}
	one := int32(1)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "busy"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Image: node.WorkloadImage, ImagePullPolicy: corev1.PullNever,
					Args: []string{"-cpu=0.1", "-memory=20"},
					Resources: corev1.ResourceRequirements{
						Requests: amounts("200m", "64Mi"), Limits: amounts("400m", "128Mi"),
					},
				}}},
			},
		},
	}
	ctx := t.Context()
	if _, err := c.Client().AppsV1().Deployments("default").Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var pod *corev1.Pod
	err := node.Poll(ctx, time.Duration(patience)*time.Minute, func() error {
		pods, err := c.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=busy"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("no running pod yet: %+v", pods.Items)
		}
		pod = &pods.Items[0]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	assertCgroup(t, c, pod, 0.4, 128<<20)
	return pod
}

// assertAgentSees finds the pod's container as the agent does, in the tree that
// a real kubelet and a real runtime have made, and reads it.
func assertAgentSees(t *testing.T, c *node.Cluster, pod *corev1.Pod) {
	t.Helper()
	files, err := cgroup.NewFS(node.CgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	tree := discovery.NewTree(files.Tree())
	roots, err := tree.Roots()
	if err != nil {
		t.Fatal(err)
	}
	dir, ok := tree.Pod(roots, pod.UID, pod.Status.QOSClass)
	if !ok {
		t.Fatalf("no cgroup of the pod %s below %q", pod.UID, roots)
	}
	found, err := tree.Containers(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	want, err := c.ContainerPath(pod, "main")
	if err != nil || found[id] != "/"+want {
		t.Fatalf("the containers found are %q, %v; want %s at /%s", found, err, id, want)
	}
	limits, err := files.Limits(found[id])
	if want := (cgroup.Limits{CPU: 0.4, Memory: 128 << 20}); err != nil || limits != want {
		t.Errorf("limits %+v, %v; want %+v", limits, err, want)
	}
	reader, err := files.Open(found[id])
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var reading cgroup.Reading
	err = node.Poll(t.Context(), time.Duration(patience)*10*time.Second, func() error {
		err := reader.Read(time.Now(), make([]byte, cgroup.BufferSize), &reading)
		if err == nil && (reading.CPU == 0 || reading.WorkingSet() < 20<<20 || reading.WorkingSet() > 64<<20) {
			err = fmt.Errorf("the container used %s and holds %d bytes; want 20 MiB and what the program needs", reading.CPU, reading.WorkingSet())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func amounts(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
}

// resize changes CPU and memory of the running pod and waits for the kernel.
func resize(t *testing.T, c *node.Cluster, pod *corev1.Pod) {
	t.Helper()
	before, err := c.ReadCgroup(pod, "main")
	if err != nil {
		t.Fatal(err)
	}
	patch := `{"spec":{"containers":[{"name":"main","resources":{
		"requests":{"cpu":"100m","memory":"32Mi"},"limits":{"cpu":"300m","memory":"48Mi"}}}]}}`
	if _, err := c.Client().CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name,
		types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize"); err != nil {
		t.Fatal(err)
	}
	assertCgroup(t, c, pod, 0.3, 48<<20)
	after, err := c.CgroupOf(t.Context(), pod.Namespace, pod.Name, "main")
	if err != nil {
		t.Fatal(err)
	}
	if after.CPUWeight >= before.CPUWeight || after.CPUSeconds <= before.CPUSeconds || after.Memory < 20<<20 {
		t.Errorf("the cgroup was %+v and is %+v; want a smaller weight, more CPU time, at least 20 MiB", before, after)
	}
	pod, err = c.Pod(t.Context(), pod.Namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	if n := pod.Status.ContainerStatuses[0].RestartCount; n != 0 {
		t.Errorf("the container restarted %d times, want 0", n)
	}
}

// assertCgroup waits until the kernel has the limits.
func assertCgroup(t *testing.T, c *node.Cluster, pod *corev1.Pod, cpu float64, memory uint64) {
	t.Helper()
	err := node.Poll(t.Context(), time.Duration(patience)*30*time.Second, func() error {
		g, err := c.ReadCgroup(pod, "main")
		if err == nil && (g.CPULimit != cpu || g.MemoryLimit != memory) {
			err = fmt.Errorf("the cgroup says %+v, want limits of %v cores and %d bytes", g, cpu, memory)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRun starts a program of ours in the cluster's network and ends it.
func TestRun(t *testing.T) {
	c := start(t)
	p, err := c.RunEnv("server", []string{"SAY=up"}, "sh", "-c", `trap 'exit 0' TERM; echo $SAY; while :; do sleep 0.05; done`)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Poll(t.Context(), 10*time.Second, func() error {
		if got := p.Tail(); got != "up" {
			return fmt.Errorf("the log says %q, want up", got)
		}
		return p.Check()
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(5 * time.Second); err != nil {
		t.Errorf("stopping in order: %v", err)
	}
	if p, err = c.Run("broken", binaries.Workload, "nonsense"); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Check(); err == nil || !strings.Contains(err.Error(), `unexpected argument "nonsense"`) {
		t.Errorf("Check says %v, want the end of the log", err)
	}
	t.Run("the kubelet answers inside the network", func(t *testing.T) {
		resp, err := c.HTTP().Get("http://127.0.0.1:10248/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || string(body) != "ok" {
			t.Errorf("the kubelet says %s %q, %v; want 200 ok", resp.Status, body, err)
		}
	})
	t.Run("forwarding reaches into the network", func(t *testing.T) {
		address, err := c.Forward("127.0.0.1:10248")
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("the kubelet says %s, want 200", resp.Status)
		}
	})
	t.Run("a service account has its own rights", func(t *testing.T) {
		kubeconfig, err := c.KubeconfigFor("default", "default")
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Kubectl(t.Context(), "--kubeconfig="+kubeconfig, "get", "nodes")
		if err == nil || !strings.Contains(err.Error(), `User "system:serviceaccount:default:default" cannot list`) {
			t.Errorf("listing nodes says %v, want forbidden", err)
		}
	})
	t.Run("what ends early is told with its log", func(t *testing.T) {
		boom := errors.New("boom")
		if err := node.Poll(t.Context(), time.Hour, func() error { return node.Final(boom) }); !errors.Is(err, boom) {
			t.Errorf("Poll says %v, want boom at once", err)
		}
	})
}
