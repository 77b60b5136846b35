package status_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/agent/status"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/build"
	"plimsoll.dev/test/env"
)

var api *env.API

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{ControllerManager: true}) })
}

// world is an agent on a Node, with a clock and a state of health to set.
type world struct {
	t         testing.TB
	c         client.Client
	namespace string
	node      *corev1.Node

	mu  sync.Mutex
	now time.Time
	is  status.Observation
}

func newWorld(t testing.TB, node string) *world {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(api.Config, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, c: c, node: build.Node(node).Obj(), now: time.Now().Truncate(time.Second)}
	w.is.Reason = status.ReasonWorking
	w.is.Facts = v1alpha1.AgentStatusStatus{Version: "v1", CgroupMode: v1alpha1.CgroupV2, Containers: 1}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "plimsoll-"}}
	for _, o := range []client.Object{ns, w.node} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	w.namespace = ns.Name
	t.Cleanup(func() { _ = client.IgnoreNotFound(c.Delete(context.Background(), w.node)) })
	return w
}

func (w *world) reporter() *status.Reporter {
	return status.New(status.Options{
		Client: w.c, Namespace: w.namespace, Node: w.node.Name, Log: slog.New(slog.DiscardHandler),
		Observe: func() status.Observation { w.mu.Lock(); defer w.mu.Unlock(); return w.is },
		Now:     func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now },
	})
}

// pass steps through a time in looks of ten seconds.
func (w *world) pass(r *status.Reporter, d time.Duration) {
	w.t.Helper()
	for range d / (10 * time.Second) {
		w.now = w.now.Add(10 * time.Second)
		if err := r.Step(w.t.Context()); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) get() v1alpha1.AgentStatus {
	w.t.Helper()
	var s v1alpha1.AgentStatus
	if err := w.c.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: w.node.Name}, &s); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) eventually(what string, f func() error) {
	w.t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
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

func writes() int {
	r := api.Requests()
	return r.Writes("agentstatuses") + r.Writes("agentstatuses/status")
}

// The status is of its Node, follows the agent's health, keeps the last error,
// and costs a write per heartbeat when nothing changes.
func TestStatusFollowsTheAgent(t *testing.T) {
	w := newWorld(t, "follows")
	r := w.reporter()
	w.pass(r, 10*time.Second)
	s := w.get()
	if o := s.OwnerReferences; len(o) != 1 || o[0].UID != w.node.UID || o[0].Kind != "Node" || s.Spec.NodeName != "follows" {
		t.Errorf("owners %+v, spec %+v", o, s.Spec)
	}
	if !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) || s.Status.CgroupMode != v1alpha1.CgroupV2 || s.Status.Heartbeat == nil {
		t.Errorf("status %+v", s.Status)
	}

	before := writes()
	w.pass(r, time.Hour)
	if n := writes() - before; n < 10 || n > 12 {
		t.Errorf("%d writes in an hour without a change", n)
	}
	t.Logf("RESULT agent_idle_hour_writes=%d", writes()-before)

	w.is.Err, w.is.Reason = errors.New("redis is away: check the network"), status.ReasonRedisAway
	w.pass(r, time.Minute)
	s = w.get()
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionFalse || ready.Reason != status.ReasonRedisAway || ready.Message != w.is.Err.Error() {
		t.Errorf("Ready is %+v", ready)
	}
	w.is.Err, w.is.Reason = nil, status.ReasonWorking
	w.pass(r, time.Minute)
	if s = w.get(); !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) || s.Status.LastError != "redis is away: check the network" {
		t.Errorf("after it is well again: %+v", s.Status)
	}

	// Health that comes and goes with every look, and containers that never rest.
	before = writes()
	for i := range 60 {
		w.is.Facts.Containers++
		if w.is.Err = nil; i%2 == 0 {
			w.is.Err = errors.New("away")
		}
		w.is.Reason = map[bool]string{true: status.ReasonWorking, false: status.ReasonRedisAway}[w.is.Err == nil]
		w.pass(r, 10*time.Second)
	}
	if n := writes() - before; n < 10 || n > 20 {
		t.Errorf("%d writes in ten minutes of change", n)
	}
}

// An agent that is started again goes on with what it said before.
func TestRestartWritesNothingNew(t *testing.T) {
	w := newWorld(t, "restarts")
	w.pass(w.reporter(), 10*time.Second)
	first := w.get()
	before := writes()
	w.pass(w.reporter(), time.Minute)
	if n := writes() - before; n != 0 {
		t.Errorf("%d writes after a restart without a change", n)
	}
	w.is.Facts.Version = "v2"
	w.pass(w.reporter(), time.Minute)
	s := w.get()
	if s.Status.Version != "v2" {
		t.Errorf("the version is %q", s.Status.Version)
	}
	if a, b := first.Status.Conditions[0].LastTransitionTime, s.Status.Conditions[0].LastTransitionTime; !a.Equal(&b) {
		t.Errorf("Ready since %s, was %s", b, a)
	}
}

// The status goes with its Node, and comes back with a Node of the same name.
func TestStatusGoesWithTheNode(t *testing.T) {
	w := newWorld(t, "replaced")
	r := w.reporter()
	w.pass(r, 10*time.Second)
	old := w.get()
	if err := w.c.Delete(t.Context(), w.node); err != nil {
		t.Fatal(err)
	}
	w.eventually("the status to be collected", func() error {
		var list v1alpha1.AgentStatusList
		if err := w.c.List(t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return errors.New("still there")
		}
		return nil
	})
	w.now = w.now.Add(10 * time.Minute)
	if err := r.Step(t.Context()); err == nil {
		t.Error("it reports without a Node")
	}
	w.node = build.Node("replaced").Obj()
	if err := w.c.Create(t.Context(), w.node); err != nil {
		t.Fatal(err)
	}
	w.pass(r, time.Minute)
	if s := w.get(); s.UID == old.UID || s.OwnerReferences[0].UID != w.node.UID {
		t.Errorf("the new status is owned by %+v", s.OwnerReferences)
	}
}

// kubectl shows what one looks for first.
func TestColumns(t *testing.T) {
	w := newWorld(t, "columns")
	w.pass(w.reporter(), 10*time.Second)
	out, err := api.Kubectl("", "get", "agentstatuses", "-n", w.namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"READY", "REASON", "Working", "VERSION", "CGROUP", "CONTAINERS", "FLUSHED", "columns", "True", "v1", "v2"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is missing:\n%s", want, out)
		}
	}
}
