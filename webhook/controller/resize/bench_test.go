package resize_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/resize"
)

// fleet is many workloads of ten pods each, every one with a profile.
type fleet struct {
	*bench
	profiles int
}

const podsEach = 10

// workers is how many resizes a replica, or a plain client, has on its way.
const workers = 4

func newFleet(tb *testing.B, profiles int) *fleet {
	tb.Helper()
	f := &fleet{bench: newBench(tb), profiles: profiles}
	f.govern(withAll)
	f.govern(func(s *v1alpha1.ResourcePolicySpec) { s.Resize.Interval = &metav1.Duration{Duration: time.Minute} })
	var n int32 = podsEach
	for i := range profiles {
		name := "web-" + strconv.Itoa(i)
		wp := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: f.nameOf(i)}}
		wp.Spec.Identity = v1alpha1.Identity{
			Tuple:     map[string]string{"app.kubernetes.io/name": name},
			PolicyRef: &v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: f.ns, Name: "web"}, MeasurementHash: fmt.Sprintf("%016x", i),
		}
		template := f.template()
		template.Labels["app.kubernetes.io/name"] = name
		template.Annotations[v1alpha1.AnnotationProfileRef] = wp.Name
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}}
		d.Spec = appsv1.DeploymentSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": name}}, Template: template}
		for _, o := range []client.Object{wp, d} {
			if err := f.client.Create(tb.Context(), o); err != nil {
				tb.Fatal(err)
			}
		}
	}
	f.eventually("the pods run", 15*time.Minute, func() error {
		running := 0
		pods := f.pods()
		for i := range pods {
			if ready(&pods[i]) {
				running++
			}
		}
		if running != profiles*podsEach {
			pause(tb, time.Second)
			return fmt.Errorf("%d of %d pods run", running, profiles*podsEach)
		}
		return nil
	})
	return f
}

func pause(tb testing.TB, d time.Duration) {
	select {
	case <-tb.Context().Done():
	case <-time.After(d):
	}
}

func (f *fleet) nameOf(i int) string { return "web-" + strconv.Itoa(i) + "--" + f.ns }

func (f *fleet) recommendAll(cpu string) {
	f.t.Helper()
	own := f.profile
	defer func() { f.profile = own }()
	for i := range f.profiles {
		f.profile = f.nameOf(i)
		f.recommend("cpu request", cpu, "cpu limit", "1")
	}
}

// meter notes when resizes were accepted.
type meter struct {
	mu          sync.Mutex
	n           int
	first, last time.Time
}

func (m *meter) count(_ context.Context, _ client.Object, send func() error) error {
	began := time.Now()
	err := send()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n++; m.n == 1 {
		m.first = began
	}
	m.last = time.Now()
	return nil
}

func (m *meter) done() (int, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n, m.last.Sub(m.first)
}

// plain changes every pod with three clients that do nothing else, by the same
// kind of call, and returns the calls per second.
func (f *fleet) plain(cpu string) float64 {
	f.t.Helper()
	pods := f.pods()
	var running sync.WaitGroup
	began := time.Now()
	for i := range 3 * workers {
		c, err := client.New(api.Config, client.Options{Scheme: scheme()})
		if err != nil {
			f.t.Fatal(err)
		}
		running.Go(func() {
			for j := i; j < len(pods); j += 3 * workers {
				body, err := plan.ApplyBody(&pods[j], []plan.Change{
					{Field: plan.Field{Container: "c", Resource: "cpu", Field: v1alpha1.FieldRequest}, To: list("cpu", cpu)["cpu"]},
					{Field: plan.Field{Container: "c", Resource: "cpu", Field: v1alpha1.FieldLimit}, To: list("cpu", "1")["cpu"]},
				}, plan.Claim{})
				if err != nil {
					f.t.Error(err)
				}
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pods[j].Namespace, Name: pods[j].Name}}
				err = c.SubResource("resize").Patch(f.t.Context(), p, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(plan.ManagerPrefix+"plain-"+strconv.Itoa(i%3)), client.ForceOwnership)
				if err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	running.Wait()
	return float64(len(pods)) / time.Since(began).Seconds()
}

// resizeAll lets three replicas change every pod, and returns the resizes per
// second, the applies sent and how many pods were changed more than once.
func (f *fleet) resizeAll(cpu string, unpartitioned bool) (perSecond, appliesEach float64, twice int) {
	f.t.Helper()
	f.recommendAll(cpu)
	before := f.changed()
	sent := f.applies()
	m, accepted := newMembers("a", "b", "c"), &meter{}
	var replicas []*replica
	for _, name := range []string{"a", "b", "c"} {
		replicas = append(replicas, f.start(name, &fakeRing{name, m}, func(o *resize.Options) {
			o.Interval, o.Concurrency, o.Unpartitioned = 10*time.Second, workers, unpartitioned
			intercepted(f.t, accepted.count)(o)
		}))
	}
	all := f.profiles * podsEach
	f.eventually("all are accepted", 10*time.Minute, func() error {
		if n, _ := accepted.done(); n < all {
			return fmt.Errorf("%d of %d", n, all)
		}
		return nil
	})
	_, took := accepted.done()
	f.eventually("all are done and say so", 5*time.Minute, func() error {
		pods := f.pods()
		for i := range pods {
			if r := record(f.t, &pods[i]); r.State != plan.StateResized || len(r.Changes) == 0 || r.Changes[0].To != cpu {
				pause(f.t, time.Second)
				return fmt.Errorf("pod %s is %q", pods[i].Name, r.State)
			}
		}
		return nil
	})
	for _, r := range replicas {
		r.stop()
	}
	changes := 0
	for name, n := range f.changed() {
		n -= before[name]
		changes += int(n)
		if n > 1 {
			twice++
		}
	}
	return float64(all) / took.Seconds(), float64(f.applies()-sent) / float64(changes), twice
}

// applies counts the calls to pods/resize that the API server has answered,
// whatever it answered.
func (f *fleet) applies() int {
	n := 0
	for r, count := range api.Requests() {
		if r.Resource == "pods" && r.Subresource == "resize" && r.Verb == "APPLY" {
			n += count
		}
	}
	return n
}

// BenchmarkFleet resizes 2,000 running pods of 200 profiles by three replicas,
// with and without the ring, and by three clients that do nothing else.
// PLIMSOLL_BENCH_PROFILES makes it smaller.
func BenchmarkFleet(b *testing.B) {
	profiles := 200
	if s := os.Getenv("PLIMSOLL_BENCH_PROFILES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		profiles = n
	}
	shared := api
	defer func() { api = shared }()
	api = env.StartAPI(b, env.Options{ControllerManager: true, Scheduler: true, Kubelets: max(2, profiles*podsEach/200), Node: env.Node{MaxPods: 250, CPUs: 64, Memory: 256}})
	f := newFleet(b, profiles)
	for range b.N {
		perSecond, each, twice := f.resizeAll("50m", false)
		plain := f.plain("20m")
		fmt.Printf("RESULT resize_plain_per_s %.0f calls/s\n", plain)
		fmt.Printf("RESULT resize_per_s %.0f resizes/s\n", perSecond)
		fmt.Printf("RESULT resize_throughput_ratio %.2f ratio\n", perSecond/plain)
		fmt.Printf("RESULT resize_applies_per_success %.3f ratio\n", each)
		fmt.Printf("RESULT resize_twice %d pods\n", twice)
		perSecond, each, twice = f.resizeAll("100m", true)
		fmt.Printf("RESULT resize_unpartitioned_per_s %.0f resizes/s\n", perSecond)
		fmt.Printf("RESULT resize_unpartitioned_applies_per_success %.3f ratio\n", each)
		fmt.Printf("RESULT resize_unpartitioned_twice %d pods\n", twice)
	}
}
