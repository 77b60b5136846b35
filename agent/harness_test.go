package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/cgroup/cgrouptest"
	"plimsoll.dev/agent/collect"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

var (
	api    *env.API
	binary string
)

func TestMain(m *testing.M) {
	if cgrouptest.IsWorker() {
		cgrouptest.Main(m)
	}
	env.Main(m, func(t env.TB) {
		dir, err := os.MkdirTemp("", "plimsoll-agent-test")
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		binary = filepath.Join(dir, "agent")
		if out, err := exec.Command("go", "build", "-trimpath", "-o", binary, ".").CombinedOutput(); err != nil {
			t.Fatalf("building the agent: %v\n%s", err, out)
		}
		api = env.StartAPI(t, env.Options{})
	})
}

// agent is a running agent process.
type agent struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string

	mu  sync.Mutex
	log bytes.Buffer
}

func startAgent(t *testing.T, redis, checkpoint, node string, more ...string) *agent {
	t.Helper()
	a := &agent{t: t, addr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	args := append([]string{
		"--kubeconfig", api.Kubeconfig, "--node-name", node, "--redis", redis, "--checkpoint", checkpoint,
		"--listen", a.addr, "--flush", "1s", "--interval", "200ms", "--cpu-budget", "0%", "--log-format", "text",
	}, more...)
	a.cmd = exec.Command(binary, args...)
	stderr, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			a.mu.Lock()
			a.log.WriteString(lines.Text() + "\n")
			a.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		_ = a.cmd.Wait()
		if t.Failed() {
			t.Logf("log of the agent:\n%s", a.logged())
		}
	})
	return a
}

func (a *agent) logged() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.log.String()
}

// get returns a page of the agent, or an empty text while it does not answer.
func (a *agent) get(path string) (code int, body string) {
	r, err := http.Get("http://" + a.addr + path)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, ""
	}
	return r.StatusCode, string(b)
}

// stop sends a signal and waits for the end.
func (a *agent) stop(s os.Signal) error {
	if err := a.cmd.Process.Signal(s); err != nil {
		return err
	}
	return a.cmd.Wait()
}

// eventually polls until check returns nothing.
func eventually(t *testing.T, within time.Duration, check func() string) {
	t.Helper()
	problem := ""
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if problem = check(); problem == "" {
			return
		}
	}
	t.Fatalf("after %s: %s", within, problem)
}

// workload is a pod in the API server with a real cgroup for its container.
type workload struct {
	pod       *corev1.Pod
	container *cgrouptest.Group
	hash      string
}

func kube(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(api.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newWorkload makes a pod governed by a policy, as the webhook would stamp it, running one container on the node.
func newWorkload(t *testing.T, name, node string) *workload {
	t.Helper()
	c := kube(t)
	ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: name}
	crp := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	crp.Spec.Sampling = &v1alpha1.Sampling{Startup: &metav1.Duration{}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels:      map[string]string{v1alpha1.LabelMode: "measure", "app.kubernetes.io/name": name},
			Annotations: map[string]string{v1alpha1.AnnotationPolicyRef: profile.FormatRef(ref)},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "app", Image: "none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}},
		}}},
	}
	for _, o := range []client.Object{crp, pod} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(context.Background(), o, client.GracePeriodSeconds(0)) })
	}
	id := strings.Repeat(fmt.Sprintf("%04x", os.Getpid()&0xffff), 16)
	group := cgrouptest.New(t).Child("kubepods").Child("burstable").Child("pod" + string(pod.UID)).Child(id)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "app", ContainerID: "containerd://" + id, Image: "none", ImageID: "none",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	if err := c.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	key := profile.KeyOf(pod.Labels, profile.IdentityLabels(v1alpha1.PlimsollConfigSpec{}), ref)
	return &workload{pod: pod, container: group, hash: key.MeasurementHash()}
}

// used returns the CPU seconds and the largest memory, in MiB, that the store has of a workload.
func used(t *testing.T, s *store.Store, hash string) (cpu, memory float64) {
	t.Helper()
	w, err := s.Window(t.Context(), hash, time.Now(), store.Retention{Window: 24 * time.Hour, HalfLife: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c := w.Containers["app"]
	if c == nil || c.Usage[sample.CPU] == nil {
		return 0, 0
	}
	k := c.Usage[sample.CPU]
	return k.Mean() * k.Weight() / 1000, c.Usage[sample.MemoryPeak].Max() / (1 << 20)
}

func kernelCPU(t *testing.T, g *cgrouptest.Group) float64 {
	t.Helper()
	r, err := g.FS.Open(g.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var reading cgroup.Reading
	if err := r.Read(time.Now(), make([]byte, cgroup.BufferSize), &reading); err != nil {
		t.Fatal(err)
	}
	return reading.CPU.Seconds()
}

func openStore(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func views(a *agent) (all []collect.View) {
	_, body := a.get("/debug/containers")
	_ = json.Unmarshal([]byte(body), &all)
	return all
}

// measured waits for the agent to measure a workload.
func measured(a *agent, w *workload) func() string {
	return func() string {
		for _, v := range views(a) {
			if v.PodUID == string(w.pod.UID) && v.State == "measured" && v.Hash == w.hash && !v.SampledAt.IsZero() {
				return ""
			}
		}
		return fmt.Sprintf("the container is not measured: %+v", views(a))
	}
}
