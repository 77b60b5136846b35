package membership_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/membership"
)

var api *env.API

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{}) })
}

// replica is a membership with a connection that can be cut.
type replica struct {
	*membership.Membership
	cut  atomic.Bool
	stop func()
}

var errCut = errors.New("the connection is cut")

type cutter struct {
	http.RoundTripper
	cut *atomic.Bool
}

func (c cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.RoundTripper.RoundTrip(r)
}

func namespace(t *testing.T) string {
	t.Helper()
	c, err := client.New(api.Config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "membership-"}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

func start(t *testing.T, ns, name string) *replica {
	t.Helper()
	r := &replica{}
	cfg := rest.CopyConfig(api.Config)
	cfg.WrapTransport = transport.Wrappers(cfg.WrapTransport, func(rt http.RoundTripper) http.RoundTripper { return cutter{rt, &r.cut} })
	c, err := client.New(cfg, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	leases, err := cache.New(cfg, cache.Options{Scheme: scheme.Scheme, DefaultNamespaces: map[string]cache.Config{ns: {}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Membership, err = membership.New(membership.Options{
		Client: c, Cache: leases, Namespace: ns, Replica: name,
		Renew: 200 * time.Millisecond, Fence: 800 * time.Millisecond, Expire: 1500 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = leases.Start(ctx) })
	running.Go(func() {
		if err := r.Start(ctx); err != nil {
			t.Errorf("replica %s: %v", name, err)
		}
	})
	r.stop = func() { cancel(); running.Wait() }
	t.Cleanup(r.stop)
	return r
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func sees(r *replica, want ...string) func() error {
	return func() error {
		if got := r.Members(); !slices.Equal(got, want) || !r.Active() {
			return fmt.Errorf("%s sees %v, active %v; want %v", r.Self(), got, r.Active(), want)
		}
		return nil
	}
}

func TestReplicasShareTheKeys(t *testing.T) {
	ns := namespace(t)
	a, b := start(t, ns, "a"), start(t, ns, "b")
	eventually(t, "a", sees(a, "a", "b"))
	eventually(t, "b", sees(b, "a", "b"))
	mine := 0
	for i := range 100 {
		key := fmt.Sprintf("shop/web-%d", i)
		if a.Owns(key) == b.Owns(key) {
			t.Errorf("%s is owned by a: %v, by b: %v", key, a.Owns(key), b.Owns(key))
		}
		if a.Owns(key) {
			mine++
		}
	}
	if mine < 30 || mine > 70 {
		t.Errorf("a owns %d of 100 keys", mine)
	}
	changes := a.Subscribe()
	c := start(t, ns, "c")
	eventually(t, "a", sees(a, "a", "b", "c"))
	select {
	case <-changes:
	case <-time.After(5 * time.Second):
		t.Error("a was not told of the change")
	}
	// A Lease that is given back takes effect at once.
	began := time.Now()
	c.stop()
	eventually(t, "a", sees(a, "a", "b"))
	if took := time.Since(began); took > 1200*time.Millisecond {
		t.Errorf("a replica that stopped was gone after %v", took)
	}
}

func TestAReplicaThatIsCutOffActsNoMore(t *testing.T) {
	ns := namespace(t)
	a, b := start(t, ns, "a"), start(t, ns, "b")
	eventually(t, "a", sees(a, "a", "b"))
	eventually(t, "b", sees(b, "a", "b"))
	b.cut.Store(true)
	// b stops acting before a takes over what it had.
	eventually(t, "b fences itself", func() error {
		if slices.Equal(a.Members(), []string{"a"}) {
			return errors.New("a took over first")
		}
		if b.Active() || b.Owns("x") {
			return errors.New("b is active")
		}
		return nil
	})
	eventually(t, "a", sees(a, "a"))
	b.cut.Store(false)
	eventually(t, "b", sees(b, "a", "b"))
	eventually(t, "a", sees(a, "a", "b"))
}

func TestNobodyRenewsForTheDead(t *testing.T) {
	ns := namespace(t)
	c, err := client.New(api.Config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	// A Lease whose holder was killed, from a clock an hour ahead.
	name, ahead := "dead", metav1.NewMicroTime(time.Now().Add(time.Hour))
	dead := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{membership.LabelMember: "webhook"}}}
	dead.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: &ahead}
	if err := c.Create(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "leader-election"}}
	if err := c.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	a := start(t, ns, "a")
	eventually(t, "a", sees(a, "a", "dead"))
	eventually(t, "a", sees(a, "a"))
}

func TestNilOwnsEverything(t *testing.T) {
	var m *membership.Membership
	if !m.Owns("x") || !m.Active() || m.Live("a") || m.Owner("x") != "" || m.Self() != "" || m.Subscribe() != nil {
		t.Error("a nil membership does not stand for a process that is alone")
	}
}
