package profile_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/profile"
)

// api is an API server without controllers: no pod runs, nothing is collected,
// and every write that is counted is ours.
var api *env.API

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	if kubeconfig := os.Getenv(asReplica); kubeconfig != "" {
		runReplica(kubeconfig)
		return
	}
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{Audit: true}) })
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

// world is a replica's controllers on a cluster that holds nothing else.
type world struct {
	t         testing.TB
	c         client.Client // uncached
	mgr       ctrl.Manager
	resolver  *profile.Resolver
	purger    *purger
	events    *events
	clock     *clock
	again     chan struct{} // has the controllers look at everything again
	namespace string
	wait      time.Duration // how long eventually waits,
	tick      time.Duration // and between two looks
	stop      func()
}

// replica says how a replica differs from one that is alone.
type replica struct {
	owns      func(string) bool
	transport func(http.RoundTripper) http.RoundTripper
	purger    profile.Purger
}

func start(t testing.TB) *world { t.Helper(); return startReplica(t, replica{}) }

func startReplica(t testing.TB, o replica) *world {
	t.Helper()
	w := &world{t: t, purger: &purger{}, events: &events{}, clock: &clock{}, again: make(chan struct{}), wait: 30 * time.Second, tick: 20 * time.Millisecond}
	var err error
	if w.c, err = client.New(api.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	w.namespace = w.newNamespace(nil)
	t.Cleanup(w.clear)
	w.run(o)
	return w
}

// newManager returns a manager that leaves out what no test looks at.
func newManager(cfg *rest.Config) (ctrl.Manager, error) {
	skip := true
	return ctrl.NewManager(cfg, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: &skip},
		Cache:      profile.CacheOptions(),
	})
}

// run starts the controllers; they stop at the end of the test or by w.stop.
func (w *world) run(o replica) {
	w.t.Helper()
	cfg := rest.CopyConfig(api.Config)
	if o.transport != nil {
		cfg.Wrap(o.transport)
	}
	var err error
	if w.mgr, err = newManager(cfg); err != nil {
		w.t.Fatal(err)
	}
	w.resolver = profile.NewResolver(w.mgr, &policy.Holder{}, "plimsoll")
	deps := profile.Deps{Resolver: w.resolver, Purger: w.purger, Owns: o.owns, Rebalanced: w.again, Recorder: w.events, Now: w.clock.now}
	if o.purger != nil {
		deps.Purger = o.purger
	}
	if err := profile.SetupWithManager(w.mgr, deps); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.mgr.Start(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("the manager ended: %v", err)
		}
	})
	w.t.Cleanup(w.stop)
	if !w.mgr.GetCache().WaitForCacheSync(ctx) {
		w.t.Fatal("the cache did not sync")
	}
	w.eventually("the first index", func() error {
		if w.resolver.Policies.Get() == nil {
			return fmt.Errorf("no index yet")
		}
		return nil
	})
}

// clear removes what is not in a namespace of the test's own.
func (w *world) clear() {
	ctx := context.Background()
	now := client.GracePeriodSeconds(0)
	var namespaces corev1.NamespaceList
	w.must(w.c.List(ctx, &namespaces))
	for _, ns := range namespaces.Items {
		in := client.InNamespace(ns.Name)
		w.must(w.c.DeleteAllOf(ctx, &corev1.Pod{}, in, now))
		w.must(w.c.DeleteAllOf(ctx, &v1alpha1.ResourcePolicy{}, in))
	}
	w.must(w.c.DeleteAllOf(ctx, &v1alpha1.ClusterResourcePolicy{}))
	w.must(w.c.DeleteAllOf(ctx, &v1alpha1.PlimsollConfig{}))
	var profiles v1alpha1.WorkloadProfileList
	w.must(w.c.List(ctx, &profiles))
	for _, p := range profiles.Items {
		w.must(client.IgnoreNotFound(w.c.Patch(ctx, &p, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
		w.must(client.IgnoreNotFound(w.c.Delete(ctx, &p)))
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		w.must(w.c.Create(w.t.Context(), o))
	}
}

// newNamespace returns the name of a new namespace with these labels.
func (w *world) newNamespace(labels map[string]string) string {
	w.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	w.create(ns)
	return ns.Name
}

// shop is the labels of a pod of the workload shop in a mode.
func shop(mode v1alpha1.Mode) map[string]string { return workload("shop", mode) }

func workload(name string, mode v1alpha1.Mode) map[string]string {
	labels := map[string]string{"app.kubernetes.io/name": name}
	if mode != "" {
		labels[v1alpha1.LabelMode] = string(mode)
	}
	return labels
}

// pod returns a pod that is not created yet.
func pod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: maps.Clone(labels)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1"}}},
	}
}

func (w *world) newPod(name string, labels map[string]string) *corev1.Pod {
	w.t.Helper()
	p := pod(w.namespace, name, labels)
	w.create(p)
	return p
}

func (w *world) deletePod(p *corev1.Pod) {
	w.t.Helper()
	w.must(w.c.Delete(w.t.Context(), p, client.GracePeriodSeconds(0)))
}

// cluster makes a ClusterResourcePolicy.
func (w *world) cluster(name string, priority int32, s v1alpha1.Selector) *v1alpha1.ClusterResourcePolicy {
	w.t.Helper()
	p := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ResourcePolicySpec{Priority: &priority, Selector: s}}
	w.create(p)
	return p
}

func (w *world) namespaced(namespace, name string, priority int32) *v1alpha1.ResourcePolicy {
	w.t.Helper()
	p := &v1alpha1.ResourcePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ResourcePolicySpec{Priority: &priority},
	}
	w.create(p)
	return p
}

func (w *world) get(o client.Object) {
	w.t.Helper()
	w.must(w.c.Get(w.t.Context(), client.ObjectKeyFromObject(o), o))
}

// patch writes a merge patch.
func (w *world) patch(o client.Object, body string) {
	w.t.Helper()
	w.must(w.c.Patch(w.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(body))))
}

// stamps are a pod's policy-ref and profile-ref.
func (w *world) stamps(p *corev1.Pod) (policyRef, profileRef string) {
	w.t.Helper()
	w.get(p)
	return p.Annotations[v1alpha1.AnnotationPolicyRef], p.Annotations[v1alpha1.AnnotationProfileRef]
}

// stamped waits until the pod is governed by a policy and returns its profile's name.
func (w *world) stamped(p *corev1.Pod, policyRef string) string {
	w.t.Helper()
	var name string
	w.eventually(fmt.Sprintf("%s governed by %q", p.Name, policyRef), func() error {
		ref, profileRef := w.stamps(p)
		if ref != policyRef {
			return fmt.Errorf("governed by %q", ref)
		}
		name = profileRef
		return nil
	})
	return name
}

func (w *world) profile(name string) *v1alpha1.WorkloadProfile {
	w.t.Helper()
	p := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.get(p)
	return p
}

// profileWith waits until the profile's status has so many pods and is in a state.
func (w *world) profileWith(name string, pods int32, state v1alpha1.ProfileState) *v1alpha1.WorkloadProfile {
	w.t.Helper()
	p := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.eventually(fmt.Sprintf("%s with %d pods, %s", name, pods, state), func() error {
		if err := w.c.Get(w.t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.ActivePods != pods || p.Status.State != state {
			return fmt.Errorf("%d pods, %s", p.Status.ActivePods, p.Status.State)
		}
		return nil
	})
	return p
}

// profiles are the names of all profiles, sorted.
func (w *world) profiles() []string {
	w.t.Helper()
	var list v1alpha1.WorkloadProfileList
	w.must(w.c.List(w.t.Context(), &list))
	var names []string
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	deadline := time.NewTimer(w.wait)
	defer deadline.Stop()
	tick := time.NewTicker(w.tick)
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

// rebalance has everything looked at again.
func (w *world) rebalance() {
	w.t.Helper()
	select {
	case w.again <- struct{}{}:
	case <-time.After(w.wait):
		w.t.Fatal("nobody looks again")
	}
}

// quiet waits until no write has reached the API server for longer than any
// controller gathers changes.
func (w *world) quiet() {
	w.t.Helper()
	last, since := api.Requests().Writes(""), time.Now()
	w.eventually("quiet", func() error {
		if now := api.Requests().Writes(""); now != last {
			last, since = now, time.Now()
		}
		if left := 5*time.Second - time.Since(since); left > 0 {
			return fmt.Errorf("%s to go", left)
		}
		return nil
	})
}

// controller makes an owner reference to an object that was created.
func controller(apiVersion, kind string, o client.Object) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: o.GetName(), UID: o.GetUID(), Controller: &yes}}
}

// replicaSet makes a ReplicaSet of a Deployment that need not exist.
func (w *world) replicaSet(name string) *appsv1.ReplicaSet {
	w.t.Helper()
	labels := map[string]string{"set": name}
	deployment := &metav1.ObjectMeta{Name: name + "-deployment", UID: "of-" + "a-deployment"}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", "", nil).Spec},
		},
	}
	yes := true
	rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: deployment.Name, UID: deployment.UID, Controller: &yes}}
	w.create(rs)
	return rs
}
