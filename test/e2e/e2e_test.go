// Package e2e_test checks what the demo shows, on the demo's cluster.
package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/e2e/scenario"
	"plimsoll.dev/test/node"
)

var s *scenario.Scenario

func TestMain(m *testing.M) {
	os.Exit(func() (code int) {
		var err error
		if s, err = scenario.Start(context.Background(), os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() {
			if err := s.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}()
		return m.Run()
	}())
}

// TestMainJob is the demo with its claims checked.
func TestMainJob(t *testing.T) {
	ctx := t.Context()
	before, err := s.Deploy(ctx, ignore)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("pods are stamped at admission", func(t *testing.T) { assertStamped(t, before) })
	learned, err := s.Learn(ctx, ignore)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("recommendations fit the known need", func(t *testing.T) { assertRecommended(t, learned) })
	resized, err := s.Resize(ctx, before, ignore)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("running pods are resized in place", func(t *testing.T) { assertResized(t, before, resized) })
	added, all, err := s.Scale(ctx, "steady", ignore)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a new pod starts with the recommendation", func(t *testing.T) { assertAdmitted(t, added, all) })
	t.Run("less is reserved", func(t *testing.T) {
		was, is := scenario.Reserved(before), scenario.Reserved(resized)
		if is.CPU > was.CPU/2 || is.Memory > was.Memory/2 {
			t.Errorf("%+v is reserved and was %+v; want less than half", is, was)
		}
	})
	t.Run("Redis holds the CPU seconds the kernel counted", assertMeasured)
	t.Run("the chart's roles suffice", func(t *testing.T) {
		for _, p := range []*node.Process{s.Webhook, s.Agent} {
			b, err := os.ReadFile(p.Log)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(b)) {
				if strings.Contains(line, "forbidden") {
					t.Errorf("%s was refused something: %s", p.Name, line)
				}
			}
		}
	})
}

func ignore([]scenario.Workload) {}

// policies that govern the workloads, as recorded on their pods.
var policies = map[string]string{
	"steady":  "ClusterResourcePolicy/demo",
	"growing": "ClusterResourcePolicy/demo",
	"bursty":  "ResourcePolicy/shop/bursts",
}

func assertStamped(t *testing.T, all []scenario.Workload) {
	for _, w := range all {
		for _, p := range w.Pods {
			if got := p.Object.Annotations[v1alpha1.AnnotationPolicyRef]; got != policies[w.Name] {
				t.Errorf("pod %s has policy-ref %q, want %q", p.Object.Name, got, policies[w.Name])
			}
		}
	}
	// An answer to a dry run is admission's alone: no controller can have
	// stamped a pod that was never stored.
	forged := pod("steady")
	forged.Annotations = map[string]string{v1alpha1.AnnotationPolicyRef: "ClusterResourcePolicy/forged"}
	admitted, err := s.Admit(t.Context(), forged)
	if err != nil {
		t.Fatal(err)
	}
	if got := admitted.Annotations[v1alpha1.AnnotationPolicyRef]; got != policies["steady"] {
		t.Errorf("admission records policy-ref %q over a forged one, want %q", got, policies["steady"])
	}
	if admitted.Annotations[v1alpha1.AnnotationProfileRef] == "" {
		t.Error("admission records no profile-ref")
	}
}

// pod returns an enrolled pod of a workload that is not to be created.
func pod(workload string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: scenario.Namespace, Name: "extra",
			Labels: map[string]string{"app.kubernetes.io/name": workload, v1alpha1.LabelMode: "resize"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: scenario.Container, Image: node.WorkloadImage, ImagePullPolicy: corev1.PullNever,
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("600m"), corev1.ResourceMemory: resource.MustParse("600Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
			},
		}}},
	}
}

// headroom is that of both policies' requests.
const headroom = 1.15

func assertRecommended(t *testing.T, all []scenario.Workload) {
	for _, w := range all {
		need := scenario.Needs[w.Name]
		if got, want := w.Recommended.CPU, need.CPU*headroom; !within(got, want, 0.1) {
			t.Errorf("%s: recommended %.3f cores, want %.3f within 10 %%", w.Name, got, want)
		}
		if w.Name == "growing" {
			continue // it has not yet grown to what it will need
		}
		if got, want := w.Recommended.Memory, need.Memory*headroom; !within(got, want, 0.1) {
			t.Errorf("%s: recommended %.0f MiB, want %.0f within 10 %%", w.Name, got/(1<<20), want/(1<<20))
		}
	}
}

func within(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

func assertResized(t *testing.T, before, after []scenario.Workload) {
	old := map[string]scenario.Pod{}
	for _, w := range before {
		for _, p := range w.Pods {
			old[p.Object.Name] = p
		}
	}
	for _, w := range after {
		for _, p := range w.Pods {
			was := old[p.Object.Name]
			if p.Cgroup.MemoryLimit >= was.Cgroup.MemoryLimit || p.Cgroup.CPUWeight >= was.Cgroup.CPUWeight {
				t.Errorf("pod %s: the cgroup is %+v and was %+v; want less", p.Object.Name, p.Cgroup, was.Cgroup)
			}
			if p.Restarts != 0 || p.Object.UID != was.Object.UID {
				t.Errorf("pod %s: %d restarts, uid %s, was %s; want the same pod without any", p.Object.Name, p.Restarts, p.Object.UID, was.Object.UID)
			}
		}
	}
}

func assertAdmitted(t *testing.T, added scenario.Pod, all []scenario.Workload) {
	if added.Object.Annotations[v1alpha1.AnnotationApplied] == "" {
		t.Error("the new pod does not say what admission set")
	}
	for _, w := range all {
		if w.Name != "steady" {
			continue
		}
		// The recommendation may have moved by a little since.
		if !within(added.Requested.CPU, w.Recommended.CPU, 0.05) || !within(added.Requested.Memory, w.Recommended.Memory, 0.05) {
			t.Errorf("the new pod requests %+v, want %+v", added.Requested, w.Recommended)
		}
	}
}

// assertMeasured compares, for each workload, the CPU time that the kernel has
// counted with what the agent's last flush, which ends it, leaves in Redis.
func assertMeasured(t *testing.T) {
	all, err := s.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Agent.Stop(10 * time.Second); err != nil {
		t.Errorf("stopping the agent: %v", err)
	}
	for _, w := range all {
		var want float64
		for _, p := range w.Pods {
			want += p.Cgroup.CPUSeconds
		}
		hash := w.Profile.Spec.Identity.MeasurementHash
		got, err := s.CPUSeconds(t.Context(), hash)
		if err != nil {
			t.Fatal(err)
		}
		if !within(got, want, 0.05) {
			t.Errorf("%s: Redis holds %.2f CPU seconds under %s, the kernel counted %.2f", w.Name, got, hash, want)
		}
	}
	if err := s.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestBadInput gives what people get wrong; each answer says what to do.
func TestBadInput(t *testing.T) {
	t.Run("unknown mode", func(t *testing.T) {
		p := pod("steady")
		p.Namespace = "default"
		p.Labels[v1alpha1.LabelMode] = "resise"
		_, err := s.Admit(t.Context(), p)
		assertSays(t, err, v1alpha1.LabelMode, "resise", "measure", "apply", "resize", "off")
	})
	t.Run("policy with a broken regular expression", func(t *testing.T) {
		err := s.Client.Create(t.Context(), &v1alpha1.ClusterResourcePolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "broken"},
			Spec:       v1alpha1.ResourcePolicySpec{Selector: v1alpha1.Selector{Annotations: map[string]v1alpha1.Pattern{"a": "/(/"}}},
		})
		assertSays(t, err, "spec.selector.annotations", "missing closing )")
	})
	const free = "--listen=127.0.0.1:9436"
	for name, c := range map[string]struct {
		run  func() (*node.Process, error)
		ends bool
		says []string
	}{
		"agent, Redis nowhere": {
			run: func() (*node.Process, error) {
				return s.RunAgent("agent-nowhere", "redis://127.0.0.1:1", free, "--checkpoint=")
			},
			says: []string{"connecting to Redis", "connection refused", "reachable"},
		},
		"agent, Redis without scheme": {
			run:  func() (*node.Process, error) { return s.RunAgent("agent-scheme", "nowhere", free, "--checkpoint=") },
			ends: true,
			says: []string{"--redis", "redis://host:6379"},
		},
		"agent, unreadable cgroups": {
			run: func() (*node.Process, error) {
				return s.RunAgent("agent-cgroup", "redis://127.0.0.1:6379", free, "--checkpoint=", "--cgroup-root=/nowhere")
			},
			ends: true,
			says: []string{"--cgroup-root=/nowhere", "no such file or directory", "is mounted"},
		},
		"webhook, missing certificate": {
			run: func() (*node.Process, error) {
				return s.RunWebhook("webhook-certificate", "redis://127.0.0.1:6379", "--cert-mode=files", "--cert-dir=/nowhere",
					"--port=9444", "--metrics-addr=0", "--health-addr=127.0.0.1:8082")
			},
			ends: true,
			says: []string{"/nowhere/tls.crt", "put tls.crt and tls.key into the folder", "--cert-dir"},
		},
		"webhook, Redis without scheme": {
			run: func() (*node.Process, error) {
				return s.RunWebhook("webhook-scheme", "nowhere", "--port=9445", "--metrics-addr=0", "--health-addr=127.0.0.1:8083")
			},
			ends: true,
			says: []string{"--redis", "redis://host:6379"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := c.run()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Kill()
			err = node.Poll(t.Context(), 30*time.Second, func() error {
				end := p.Check()
				if !c.ends && end != nil {
					return node.Final(fmt.Errorf("it ended: %w", end))
				}
				for _, want := range c.says {
					if !strings.Contains(p.Tail(), want) {
						return fmt.Errorf("it does not say %q", want)
					}
				}
				if c.ends && end == nil {
					return errors.New("it has not ended")
				}
				return nil
			})
			if err != nil {
				t.Errorf("%v; it says:\n%s", err, p.Tail())
			}
			if strings.Contains(p.Tail(), "goroutine ") {
				t.Errorf("it crashed:\n%s", p.Tail())
			}
		})
	}
}

// assertSays checks that an error names what is wrong and what to do.
func assertSays(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}
