package recommend_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/recommend"
)

const (
	benchProfiles = 10_000
	benchAgents   = 10
	benchWorkers  = 4
)

// readOnly leaves folding out: the store's benchmarks measure it.
type readOnly struct{ *store.Store }

func (readOnly) Fold(context.Context, string, time.Time, store.Retention) (int, error) { return 0, nil }

// profileMap stands in for the API server: the benchmark is about measurements.
type profileMap struct {
	mu       sync.Mutex
	profiles map[string]*v1alpha1.WorkloadProfile
}

func (m *profileMap) client() client.Client {
	return interceptor.NewClient(nil, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if p, ok := o.(*v1alpha1.WorkloadProfile); ok {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.profiles[key.Name].DeepCopyInto(p)
			}
			return nil
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, o client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.profiles[o.GetName()] = o.(*v1alpha1.WorkloadProfile)
			return nil
		},
	})
}

func benchHash(i int) string { return fmt.Sprintf("%016x", i) }

// busyBlob is an hour of five resources that spread over a few dozen buckets each.
func busyBlob(b *testing.B, hour int64, rng *rand.Rand) []byte {
	b.Helper()
	start := time.Unix(hour*3600, 0)
	blob := store.Blob{Started: start}
	for r := range blob.Usage {
		blob.Usage[r] = &sketch.Sketch{}
		scale := 0.2
		if !sample.Resource(r).IsCPU() {
			scale = 300 * mi
		}
		for range 600 {
			blob.Usage[r].Add(scale*(0.7+0.3*rng.NormFloat64()*rng.Float64()+0.3), 1000)
			blob.Flush++
		}
	}
	for minute := range 30 {
		blob.Minutes.Add(start.Add(time.Duration(minute) * time.Minute))
	}
	value, err := blob.AppendBinary(nil)
	if err != nil {
		b.Fatal(err)
	}
	return value
}

// fill writes for every profile a day-old hour, which becomes the cached base, and the open hour of ten agents.
func fill(b *testing.B, s *store.Store) {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	hour := store.HourOf(now)
	var old, open [16][]byte
	for i := range open {
		old[i], open[i] = busyBlob(b, hour-30, rng), busyBlob(b, hour, rng)
	}
	var batch store.Batch
	for i := range benchProfiles {
		for c, container := range []string{"app", "sidecar"} {
			field := store.Field{Hash: benchHash(i), Hour: hour - 30, Container: container, Agent: "n", Epoch: 1}
			batch.Writes = append(batch.Writes, store.Write{Field: field, Value: old[(i+c)%16]})
			for a := range benchAgents {
				field := store.Field{Hash: benchHash(i), Hour: hour, Container: container, Agent: fmt.Sprint("node-", a), Epoch: uint64(i)}
				batch.Writes = append(batch.Writes, store.Write{Field: field, Value: open[(i+a+c)%16]})
			}
		}
		if i%100 == 99 {
			if _, err := s.Flush(b.Context(), batch); err != nil {
				b.Fatal(err)
			}
			batch = store.Batch{}
		}
	}
}

func heapMiB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / mi
}

// BenchmarkRecommend10k computes 10,000 profiles of two containers and five resources, the open hours of ten agents each
// read from a real Redis.
func BenchmarkRecommend10k(b *testing.B) {
	server := env.StartRedis(b, env.RedisOptions{})
	s, err := store.Open(store.Config{URL: "redis://" + server.Addr(), Timeout: 30 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	fill(b, s)
	m := &profileMap{profiles: map[string]*v1alpha1.WorkloadProfile{}}
	for i := range benchProfiles {
		name := benchHash(i)
		m.profiles[name] = &v1alpha1.WorkloadProfile{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.WorkloadProfileSpec{Identity: v1alpha1.Identity{
				MeasurementHash: name, PolicyRef: &v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "fleet"},
			}},
		}
	}
	var rules []v1alpha1.ResourceRule
	for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		rules = append(rules, v1alpha1.ResourceRule{Resource: r, Field: v1alpha1.FieldRequest}, v1alpha1.ResourceRule{Resource: r, Field: v1alpha1.FieldLimit})
	}
	var policies policy.Holder
	policies.Set(policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{{
		ObjectMeta: metav1.ObjectMeta{Name: "fleet"}, Spec: v1alpha1.ResourcePolicySpec{Resources: rules},
	}}))
	before := heapMiB()
	c := recommend.New(recommend.Options{
		Client: m.client(), Policies: &policies, Measurements: readOnly{s}, Pods: podList{pod("a", "app", "sidecar")},
		Metrics: recommend.NewMetrics(prometheus.NewRegistry()), Now: func() time.Time { return now },
	})
	started := time.Now()
	computeAll(b, c)
	cold := time.Since(started)
	b.ResetTimer()
	for range b.N {
		computeAll(b, c)
	}
	b.StopTimer()
	for _, p := range m.profiles {
		p.Status = v1alpha1.WorkloadProfileStatus{} // what an API cache holds is not the computation's
	}
	fmt.Printf("RESULT recommend_10k_s %.2f s\n", b.Elapsed().Seconds()/float64(b.N))
	fmt.Printf("RESULT recommend_10k_cold_s %.2f s\n", cold.Seconds())
	fmt.Printf("RESULT recommend_10k_heap_mib %.0f MiB\n", heapMiB()-before)
	runtime.KeepAlive(c)
}

func computeAll(b *testing.B, c *recommend.Controller) {
	b.Helper()
	names := make(chan string)
	var group sync.WaitGroup
	for range benchWorkers {
		group.Go(func() {
			for name := range names {
				if _, err := c.Reconcile(b.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range benchProfiles {
		names <- benchHash(i)
	}
	close(names)
	group.Wait()
}
