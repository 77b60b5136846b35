package resize_test

import (
	"fmt"
	"testing"
	"time"

	"plimsoll.dev/pkg/api/v1alpha1"
	plan "plimsoll.dev/pkg/resize"
)

// C64: "resized" is said when the kubelet has actuated it.
func TestPodsAreResized(t *testing.T) {
	b := newBench(t)
	b.deploy(3, nil)
	b.recommend("cpu request", "50m", "cpu limit", "200m", "memory limit", "128Mi")
	b.start("a", nil, nil)
	b.every("resized", 30*time.Second, in(t, plan.StateResized))
	b.every("actuated", time.Second, has("cpu 50m/200m memory 16Mi/128Mi"))
	p := b.pods()[0]
	if r := record(t, &p); r.By != "a" || len(r.Changes) != 3 || r.Changes[0].From != "10m" || r.Changes[0].To != "50m" {
		t.Errorf("record %s", p.Annotations[v1alpha1.AnnotationResize])
	}
}

// C72: what an earlier apply set is carried by the next.
func TestC72NothingIsDropped(t *testing.T) {
	b := newBench(t)
	b.deploy(1, nil)
	b.recommend("cpu request", "50m", "cpu limit", "200m", "memory request", "32Mi", "memory limit", "128Mi")
	b.start("a", nil, nil)
	b.every("first", 30*time.Second, has("cpu 50m/200m memory 32Mi/128Mi"))
	b.recommend("cpu request", "50m", "cpu limit", "200m", "memory request", "32Mi", "memory limit", "256Mi")
	b.every("only memory", 60*time.Second, has("cpu 50m/200m memory 32Mi/256Mi"))
	p := b.pods()[0]
	if got := render(p.Spec.Containers[0].Resources); got != "cpu 50m/200m memory 32Mi/256Mi" {
		t.Errorf("spec %s", got)
	}
}

// A replica that stops while a resize is on its way says so on the pod.
func TestLastWords(t *testing.T) {
	b := newBench(t)
	b.byHand(1, "kube-controller-manager") // no kubelet acts
	b.recommend("cpu request", "50m")
	r := b.start("a", nil, nil)
	b.eventually("sent", 10*time.Second, func() error {
		if n := b.changed()["web-0"]; n != 1 {
			return fmt.Errorf("changed %d times", n)
		}
		return nil
	})
	r.stop()
	p := b.pods()[0]
	if got := record(t, &p); got.State != plan.StateRequested || len(got.Changes) != 1 || got.Changes[0].From != "10m" {
		t.Errorf("record %s", got)
	}
}
