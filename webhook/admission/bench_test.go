package admission_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
	"plimsoll.dev/webhook/admission"
)

// The size the figures are taken at.
const (
	benchPolicies = 1000
	benchProfiles = 5000
)

// benchPod is a pod of three containers as a Deployment's API server sends it.
func benchPod() *corev1.Pod {
	pod := newPod("web-7d4b9c6f5-x2x4k", mode("apply"))
	pod.Namespace = "default"
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "1", Controller: ptr(true)}}
	pod.Spec.Containers = nil
	for _, name := range []string{"app", "proxy", "logs"} {
		c := corev1.Container{
			Name: name, Image: "registry.example.org/shop/" + name + ":1.2.3", Args: []string{"--listen=:8080", "--level=info"},
			Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
			Resources: resources(map[corev1.ResourceName]string{"cpu": "1", "memory": "1Gi"}, map[corev1.ResourceName]string{"memory": "2Gi"}),
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"/bin/ready"}}}},
			VolumeMounts:             []corev1.VolumeMount{{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
			TerminationMessagePath:   "/dev/termination-log",
			TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			ImagePullPolicy:          corev1.PullIfNotPresent,
		}
		for i := range 6 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "value"})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// benchWorld fills the index, and the cache through the API server.
func benchWorld(b *testing.B) {
	b.Helper()
	var rps []v1alpha1.ResourcePolicy
	for i := range benchPolicies - 1 {
		p := v1alpha1.ResourcePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("p-%d", i)}}
		p.Spec.Priority = ptr(int32(i))
		p.Spec.Selector = v1alpha1.Selector{Kinds: []string{"Deployment"}, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": fmt.Sprint(i)}}}
		p.Spec.Resources = rules()
		rps = append(rps, p)
	}
	all := v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	all.Spec.Resources = rules()
	world.policies.Set(policy.NewIndex(rps, []v1alpha1.ClusterResourcePolicy{all}))
	ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "all"}
	if _, ok := world.policies.Get().Load(ref); !ok {
		b.Fatal("the policy is not there")
	}
	containers := []v1alpha1.ContainerStatus{}
	for _, name := range []string{"app", "proxy", "logs"} {
		containers = append(containers, recommended(name, "100m", "200m", "64Mi", "128Mi"))
	}
	learn(b, benchPod(), ref, containers...)
	key := func(i int) profile.Key {
		return profile.KeyOf(map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i)}, v1alpha1.DefaultIdentityLabels(), ref)
	}
	var last *v1alpha1.WorkloadProfile
	for i := range benchProfiles - 1 {
		k := key(i)
		last = &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: k.Name()}, Spec: v1alpha1.WorkloadProfileSpec{Identity: k.Identity()}}
		if err := world.client.Create(b.Context(), last); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		_ = world.client.DeleteAllOf(context.WithoutCancel(b.Context()), &v1alpha1.WorkloadProfile{})
	})
	seen(b, last)
}

// BenchmarkAdmission measures the handler against decoding the same pod's JSON,
// with 1,000 policies and 5,000 profiles in the caches.
func BenchmarkAdmission(b *testing.B) {
	benchWorld(b)
	pod := benchPod()
	object, body := mustJSON(b, pod), review(b, "default", pod)
	h := admission.NewServer("pods", pods().Admit, admission.NewMetrics(prometheus.NewRegistry()), logr.Discard())
	if r := call(b, h, body); !bytes.Contains(r.Patch, []byte("100m")) {
		b.Fatalf("nothing is applied: %s", r.Patch)
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if err := utiljson.Unmarshal(object, &corev1.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			serveOnce(h, body)
		}
	})
	figures(b, h, object, body)
}

func serveOnce(h http.Handler, body []byte) {
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/?timeout=2s", bytes.NewReader(body)))
}

// cpuTime is the processor time of this process, garbage collection included.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// figures prints the RESULT lines: the median over alternating runs of the
// processor time of both, so that what else the machine does falls on neither, and the 99th percentile at 500
// requests a second.
func figures(b *testing.B, h http.Handler, object, body []byte) {
	timed := func(f func()) time.Duration {
		start := cpuTime(b)
		for range 200 {
			f()
		}
		return cpuTime(b) - start
	}
	var ratios []float64
	for range 41 {
		d := timed(func() { _ = utiljson.Unmarshal(object, &corev1.Pod{}) })
		a := timed(func() { serveOnce(h, body) })
		ratios = append(ratios, float64(a)/float64(d))
	}
	slices.Sort(ratios)
	fmt.Printf("RESULT admission_vs_decode %.2f ratio\n", ratios[len(ratios)/2])
	took := make([]time.Duration, 0, 2000)
	next := time.Now()
	for range cap(took) {
		next = next.Add(2 * time.Millisecond)
		time.Sleep(time.Until(next))
		start := time.Now()
		serveOnce(h, body)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	fmt.Printf("RESULT admission_p99_us %d us\n", took[len(took)*99/100].Microseconds())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1000 {
		serveOnce(h, body)
	}
	runtime.ReadMemStats(&after)
	fmt.Printf("RESULT admission_allocated %d bytes\n", (after.TotalAlloc-before.TotalAlloc)/1000)
}
