package admission_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/admission"
	"plimsoll.dev/webhook/admission/admissiontest"
	profilecontroller "plimsoll.dev/webhook/controller/profile"
)

// world is an API server with our webhook in front of it, shared by all tests;
// each test uses a namespace of its own.
var world struct {
	api      *env.API
	clients  *kubernetes.Clientset
	client   client.Client // direct
	cache    cache.Cache
	policies *policy.Holder
	nodes    *admission.Nodes
	url      string
	ca       []byte
	calls    atomic.Int64 // requests to the webhook
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		os.Exit(m.Run()) // every fuzzing process would start an API server that no fuzz target needs
	}
	code := 1
	err := env.Run(context.Background(), func(t env.TB) {
		start(t)
		code = m.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "test environment:", err)
		code = 1
	}
	os.Exit(code)
}

func start(t env.TB) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	world.api = env.StartAPI(t, env.Options{})
	check := func(err error) {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	var err error
	world.clients, err = kubernetes.NewForConfig(world.api.Config)
	check(err)
	world.client, err = client.New(world.api.Config, client.Options{Scheme: scheme})
	check(err)
	world.cache, err = cache.New(world.api.Config, cache.Options{Scheme: scheme})
	check(err)
	world.policies = &policy.Holder{}
	world.policies.Set(policy.NewIndex(nil, nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	world.nodes = &admission.Nodes{}
	go func() {
		defer close(done)
		_ = world.cache.Start(ctx)
	}()
	if !world.cache.WaitForCacheSync(ctx) {
		t.Fatalf("the cache did not start")
	}
}

// pods is the mutating webhook over the shared API server.
func pods() *admission.Pods {
	return &admission.Pods{
		Resolver: &profilecontroller.Resolver{
			Policies: world.policies, Owners: profilecontroller.NewOwners(world.cache, world.client),
			Reader: world.cache, Live: world.client, OwnNamespace: admissiontest.Namespace,
		},
		Cache: world.cache, Synced: func() bool { return true }, Nodes: world.nodes,
	}
}

// serve serves both webhooks and installs the chart's configurations for them.
func serve(t testing.TB) {
	t.Helper()
	leaf, ca := admissiontest.Certificate(t)
	cert, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	metrics := admission.NewMetrics(prometheus.NewRegistry())
	mux := http.NewServeMux()
	mux.Handle("/mutate-pods", counted(admission.NewServer("pods", pods().Admit, metrics, logr.Discard())))
	mux.Handle("/validate-policies", counted(admission.NewServer("policies", admission.AdmitPolicy, metrics, logr.Discard())))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	world.url, world.ca = "https://"+l.Addr().String(), ca
	admissiontest.Render(t, "plimsoll", admissiontest.URL(world.url, ca)...).Install(t, world.clients)
	// A configuration works some milliseconds after it is stored.
	admissiontest.Wait(t, "the webhook to be called", func() error {
		pod := newPod("probe", map[string]string{v1alpha1.LabelMode: "never"})
		_, err := world.clients.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "use one of") {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
	admissiontest.Wait(t, "the policy webhook to be called", func() error {
		p := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
		p.Spec.Selector.Namespaces = &v1alpha1.NamespaceSelector{Include: []v1alpha1.Pattern{"/(/"}}
		if world.client.Create(t.Context(), p, client.DryRunAll) == nil {
			return errors.New("not yet")
		}
		return nil
	})
}

func counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		world.calls.Add(1)
		h.ServeHTTP(w, r)
	})
}

// namespace makes a namespace with labels for one test.
func namespace(t testing.TB, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-", Labels: labels}}
	ns, err := world.clients.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// newPod returns a pod of one container, identified as "web".
func newPod(name string, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "web"}}}
	for k, v := range labels {
		pod.Labels[k] = v
	}
	pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app"}}
	return pod
}

func create(t testing.TB, ns string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	out, err := world.clients.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating pod %s: %v", pod.Name, err)
	}
	return out
}

// seen waits until the webhook's cache holds an object that was just created.
func seen(t testing.TB, o client.Object) {
	t.Helper()
	admissiontest.Wait(t, "the cache", func() error {
		got := o.DeepCopyObject().(client.Object)
		if err := world.cache.Get(t.Context(), client.ObjectKeyFromObject(o), got); err != nil {
			return err
		}
		if got.GetResourceVersion() != o.GetResourceVersion() {
			return errors.New("an older version")
		}
		return nil
	})
}

// put creates an object and waits until the webhook sees it; it goes with the test.
func put(t testing.TB, o client.Object) {
	t.Helper()
	if err := world.client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.client.Delete(context.WithoutCancel(t.Context()), o) })
	seen(t, o)
}

// govern makes the policy the only one.
func govern(t testing.TB, spec v1alpha1.ResourcePolicySpec) v1alpha1.PolicyReference {
	t.Helper()
	crp := v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: spec}
	x := policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{crp})
	if len(x.Broken()) > 0 {
		t.Fatal(x.Broken()[0].Err)
	}
	world.policies.Set(x)
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "all"}
}

// learn makes a Sufficient profile for the pod with recommendations for its containers.
func learn(t testing.TB, pod *corev1.Pod, ref v1alpha1.PolicyReference, containers ...v1alpha1.ContainerStatus) *v1alpha1.WorkloadProfile {
	t.Helper()
	key := profile.KeyOf(pod.Labels, v1alpha1.DefaultIdentityLabels(), ref)
	wp := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: key.Name()}, Spec: v1alpha1.WorkloadProfileSpec{Identity: key.Identity()}}
	if err := world.client.Create(t.Context(), wp); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.client.Delete(context.WithoutCancel(t.Context()), wp) })
	now := metav1.Now()
	wp.Status = v1alpha1.WorkloadProfileStatus{
		State:      v1alpha1.ProfileSufficient,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionTrue, Reason: "Enough", LastTransitionTime: now}},
		Containers: containers,
		UpdatedAt:  &now,
	}
	if err := world.client.Status().Update(t.Context(), wp); err != nil {
		t.Fatal(err)
	}
	seen(t, wp)
	return wp
}

// free returns an address on which nobody listens.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
