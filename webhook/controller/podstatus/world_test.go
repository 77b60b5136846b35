package podstatus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/hashring"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/test/build"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/podstatus"
)

// api has a controller manager, which collects garbage.
var api *env.API

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{ControllerManager: true}) })
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// events keeps the events that are given.
type events struct {
	mu   sync.Mutex
	list []string
}

// Eventf implements events.EventRecorder.
func (e *events) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := about.(client.Object).GetName()
	e.list = append(e.list, fmt.Sprintf("%s %s %s: %s", kind, reason, name, fmt.Sprintf(note, args...)))
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}

// world is an installation in a namespace of its own.
type world struct {
	t         testing.TB
	c         client.Client // uncached
	namespace string

	mu      sync.Mutex
	members []string
	subs    []chan struct{}
	events  events
	ahead   time.Duration // of the clock
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c, err := client.New(api.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, c: c}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "plimsoll-"}}
	w.must(c.Create(t.Context(), ns))
	w.namespace = ns.Name
	t.Cleanup(func() {
		ctx := context.Background()
		w.must(c.DeleteAllOf(ctx, &v1alpha1.ResourcePolicy{}, client.InNamespace(w.namespace)))
		w.must(c.DeleteAllOf(ctx, &v1alpha1.ClusterResourcePolicy{}))
		w.must(c.DeleteAllOf(ctx, &v1alpha1.PlimsollConfig{}))
	})
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.ahead)
}

// pass moves the clock and has everything looked at again.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	w.ahead += d
	w.mu.Unlock()
	w.tell()
}

func (w *world) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.subs {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}

// join and leave change who is a member, as the Leases would.
func (w *world) join(pod string) {
	w.mu.Lock()
	w.members = append(w.members, pod)
	w.mu.Unlock()
	w.tell()
}

func (w *world) leave(pod string) {
	w.mu.Lock()
	w.members = slices.DeleteFunc(w.members, func(m string) bool { return m == pod })
	w.mu.Unlock()
	w.tell()
}

// ring is a replica's view of the members.
type ring struct {
	*world
	self string
}

func (r ring) Members() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.members)
}

func (r ring) Owns(key string) bool { return hashring.New(r.Members()...).Owner(key) == r.self }

func (r ring) Subscribe() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{}, 1)
	r.subs = append(r.subs, c)
	return c
}

// replica is the controllers of one webhook replica.
type replica struct {
	*world
	pod  *corev1.Pod // nil out of the cluster
	stop func()
}

// startReplica starts a replica and its pod; broken policies do not compile in it.
func (w *world) startReplica(name string, broken ...string) *replica {
	w.t.Helper()
	r := &replica{world: w}
	d := podstatus.Deps{Policies: &policy.Holder{}, Namespace: w.namespace, GatherPods: time.Second, GatherAgents: 100 * time.Millisecond, Recorder: &w.events, Now: w.now}
	if name != "" {
		r.pod = build.Pod(w.namespace, name).Container(build.Container("webhook")).Obj()
		w.must(w.c.Create(w.t.Context(), r.pod))
		d.Replica, d.PodUID, d.Ring = name, r.pod.UID, ring{w, name}
		w.join(name)
	}
	skip := true
	own := cache.ByObject{Namespaces: map[string]cache.Config{w.namespace: {}}}
	mgr, err := ctrl.NewManager(api.Config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: &skip},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.PolicyPodStatus{}: own, &v1alpha1.AgentStatus{}: own, &appsv1.DaemonSet{}: own,
		}},
	})
	w.must(err)
	w.must(podstatus.SetupWithManager(w.t.Context(), mgr, d))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	compile(w, ctx, mgr.GetCache(), d.Policies, broken)
	go func() { done <- mgr.Start(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the manager ended: %v", err)
		}
	})
	w.t.Cleanup(r.stop)
	return r
}

// compile keeps a replica's index of policies.
func compile(w *world, ctx context.Context, c cache.Cache, h *policy.Holder, broken []string) {
	w.t.Helper()
	again := func(any) {
		var rps v1alpha1.ResourcePolicyList
		var crps v1alpha1.ClusterResourcePolicyList
		if c.List(ctx, &rps) != nil || c.List(ctx, &crps) != nil {
			return // stopping
		}
		for i := range crps.Items {
			if slices.Contains(broken, crps.Items[i].Name) {
				crps.Items[i].Spec.Selector.Namespaces = &v1alpha1.NamespaceSelector{Include: []v1alpha1.Pattern{"/(/"}}
			}
		}
		h.Set(policy.NewIndex(rps.Items, crps.Items))
	}
	for _, o := range []client.Object{&v1alpha1.ResourcePolicy{}, &v1alpha1.ClusterResourcePolicy{}} {
		informer, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		w.must(err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: again, UpdateFunc: func(_, o any) { again(o) }, DeleteFunc: again})
		w.must(err)
	}
}

// kill ends a replica as a crash would, its pod included.
func (r *replica) kill() {
	r.t.Helper()
	r.stop()
	r.must(r.c.Delete(r.t.Context(), r.pod, client.GracePeriodSeconds(0)))
}

func (w *world) policy(name string) *v1alpha1.ClusterResourcePolicy {
	w.t.Helper()
	p := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.must(w.c.Create(w.t.Context(), p))
	return p
}

// edit changes a policy's spec.
func (w *world) edit(p *v1alpha1.ClusterResourcePolicy, priority int) {
	w.t.Helper()
	w.must(w.c.Patch(w.t.Context(), p, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"priority":%d}}`, priority))))
}

// says waits until a policy's status has what these pods say about it as it is now, and a Ready condition.
func (w *world) says(p *v1alpha1.ClusterResourcePolicy, reason, message string, pods ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("the status of %s", p.Name), func() error {
		if err := w.c.Get(w.t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		var got []string
		for _, b := range p.Status.ByPod {
			got = append(got, b.Pod)
			if b.ParentGeneration != p.Generation {
				return fmt.Errorf("%s speaks of generation %d, not %d", b.Pod, b.ParentGeneration, p.Generation)
			}
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if ready == nil || ready.Reason != reason || message != "" && ready.Message != message || ready.ObservedGeneration != p.Generation || !slices.Equal(got, pods) {
			return fmt.Errorf("pods %v, Ready is %+v", got, ready)
		}
		return nil
	})
}

func (w *world) reports() map[string]v1alpha1.PolicyPodStatus {
	w.t.Helper()
	var list v1alpha1.PolicyPodStatusList
	w.must(w.c.List(w.t.Context(), &list, client.InNamespace(w.namespace)))
	out := map[string]v1alpha1.PolicyPodStatus{}
	for _, s := range list.Items {
		out[s.Spec.Pod+"/"+s.Spec.PolicyRef.Name] = s
	}
	return out
}

func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			w.t.Fatalf("waiting for %s: %v", what, err)
		case <-tick.C:
		}
	}
}

// writes counts what has been written to our objects.
func writes() int {
	n, r := 0, api.Requests()
	for _, resource := range []string{
		"policypodstatuses", "policypodstatuses/status", "resourcepolicies/status", "clusterresourcepolicies/status", "plimsollconfigs/status",
	} {
		n += r.Writes(resource)
	}
	return n
}

// reconciles counts the reconciles of all controllers of this process.
func reconciles() float64 {
	families, err := metrics.Registry.Gather()
	if err != nil {
		panic(err)
	}
	n := 0.0
	for _, f := range families {
		if f.GetName() == "controller_runtime_reconcile_total" && f.GetType() == dto.MetricType_COUNTER {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// quiet waits until nothing has been written or reconciled for two seconds.
func (w *world) quiet() {
	w.t.Helper()
	lastWrites, lastReconciles, since := writes(), reconciles(), time.Now()
	w.eventually("quiet", func() error {
		if n, m := writes(), reconciles(); n != lastWrites || m != lastReconciles {
			lastWrites, lastReconciles, since = n, m, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return errors.New("not quiet yet")
		}
		return nil
	})
}
