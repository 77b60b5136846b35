package resize_test

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/webhook/controller/resize"
)

// replica is one running controller.
type replica struct {
	*resize.Controller
	stop func()
}

// pod lister over a manager's cache, as the webhook has one.
type byProfile struct{ client.Client }

const indexProfile = "test/profile"

func (l byProfile) OfProfile(ctx context.Context, name string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := l.List(ctx, &pods, client.MatchingFields{indexProfile: name}, client.UnsafeDisableDeepCopy)
	return pods.Items, err
}

var enrolled = func() labels.Selector {
	s, err := labels.Parse(v1alpha1.LabelMode + "," + v1alpha1.LabelMode + "!=off")
	if err != nil {
		panic(err)
	}
	return s
}()

// assemble makes a replica that is not running yet.
func assemble(ctx context.Context, cfg *rest.Config, policies *policy.Holder, change func(ctrl.Manager, *resize.Options) error) (ctrl.Manager, *resize.Controller, error) {
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		// As the webhook has it: pods that are not enrolled are not in the cache.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: enrolled}}},
	})
	if err != nil {
		return nil, nil, err
	}
	err = mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexProfile, func(o client.Object) []string {
		if p := o.GetAnnotations()[v1alpha1.AnnotationProfileRef]; p != "" {
			return []string{p}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	o := resize.Options{
		Client: mgr.GetClient(), Uncached: mgr.GetAPIReader(), Policies: policies, Pods: byProfile{mgr.GetClient()},
		Recorder: mgr.GetEventRecorder("plimsoll"), Interval: time.Second, Concurrency: 4,
	}
	if err := change(mgr, &o); err != nil {
		return nil, nil, err
	}
	c, err := resize.New(o)
	return mgr, c, err
}

// start runs a replica; ring may be nil.
func (b *bench) start(name string, ring resize.Ring, change func(*resize.Options)) *replica {
	b.t.Helper()
	mgr, c, err := assemble(b.t.Context(), api.Config, b.policies, func(_ ctrl.Manager, o *resize.Options) error {
		o.Measurements, o.Ring, o.Replica = b.live, ring, name
		if change != nil {
			change(o)
		}
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	var rebalanced chan struct{}
	if r, ok := ring.(*fakeRing); ok {
		rebalanced = r.subscribe()
	}
	if err := c.SetupWithManager(b.t.Context(), mgr, rebalanced); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				b.t.Errorf("replica %s: %v", name, err)
			}
		})
	}
	b.t.Cleanup(stop)
	if !mgr.GetCache().WaitForCacheSync(b.t.Context()) {
		b.t.Fatalf("replica %s has no cache", name)
	}
	return &replica{Controller: c, stop: stop}
}

// liveUse are live values, the same for container c of every pod; nothing is
// known by default.
type liveUse struct {
	mu  sync.Mutex
	use map[string]store.Live // by pod UID
}

func (l *liveUse) set(pods []corev1.Pod, memory string, change func(*store.Live)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	use := map[string]store.Live{}
	q := resource.MustParse(memory)
	for i := range pods {
		v := store.Live{PodUID: string(pods[i].UID), Container: "c", Memory: sample.FromQuantity(q), MemoryMax: sample.FromQuantity(q)}
		if change != nil {
			change(&v)
		}
		use[v.PodUID] = v
	}
	l.use = use
}

func (l *liveUse) Live(context.Context, string, time.Time) ([]store.Live, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []store.Live
	for v := range maps.Values(l.use) {
		out = append(out, v)
	}
	return out, nil
}
