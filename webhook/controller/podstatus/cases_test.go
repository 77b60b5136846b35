package podstatus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	names "plimsoll.dev/pkg/podstatus"
	"plimsoll.dev/test/build"
)

// C80: a replica restarts with a new name; its old report goes with its pod, by
// garbage collection alone, even while the ring still counts it.
func TestC80ReplicaRenamed(t *testing.T) {
	w := newWorld(t)
	w.startReplica("stays")
	old := w.startReplica("old")
	p := w.policy("c80")
	w.says(p, names.ReasonCompiled, "2/2 replicas work by generation 1", "old", "stays")
	old.kill()
	w.eventually("the old report to be collected", func() error {
		if _, ok := w.reports()["old/c80"]; ok {
			return errors.New("still there")
		}
		return nil
	})
	w.pass(time.Minute) // longer than a report is waited for
	w.says(p, names.ReasonBehind, "1/2 replicas unhealthy: old: has not reported", "stays")
	w.startReplica("renamed")
	w.leave("old")
	w.says(p, names.ReasonCompiled, "2/2 replicas work by generation 1", "renamed", "stays")
}

// C81: a policy is deleted and made again while one replica is hung; what that
// one says about the old policy counts for nothing.
func TestC81PolicyRecreated(t *testing.T) {
	w := newWorld(t)
	replicas := map[string]*replica{"a": w.startReplica("a"), "b": w.startReplica("b")}
	p := w.policy("c81")
	w.says(p, names.ReasonCompiled, "", "a", "b")
	works, hangs := "a", "b"
	if (ring{w, "b"}).Owns("ClusterResourcePolicy/c81") {
		works, hangs = "b", "a"
	}
	replicas[hangs].stop() // its pod, its report and its Lease stay
	w.must(w.c.Delete(t.Context(), p))
	w.eventually("the report to be withdrawn", func() error {
		if _, ok := w.reports()[works+"/c81"]; ok {
			return errors.New("still there")
		}
		return nil
	})
	p = w.policy("c81")
	w.eventually("the new report", func() error {
		if w.reports()[works+"/c81"].Status.ParentUID != string(p.UID) {
			return errors.New("not yet")
		}
		return nil
	})
	w.pass(time.Minute)
	w.says(p, names.ReasonBehind, "1/2 replicas unhealthy: "+hangs+": has not reported", works)
	if got := w.reports()[hangs+"/c81"].Status.ParentUID; got == "" || got == string(p.UID) {
		t.Errorf("the hung replica's report is about %q", got)
	}
}

// C82: an hour in which nothing changes writes nothing, though everything is
// looked at again; and what is written makes nobody look again for ever.
func TestC82IdleHourAndNoFeedback(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a")
	w.startReplica("b")
	p := w.policy("c82")
	w.must(w.c.Create(t.Context(), &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}))
	w.says(p, names.ReasonCompiled, "", "a", "b")
	w.quiet()
	before := writes()
	for range 2 {
		w.pass(30 * time.Minute)
		w.quiet()
	}
	if n := writes() - before; n != 0 {
		t.Errorf("%d writes in an hour without a change", n)
	}

	before, looks := writes(), reconciles()
	w.edit(p, 7)
	w.says(p, names.ReasonCompiled, "2/2 replicas work by generation 2", "a", "b")
	w.quiet()
	if n := writes() - before; n != 3 {
		t.Errorf("an edit took %d writes with 2 replicas, want 3", n)
	}
	// One look of each replica and controller at the edit, perhaps a second one
	// while it compiles, and one of each aggregator at each report.
	if n := reconciles() - looks; n > 14 {
		t.Errorf("an edit took %.0f reconciles", n)
	}
	t.Logf("RESULT replicas=2 edit_writes=%d edit_reconciles=%.0f idle_hour_writes=0", writes()-before, reconciles()-looks)
}

// Two replicas of different opinion give one answer, whoever owns the policy.
func TestTwoOpinions(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a", "torn")
	w.startReplica("b")
	p := w.policy("torn")
	w.says(p, names.ReasonNotCompiled, "", "a", "b")
	ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
	byPod := p.Status.ByPod
	if byPod[0].State != v1alpha1.PolicyError || byPod[0].Message == "" || byPod[1].State != v1alpha1.PolicyCompiled {
		t.Errorf("they say %+v", byPod)
	}
	if want := "1/2 replicas unhealthy: a: " + byPod[0].Message; ready.Message != want {
		t.Errorf("it says %q, want %q", ready.Message, want)
	}
	w.eventually("one event", func() error {
		if got := w.events.all(); len(got) != 1 || got[0] != "Warning NotCompiled torn: "+ready.Message {
			return fmt.Errorf("events %q", got)
		}
		return nil
	})
}

// A report that someone deletes comes back; one about a policy that went while
// its replica was down goes as it comes up.
func TestReportsAreRepaired(t *testing.T) {
	w := newWorld(t)
	a := w.startReplica("a")
	p, gone := w.policy("repaired"), w.policy("gone")
	w.says(p, names.ReasonCompiled, "", "a")
	w.says(gone, names.ReasonCompiled, "", "a")
	report := w.reports()["a/repaired"]
	w.must(w.c.Delete(t.Context(), &report))
	w.eventually("the report to come back", func() error {
		if s, ok := w.reports()["a/repaired"]; !ok || s.UID == report.UID || s.Status.State == "" {
			return errors.New("not yet")
		}
		return nil
	})
	a.stop()
	w.must(w.c.Delete(t.Context(), gone))
	w.must(w.c.Delete(t.Context(), a.pod, client.GracePeriodSeconds(0)))
	again := w.startReplica("a") // a new pod of the old name
	w.leave("a")
	w.join("a")
	w.eventually("the report about what is gone to go, and the other to change hands", func() error {
		s, ok := w.reports()["a/repaired"]
		if _, stays := w.reports()["a/gone"]; stays || !ok || s.Status.State == "" || s.OwnerReferences[0].UID != again.pod.UID {
			return fmt.Errorf("%+v", w.reports())
		}
		return nil
	})
}

// A policy of a namespace, and one whose name is too long for its report's to be
// read back: a report that goes is noticed all the same.
func TestNamespacedAndLongestNames(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a")
	local := &v1alpha1.ResourcePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "local"}}
	w.must(w.c.Create(t.Context(), local))
	w.eventually("the status of the ResourcePolicy", func() error {
		w.must(w.c.Get(t.Context(), client.ObjectKeyFromObject(local), local))
		if s := local.Status; len(s.ByPod) != 1 || !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	long := w.policy(strings.Repeat("n", 253))
	w.says(long, names.ReasonCompiled, "", "a")
	report := w.reports()["a/"+long.Name]
	if _, _, err := names.Unpack(report.Name); !errors.Is(err, names.ErrHashed) {
		t.Errorf("%s unpacks: %v", report.Name, err)
	}
	w.must(w.c.Delete(t.Context(), &report))
	w.eventually("the report to come back", func() error {
		if s, ok := w.reports()["a/"+long.Name]; !ok || s.UID == report.UID || s.Status.State == "" {
			return errors.New("not yet")
		}
		return nil
	})
	w.must(w.c.Delete(t.Context(), long))
	w.eventually("the report to be withdrawn", func() error {
		if _, ok := w.reports()["a/"+long.Name]; ok {
			return errors.New("still there")
		}
		return nil
	})
}

// Pods that a policy governs are counted, gathered.
func TestPodsMatched(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a")
	p := w.policy("counted")
	w.says(p, names.ReasonCompiled, "", "a")
	for i := range 3 {
		pod := build.Pod(w.namespace, fmt.Sprintf("p%d", i)).Container(build.Container("app")).
			Annotation(v1alpha1.AnnotationPolicyRef, "ClusterResourcePolicy/counted").Obj()
		w.must(w.c.Create(t.Context(), pod))
	}
	w.eventually("three pods", func() error {
		if n := w.reports()["a/counted"].Status.PodsMatched; n != 3 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}

// Out of the cluster the process writes the policy's status itself.
func TestAlone(t *testing.T) {
	w := newWorld(t)
	w.startReplica("", "bad")
	good, bad := w.policy("good"), w.policy("bad")
	w.says(good, names.ReasonCompiled, "1/1 replicas work by generation 1", "webhook")
	w.says(bad, names.ReasonNotCompiled, "", "webhook")
	if n := len(w.reports()); n > 0 {
		t.Errorf("there are %d reports", n)
	}
}

// A storm of 50 writers of the same status loses nothing: neither theirs nor ours.
func TestConflictStorm(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a")
	w.startReplica("b")
	p := w.policy("stormy")
	w.says(p, names.ReasonCompiled, "", "a", "b")
	const writers, rounds = 50, 1
	var wg sync.WaitGroup
	failed := make(chan error, writers)
	patient := wait.Backoff{Steps: 10000, Duration: 5 * time.Millisecond, Factor: 1, Jitter: 2}
	for range writers {
		wg.Go(func() {
			for range rounds {
				err := retry.RetryOnConflict(patient, func() error {
					now := &v1alpha1.ClusterResourcePolicy{}
					if err := w.c.Get(context.Background(), client.ObjectKeyFromObject(p), now); err != nil {
						return err
					}
					now.Status.Profiles++
					return w.c.Status().Update(context.Background(), now)
				})
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	for i := range 5 {
		w.edit(p, i+1)
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
	w.says(p, names.ReasonCompiled, fmt.Sprintf("2/2 replicas work by generation %d", p.Generation), "a", "b")
	if p.Status.Profiles != writers*rounds {
		t.Errorf("%d of %d writes are left", p.Status.Profiles, writers*rounds)
	}
}
