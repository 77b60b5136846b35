package resize_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	plan "plimsoll.dev/pkg/resize"
)

func TestReplicasShareThePods(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.byHand(30, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	m := newMembers("a", "b", "c")
	for _, name := range []string{"a", "b", "c"} {
		b.start(name, &fakeRing{name, m}, nil)
	}
	b.every("resized", 30*time.Second, in(t, plan.StateResized))
	once(t, b)
	by := map[string]int{}
	for _, p := range b.pods() {
		r := record(t, &p)
		by[r.By]++
		if owner := m.ring.Owner(p.Namespace + "/" + p.Name); owner != r.By {
			t.Errorf("pod %s of %s was resized by %s", p.Name, owner, r.By)
		}
	}
	if len(by) != 3 {
		t.Errorf("resized by %v", by)
	}
}

// deluded believes that it owns everything, and that its peer lives.
type deluded struct{ self string }

func (d deluded) Self() string        { return d.self }
func (d deluded) Active() bool        { return true }
func (d deluded) Owner(string) string { return d.self }
func (d deluded) Live(string) bool    { return true }

// C69: two replicas that both believe they own a pod resize it once.
func TestC69TwoOwners(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.byHand(20, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m", "memory limit", "128Mi")
	b.start("a", deluded{"a"}, nil)
	b.start("b", deluded{"b"}, nil)
	b.every("resized", 30*time.Second, in(t, plan.StateResized))
	once(t, b)
	b.remains("no flapping", 6*time.Second, func() error {
		for name, n := range b.changed() {
			if n != 1 {
				return fmt.Errorf("pod %s was changed %d times", name, n)
			}
		}
		return nil
	})
}

// C74: a pod resized by a living peer drifts again; its new owner resizes it.
func TestC74NewOwner(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.byHand(12, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m", "memory limit", "128Mi")
	m := newMembers("a", "b")
	b.start("a", &fakeRing{"a", m}, nil)
	b.start("b", &fakeRing{"b", m}, nil)
	b.every("resized", 30*time.Second, in(t, plan.StateResized))
	first := map[string]string{}
	for _, p := range b.pods() {
		first[p.Name] = record(t, &p).By
	}
	m.set("a", "b", "c")
	b.start("c", &fakeRing{"c", m}, nil)
	b.recommend("cpu request", "50m", "memory limit", "256Mi")
	moved := 0
	b.every("resized again", 60*time.Second, func(p *corev1.Pod) error {
		if r := record(t, p); r.State != plan.StateResized || r.By != m.ring.Owner(p.Namespace+"/"+p.Name) {
			return fmt.Errorf("by %s, want %s", r.By, m.ring.Owner(p.Namespace+"/"+p.Name))
		}
		return has("cpu 50m/100m memory 16Mi/256Mi")(p)
	})
	for _, p := range b.pods() {
		if record(t, &p).By != first[p.Name] {
			moved++
		}
	}
	if moved == 0 {
		t.Error("no pod changed hands")
	}
	for name, n := range b.changed() {
		if n != 2 {
			t.Errorf("pod %s was changed %d times", name, n)
		}
	}
}

// A replica that dies leaves its share to the others.
func TestReclaim(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.byHand(12, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	m := newMembers("a", "dead")
	b.start("a", &fakeRing{"a", m}, nil)
	b.eventually("its own", 20*time.Second, func() error {
		for _, p := range b.pods() {
			if m.ring.Owner(p.Namespace+"/"+p.Name) == "a" && record(t, &p).State != plan.StateResized {
				return fmt.Errorf("pod %s is not resized", p.Name)
			}
		}
		return nil
	})
	m.set("a")
	b.every("the dead one's", 20*time.Second, in(t, plan.StateResized))
	once(t, b)
}

// nobody is a ring without members, as in the first moment of a process.
type nobody struct{}

func (nobody) Self() string        { return "a" }
func (nobody) Active() bool        { return true }
func (nobody) Owner(string) string { return "" }
func (nobody) Live(string) bool    { return false }

func TestAnEmptyRing(t *testing.T) {
	b := newBench(t)
	b.byHand(2, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	b.start("a", nobody{}, nil)
	b.every("resized", 20*time.Second, in(t, plan.StateResized))
	once(t, b)
}

// A replica was killed after it sent a resize and before it wrote that down:
// another one follows it, and knows what to go back to.
func TestWhatTheDeadSentIsFollowed(t *testing.T) {
	b := newBench(t)
	b.byHand(1, "kube-controller-manager")
	p := b.pods()[0]
	body, err := plan.ApplyBody(&p, []plan.Change{
		{Field: plan.Field{Container: "c", Resource: "cpu", Field: v1alpha1.FieldRequest}, To: list("cpu", "50m")["cpu"]},
	}, plan.Claim{Force: true})
	if err != nil {
		t.Fatal(err)
	}
	dead := client.FieldOwner(plan.ManagerPrefix + "dead")
	if err := b.client.SubResource("resize").Patch(t.Context(), &p, client.RawPatch(types.ApplyPatchType, body), dead, client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
	b.report(&p, &corev1.PodCondition{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible, Message: "never"})
	b.recommend("cpu request", "50m")
	b.start("a", &fakeRing{"a", newMembers("a")}, nil)
	b.every("reverted", 20*time.Second, func(p *corev1.Pod) error {
		if got := render(p.Spec.Containers[0].Resources); got != "cpu 10m/100m memory 16Mi/64Mi" {
			return fmt.Errorf("asks for %s", got)
		}
		return in(t, plan.StateReverted)(p)
	})
	p = b.pods()[0]
	if r := record(t, &p); r.By != "dead" || len(r.Changes) != 1 || r.Changes[0].From != "10m" || r.Refused != p.Generation {
		t.Errorf("record %s", r)
	}
}

// fenced has not renewed its Lease.
type fenced struct{ deluded }

func (fenced) Active() bool { return false }

func TestAFencedReplicaDoesNothing(t *testing.T) {
	b := newBench(t)
	b.byHand(1, "kube-controller-manager")
	b.recommend("cpu request", "50m")
	b.start("a", fenced{deluded{"a"}}, nil)
	b.remains("nothing is sent", 3*time.Second, func() error {
		if p := b.pods()[0]; p.Generation != 1 {
			return fmt.Errorf("generation %d", p.Generation)
		}
		return nil
	})
}
