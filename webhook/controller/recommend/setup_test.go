package recommend_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/recommend"
)

const mi = 1 << 20

var (
	api   *env.API
	redis *env.Redis
	// now is the clock of every test: noon, in the middle of an hour.
	now = time.Now().UTC().Truncate(time.Hour).Add(30 * time.Minute)
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	env.Main(m, func(t env.TB) {
		api = env.StartAPI(t, env.Options{})
		redis = env.StartRedis(t, env.RedisOptions{})
	})
}

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// podList are the pods of a test's profile.
type podList []corev1.Pod

func (p podList) OfProfile(context.Context, string) ([]corev1.Pod, error) { return p, nil }

func pod(name string, containers ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: c,
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
				corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("4"),
			}},
		})
	}
	return p
}

// bench is one profile under one policy, with a controller to reconcile it.
type bench struct {
	t        *testing.T
	client   client.Client
	store    *store.Store
	profile  string
	hash     string
	policy   *v1alpha1.ClusterResourcePolicy
	policies policy.Holder
	options  recommend.Options
	// controller is made from options at the first reconcile.
	controller *recommend.Controller
}

// newBench makes a profile and its policy: all four fields of cpu and memory by the defaults.
func newBench(t *testing.T, server *env.Redis) *bench {
	t.Helper()
	c, err := client.New(api.Config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(store.Config{URL: "redis://" + server.Addr(), Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	b := &bench{t: t, client: c, store: s, profile: name, hash: fmt.Sprintf("%016x", time.Now().UnixNano())}
	b.policy = &v1alpha1.ClusterResourcePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{
			{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldRequest},
			{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldLimit},
			{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldRequest},
			{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldLimit},
		}},
	}
	b.create(b.policy)
	b.create(&v1alpha1.WorkloadProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.WorkloadProfileSpec{Identity: v1alpha1.Identity{
			Tuple:           map[string]string{"app.kubernetes.io/name": "shop"},
			PolicyRef:       &v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: name},
			MeasurementHash: b.hash,
		}},
	})
	b.index()
	b.options = recommend.Options{
		Client: c, Policies: &b.policies, Measurements: s, Pods: podList{pod("a", "app")},
		Metrics: recommend.NewMetrics(prometheus.NewRegistry()), Interval: time.Minute, Now: func() time.Time { return now },
	}
	return b
}

func (b *bench) create(o client.Object) {
	b.t.Helper()
	if err := b.client.Create(b.t.Context(), o); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = b.client.Delete(context.Background(), o) })
}

// index compiles the policy as it is.
func (b *bench) index() {
	b.policies.Set(policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{*b.policy}))
}

// edit changes the policy in the API.
func (b *bench) edit(change func(*v1alpha1.ResourcePolicySpec)) {
	b.t.Helper()
	change(&b.policy.Spec)
	if err := b.client.Update(b.t.Context(), b.policy); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) reconcile() reconcile.Result {
	b.t.Helper()
	if b.controller == nil {
		b.controller = recommend.New(b.options)
	}
	r, err := b.controller.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: b.profile}})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bench) get() *v1alpha1.WorkloadProfile {
	b.t.Helper()
	p := &v1alpha1.WorkloadProfile{}
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: b.profile}, p); err != nil {
		b.t.Fatal(err)
	}
	return p
}

// condition returns "status reason" of a condition.
func (b *bench) condition(kind string) string {
	b.t.Helper()
	c := meta.FindStatusCondition(b.get().Status.Conditions, kind)
	if c == nil {
		return "absent"
	}
	return string(c.Status) + " " + c.Reason
}

// value returns one recommendation of container app, as text; empty if there is none.
func (b *bench) value(r corev1.ResourceName, f v1alpha1.ResourceField) string {
	b.t.Helper()
	for _, c := range b.get().Status.Containers {
		for _, rec := range c.Recommendations {
			if c.Name == "app" && rec.Resource == r && rec.Field == f {
				return rec.Value.String()
			}
		}
	}
	return ""
}

// measure writes hours of steady use, a sample a minute, the newest hour not yet final.
func (b *bench) measure(container string, hours int, cores, bytes float64) {
	b.t.Helper()
	var batch store.Batch
	for back := range hours {
		hour := store.HourOf(now) - int64(back)
		batch.Writes = append(batch.Writes, b.hour(container, hour, back > 0, cores, bytes))
	}
	if _, err := b.store.Flush(b.t.Context(), batch); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) hour(container string, hour int64, final bool, cores, bytes float64) store.Write {
	b.t.Helper()
	start := time.Unix(hour*3600, 0)
	blob := store.Blob{Final: final, Started: start}
	for _, r := range []sample.Resource{sample.CPU, sample.CPUBurst, sample.Memory, sample.MemoryPeak} {
		blob.Usage[r] = &sketch.Sketch{}
	}
	for minute := range 60 {
		at := start.Add(time.Duration(minute) * time.Minute)
		if at.After(now) {
			break
		}
		blob.Minutes.Add(at)
		blob.Usage[sample.CPU].Add(cores, 60_000)
		blob.Usage[sample.CPUBurst].Add(cores, 60_000)
		blob.Usage[sample.Memory].Add(bytes, 60_000)
		blob.Usage[sample.MemoryPeak].Add(bytes, 60_000)
		blob.Flush += 4
	}
	value, err := blob.AppendBinary(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	field := store.Field{Hash: b.hash, Hour: hour, Container: container, Agent: "node", Epoch: uint64(hour)}
	return store.Write{Field: field, Value: value}
}

func (b *bench) kill(container string, at time.Time, limit sample.Amount) {
	b.t.Helper()
	_, err := b.store.Flush(b.t.Context(), store.Batch{OOMKills: []store.OOMKill{{
		Hash: b.hash, Container: container, PodUID: "gone", KernelTime: uint64(at.UnixNano()), At: at, Limit: limit, Usage: limit,
		Scope: store.ScopeContainer,
	}}})
	if err != nil {
		b.t.Fatal(err)
	}
}
