package resize_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/webhook/controller/resize"
)

// withAll lets all pods of a profile be resized at once.
func withAll(s *v1alpha1.ResourcePolicySpec) {
	all := intstr.FromString("100%")
	s.Resize.MaxConcurrent = &all
}

// C61: the node has no room; the resize is withdrawn, and tried again smaller.
func TestC61Deferred(t *testing.T) {
	b := newBench(t)
	b.govern(func(s *v1alpha1.ResourcePolicySpec) {
		s.Resize.Patience = &v1alpha1.Patience{Deferred: &metav1.Duration{Duration: 10 * time.Second}}
	})
	b.deploy(1, func(t *corev1.PodTemplateSpec) { t.Spec.NodeName = "node-1" })
	// It is not enrolled, so that only the kubelet knows of it.
	hog := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "hog"}, Spec: corev1.PodSpec{
		NodeName: "node-1", TerminationGracePeriodSeconds: ptr.To(int64(0)),
		Containers: []corev1.Container{{Name: "c", Image: "app", Resources: corev1.ResourceRequirements{Requests: list("cpu", "7500m")}}},
	}}
	if err := b.client.Create(t.Context(), hog); err != nil {
		t.Fatal(err)
	}
	b.recommend("cpu request", "1", "cpu limit", "2")
	b.start("a", nil, nil)
	web := func(check func(*corev1.Pod) error) func(*corev1.Pod) error {
		return func(p *corev1.Pod) error {
			if p.Name == "hog" {
				return nil
			}
			return check(p)
		}
	}
	b.every("deferred, and the pod says so", 20*time.Second, web(func(p *corev1.Pod) error {
		if got := plan.Observe(p); got.Stage != plan.StageDeferred {
			return fmt.Errorf("is %s", got)
		}
		return in(t, plan.StateRequested)(p)
	}))
	b.every("withdrawn", 20*time.Second, web(in(t, plan.StateWithdrawn)))
	b.every("as before", 5*time.Second, web(has("cpu 10m/100m memory 16Mi/64Mi")))
	if err := b.client.Delete(t.Context(), hog); err != nil {
		t.Fatal(err)
	}
	// Half the step, then half the rest, and so on to the end.
	b.every("smaller", 30*time.Second, web(func(p *corev1.Pod) error {
		r := record(t, p)
		if r.State != plan.StateResized || len(r.Changes) == 0 {
			return fmt.Errorf("is %q", r.State)
		}
		if r.Changes[0].From != "10m" || r.Changes[0].To != "505m" {
			return fmt.Errorf("went from %s to %s", r.Changes[0].From, r.Changes[0].To)
		}
		return nil
	}))
}

// C62: what the kubelet calls infeasible is reverted at once, and not tried
// again on the same generation.
func TestC62Infeasible(t *testing.T) {
	b := newBench(t)
	b.byHand(1, "kube-controller-manager")
	b.recommend("cpu request", "50m")
	b.start("a", nil, nil)
	b.eventually("sent", 20*time.Second, func() error {
		p := b.pods()[0]
		if p.Spec.Containers[0].Resources.Requests.Cpu().String() != "50m" {
			return fmt.Errorf("not sent")
		}
		b.report(&p, &corev1.PodCondition{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible, Message: "never"})
		return nil
	})
	b.every("reverted", 20*time.Second, func(p *corev1.Pod) error {
		if got := p.Spec.Containers[0].Resources.Requests.Cpu().String(); got != "10m" {
			return fmt.Errorf("requests %s", got)
		}
		return in(t, plan.StateReverted)(p)
	})
	p := b.pods()[0]
	b.report(&p, nil)
	if r := record(t, &p); r.Refused != p.Generation || r.Message != "never" {
		t.Errorf("record %s at generation %d", r, p.Generation)
	}
	b.remains("it is not tried again", 7*time.Second, func() error {
		if p := b.pods()[0]; p.Generation != 3 {
			return fmt.Errorf("generation %d", p.Generation)
		}
		return nil
	})
}

// remains checks that something stays as it is.
func (b *bench) remains(what string, during time.Duration, check func() error) {
	b.t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); {
		if err := check(); err != nil {
			b.t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-b.t.Context().Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// C63: a memory limit is not lowered below what the container uses.
func TestC63LiveUsage(t *testing.T) {
	b := newBench(t)
	b.deploy(1, nil)
	b.recommend("memory limit", "32Mi")
	b.start("a", nil, nil)
	b.remains("no word on its use", 4*time.Second, func() error {
		p := b.pods()[0]
		return has("cpu 10m/100m memory 16Mi/64Mi")(&p)
	})
	b.live.set(b.pods(), "40Mi", nil)
	b.every("use and margin", 20*time.Second, has("cpu 10m/100m memory 16Mi/44Mi"))
}

// C71: what goes wrong within the watch period is taken back and held.
func TestC71Rollback(t *testing.T) {
	tests := map[string]struct {
		harm func(*bench, *corev1.Pod)
		want plan.Reason
	}{
		"OOM kill": {
			harm: func(b *bench, p *corev1.Pod) { api.ExitContainer(b.ns, p.Name, "c", 137, "OOMKilled") },
			want: plan.ReasonOOMKilled,
		},
		"restart": {
			harm: func(b *bench, p *corev1.Pod) { api.ExitContainer(b.ns, p.Name, "c", 1, "Error") },
			want: plan.ReasonRestarted,
		},
		"throttled": {
			harm: func(b *bench, p *corev1.Pod) {
				b.live.set(b.pods(), "20Mi", func(l *store.Live) { l.Throttled = 0.5 })
			},
			want: plan.ReasonThrottled,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.govern(func(s *v1alpha1.ResourcePolicySpec) {
				s.Resize.Rollback.Watch = &metav1.Duration{Duration: time.Minute}
			})
			b.deploy(1, nil)
			b.live.set(b.pods(), "20Mi", nil)
			b.recommend("cpu limit", "50m", "memory limit", "32Mi")
			b.start("a", nil, nil)
			b.every("resized", 20*time.Second, in(t, plan.StateResized))
			b.every("lower", time.Second, has("cpu 10m/50m memory 16Mi/32Mi"))
			p := b.pods()[0]
			tc.harm(b, &p)
			b.every("rolled back", 50*time.Second, func(p *corev1.Pod) error {
				if err := in(t, plan.StateRolledBack)(p); err != nil {
					return err
				}
				return has("cpu 10m/100m memory 16Mi/64Mi")(p)
			})
			p = b.pods()[0]
			r := record(t, &p)
			if r.Reason != tc.want || r.HeldUntil.Before(time.Now().Add(time.Minute)) || r.Failures != 1 {
				t.Errorf("record %s", r)
			}
			b.eventually("the condition", 10*time.Second, func() error {
				wp := b.profileObject()
				c := meta.FindStatusCondition(wp.Status.Conditions, resize.ConditionResizing)
				if c == nil || c.Reason != string(tc.want) || c.Status != metav1.ConditionFalse {
					return fmt.Errorf("conditions %+v", wp.Status.Conditions)
				}
				return nil
			})
			b.eventually("the event", 10*time.Second, func() error {
				if e := b.events(string(tc.want)); len(e) != 1 || !strings.Contains(e[0], "rolled back") {
					return fmt.Errorf("events %v", e)
				}
				return nil
			})
		})
	}
}

// C68: at most maxConcurrent are on their way, and all get their turn.
func TestC68MaxConcurrent(t *testing.T) {
	b := newBench(t)
	two := intstr.FromString("10%")
	b.govern(func(s *v1alpha1.ResourcePolicySpec) { s.Resize.MaxConcurrent = &two })
	b.deploy(20, nil)
	w, err := client.NewWithWatch(api.Config, client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	events, err := w.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(b.ns))
	if err != nil {
		t.Fatal(err)
	}
	most := make(chan int, 1)
	go func() {
		flying, highest := map[string]bool{}, 0
		for e := range events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				delete(flying, p.Name)
				if plan.Observe(p).InFlight() {
					flying[p.Name] = true
				}
			}
			highest = max(highest, len(flying))
		}
		most <- highest
	}()
	m := newMembers("a", "b", "c")
	b.recommend("cpu request", "20m")
	for _, name := range []string{"a", "b", "c"} {
		b.start(name, &fakeRing{name, m}, nil)
	}
	b.every("resized", 60*time.Second, in(t, plan.StateResized))
	events.Stop()
	if n := <-most; n != 2 {
		t.Errorf("%d resizes at once, want 2", n)
	}
	once(t, b)
}

func TestSuspendedAndDryRun(t *testing.T) {
	b := newBench(t)
	b.byHand(2, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	b.suspend(true)
	t.Cleanup(func() {
		_ = b.client.Delete(context.Background(), &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}})
	})
	b.govern(func(s *v1alpha1.ResourcePolicySpec) { s.Resize.DryRun = ptr.To(true) })
	b.start("a", nil, nil)
	b.remains("nothing while suspended", 3*time.Second, func() error {
		for _, p := range b.pods() {
			if p.Generation != 1 || p.Annotations[v1alpha1.AnnotationResize] != "" {
				return fmt.Errorf("pod %s: %s", p.Name, p.Annotations[v1alpha1.AnnotationResize])
			}
		}
		return nil
	})
	b.suspend(false)
	b.every("a dry run says what it would do", 10*time.Second, in(t, plan.StateDryRun))
	before := b.pods()
	b.remains("and says it once", 3*time.Second, func() error {
		for i, p := range b.pods() {
			if p.ResourceVersion != before[i].ResourceVersion || p.Generation != 1 {
				return fmt.Errorf("pod %s was written", p.Name)
			}
		}
		return nil
	})
	b.govern(func(s *v1alpha1.ResourcePolicySpec) { s.Resize.DryRun = nil })
	b.every("in earnest", 20*time.Second, in(t, plan.StateResized))
}

// A share of the pods goes first and is watched before the rest follow.
func TestCanary(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.govern(func(s *v1alpha1.ResourcePolicySpec) {
		s.Resize.Canary = &v1alpha1.Canary{Fraction: "10%", Watch: &metav1.Duration{Duration: 10 * time.Second}}
	})
	b.byHand(10, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	b.start("a", nil, nil)
	done := func() (n int) {
		for _, c := range b.changed() {
			n += int(c)
		}
		return n
	}
	b.eventually("the first", 10*time.Second, func() error {
		if n := done(); n != 1 {
			return fmt.Errorf("%d are changed", n)
		}
		return nil
	})
	b.remains("the others wait", 8*time.Second, func() error {
		if n := done(); n != 1 {
			return fmt.Errorf("%d are changed", n)
		}
		return nil
	})
	b.every("all", 20*time.Second, in(t, plan.StateResized))
	once(t, b)
}
