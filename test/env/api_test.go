package env_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"plimsoll.dev/test/build"
	"plimsoll.dev/test/env"
)

// api has everything: two nodes in one process.
var api *env.API

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	if os.Getenv(asChild) != "" {
		childMain()
		return
	}
	env.Main(m, func(t env.TB) {
		api = env.StartAPI(t, env.Options{ControllerManager: true, Scheduler: true, Kubelets: 2, Audit: true})
	})
}

func client(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	cs, err := kubernetes.NewForConfig(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v\nfakekubelet:\n%s", what, err, api.Log("fakekubelet"))
		case <-tick.C:
		}
	}
}

func podSpec() corev1.PodSpec {
	return build.Pod("", "").Container(build.Container("app").
		Request("cpu", "100m").Request("memory", "100Mi").Limit("cpu", "200m").Limit("memory", "200Mi")).Obj().Spec
}

// runPod creates a pod in a namespace of its own and waits until it is ready.
func runPod(t *testing.T, spec corev1.PodSpec) *corev1.Pod {
	t.Helper()
	cs := client(t)
	ns, err := cs.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := cs.CoreV1().Pods(ns.Name).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitPod(t, pod, "ready", func(p *corev1.Pod) bool { return condition(p, corev1.PodReady).Status == corev1.ConditionTrue })
	return pod
}

func waitPod(t *testing.T, pod *corev1.Pod, what string, f func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var got *corev1.Pod
	eventually(t, "the pod to be "+what, func() (err error) {
		got, err = client(t).CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && !f(got) {
			err = fmt.Errorf("on node %q: %+v", got.Spec.NodeName, got.Status)
		}
		return err
	})
	return got
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

func resize(t *testing.T, pod *corev1.Pod, resources string) {
	t.Helper()
	_, err := client(t).CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"app","resources":`+resources+`}]}}`), metav1.PatchOptions{}, "resize")
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeploymentRuns(t *testing.T) {
	cs := client(t)
	const replicas = 4
	pod := build.Pod("", "").Label("app", "deployed").Container(build.Container("app"))
	d := build.Deployment("default", "deployed", pod).Replicas(replicas).Obj()
	if _, err := cs.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Deployment to be available", func() error {
		got, err := cs.AppsV1().Deployments("default").Get(t.Context(), d.Name, metav1.GetOptions{})
		if err == nil && got.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("%+v", got.Status)
		}
		return err
	})
	pods, err := cs.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=deployed"})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) != 2 {
		t.Errorf("4 pods run on %v, want both nodes", nodes)
	}
	if err := cs.AppsV1().Deployments("default").Delete(t.Context(), d.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pods to be collected", func() error {
		pods, err := cs.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=deployed"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are left", len(pods.Items))
		}
		return err
	})
}

func TestResizeIsActuated(t *testing.T) {
	tests := map[string]struct {
		resources     string
		cpu, memory   string // limits
		cpuReq, noted string
	}{
		"everything up":             {`{"requests":{"cpu":"150m","memory":"120Mi"},"limits":{"cpu":"300m","memory":"300Mi"}}`, "300m", "300Mi", "150m", ""},
		"everything down":           {`{"requests":{"cpu":"50m","memory":"50Mi"},"limits":{"cpu":"60m","memory":"60Mi"}}`, "60m", "60Mi", "50m", ""},
		"one up and the other down": {`{"requests":{"cpu":"150m"},"limits":{"memory":"150Mi"}}`, "200m", "150Mi", "150m", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := runPod(t, podSpec())
			resize(t, pod, tt.resources)
			got := waitPod(t, pod, "resized", func(p *corev1.Pod) bool {
				r := p.Status.ContainerStatuses[0].Resources
				return r != nil && r.Limits.Cpu().String() == tt.cpu && r.Limits.Memory().String() == tt.memory &&
					r.Requests.Cpu().String() == tt.cpuReq && condition(p, corev1.PodResizeInProgress).Status == ""
			})
			if n := got.Status.ContainerStatuses[0].RestartCount; n != 0 {
				t.Errorf("restarted %d times", n)
			}
		})
	}
}

func TestResizeWaits(t *testing.T) {
	t.Run("below what is in use, until it is less", func(t *testing.T) {
		t.Parallel()
		pod := runPod(t, podSpec())
		api.SetContainerMemory(pod.Namespace, pod.Name, "app", 150<<20)
		resize(t, pod, `{"limits":{"memory":"120Mi"}}`)
		waitPod(t, pod, "in error", inError)
		api.SetContainerMemory(pod.Namespace, pod.Name, "app", 110<<20)
		waitPod(t, pod, "resized", func(p *corev1.Pod) bool {
			return p.Status.ContainerStatuses[0].Resources.Limits.Memory().String() == "120Mi"
		})
	})
	t.Run("while the runtime refuses", func(t *testing.T) {
		t.Parallel()
		pod := runPod(t, podSpec())
		api.RefuseResize(pod.Namespace, pod.Name, "app", "not now")
		resize(t, pod, `{"requests":{"cpu":"150m"}}`)
		waitPod(t, pod, "in error", inError)
		api.RefuseResize(pod.Namespace, pod.Name, "app", "")
		waitPod(t, pod, "resized", func(p *corev1.Pod) bool {
			return p.Status.ContainerStatuses[0].Resources.Requests.Cpu().String() == "150m"
		})
	})
	t.Run("deferred on a full node", func(t *testing.T) {
		t.Parallel()
		spec := podSpec()
		spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("7Gi")
		delete(spec.Containers[0].Resources.Limits, "memory")
		pod := runPod(t, spec)
		spec.NodeName = waitPod(t, pod, "placed", func(p *corev1.Pod) bool { return true }).Spec.NodeName
		neighbour := runPod(t, spec)
		resize(t, pod, `{"requests":{"memory":"10Gi"}}`)
		waitPod(t, pod, "deferred", func(p *corev1.Pod) bool {
			return condition(p, corev1.PodResizePending).Reason == corev1.PodReasonDeferred
		})
		grace := int64(0)
		if err := client(t).CoreV1().Pods(neighbour.Namespace).Delete(t.Context(), neighbour.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
			t.Fatal(err)
		}
		waitPod(t, pod, "resized", func(p *corev1.Pod) bool {
			return p.Status.ContainerStatuses[0].Resources.Requests.Memory().String() == "10Gi"
		})
	})
}

func inError(p *corev1.Pod) bool {
	return condition(p, corev1.PodResizeInProgress).Reason == corev1.PodReasonError
}

func TestContainersEnd(t *testing.T) {
	t.Run("by their command", func(t *testing.T) {
		t.Parallel()
		spec := podSpec()
		spec.RestartPolicy = corev1.RestartPolicyNever
		spec.InitContainers = []corev1.Container{{Name: "init", Image: "init:1", Command: []string{"exit", "0"}}}
		spec.Containers[0].Command = []string{"exit", "3", "2s"}
		pod := runPod(t, spec)
		got := waitPod(t, pod, "failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if end := got.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 || end.Reason != "Error" {
			t.Errorf("ended as %+v, want exit code 3, Error", end)
		}
	})
	t.Run("by an OOM kill", func(t *testing.T) {
		t.Parallel()
		pod := runPod(t, podSpec())
		api.ExitContainer(pod.Namespace, pod.Name, "app", 137, "OOMKilled")
		got := waitPod(t, pod, "restarted", func(p *corev1.Pod) bool {
			return p.Status.ContainerStatuses[0].RestartCount == 1 && condition(p, corev1.PodReady).Status == corev1.ConditionTrue
		})
		if end := got.Status.ContainerStatuses[0].LastTerminationState.Terminated; end == nil || end.Reason != "OOMKilled" {
			t.Errorf("ended as %+v, want OOMKilled", end)
		}
	})
}

func TestProbesReachTheTest(t *testing.T) {
	healthy := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-healthy:
			http.Error(w, "no more", http.StatusServiceUnavailable)
		default:
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	spec := podSpec()
	spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Port: intstr.FromInt(port)}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	pod := runPod(t, spec)
	close(healthy)
	waitPod(t, pod, "unready", func(p *corev1.Pod) bool { return condition(p, corev1.PodReady).Status == corev1.ConditionFalse })
}

func TestRequestsAreCounted(t *testing.T) {
	cfg := api.User("counter", "system:masters")
	cfg.UserAgent = "counting"
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	before := api.Requests()
	const n = 7
	for i := range n {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("counted-%d", i)}}
		if _, err := cs.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the metrics", func() error {
		// The controller manager writes one ConfigMap into each new namespace.
		if got := api.Requests().Since(before).Writes("configmaps"); got < n {
			return fmt.Errorf("%d writes counted, want at least %d", got, n)
		}
		return nil
	})
	audited := api.Audited(func(e env.AuditEvent) bool {
		return e.UserAgent == "counting" && e.Verb == "create" && e.ObjectRef.Resource == "configmaps" && e.User.Username == "counter"
	})
	if len(audited) != n {
		t.Errorf("%d writes audited, want %d", len(audited), n)
	}
}

func TestRBACHolds(t *testing.T) {
	for name, cfg := range map[string]func() (*kubernetes.Clientset, error){
		"a user": func() (*kubernetes.Clientset, error) { return kubernetes.NewForConfig(api.User("nobody")) },
		"a service account": func() (*kubernetes.Clientset, error) {
			return kubernetes.NewForConfig(api.ServiceAccount("default", "weak"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cs, err := cfg()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cs.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("listing secrets gives %v, want forbidden", err)
			}
			if _, err := cs.Discovery().ServerVersion(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKubectl(t *testing.T) {
	out, err := api.Kubectl(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"by-kubectl"}}`, "apply", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	if want := "configmap/by-kubectl created\n"; out != want {
		t.Errorf("kubectl says %q, want %q", out, want)
	}
}
