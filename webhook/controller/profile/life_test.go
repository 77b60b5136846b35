package profile_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
)

func TestLifeOfAProfile(t *testing.T) {
	w := start(t)
	w.cluster("fleet", 0, v1alpha1.Selector{})
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "ClusterResourcePolicy/fleet")
	wp := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	hash := wp.Spec.Identity.MeasurementHash
	want := v1alpha1.WorkloadProfileStatus{
		State: v1alpha1.ProfileLearning, ActivePods: 1, MeasurementHash: hash,
		PolicyRef:      &v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "fleet"},
		TupleLabels:    map[string]string{"app.kubernetes.io/name": "shop"},
		SelectorLabels: "app.kubernetes.io/name=shop",
	}
	if diff := cmp.Diff(want, wp.Status); diff != "" {
		t.Error(diff)
	}

	w.deletePod(p)
	wp = w.profileWith(name, 0, v1alpha1.ProfileOrphaned)
	if wp.Status.OrphanedAt == nil {
		t.Error("an orphaned profile does not say since when")
	}
	// A pod that returns adopts it, with its history.
	p = w.newPod("b", shop(v1alpha1.ModeMeasure))
	if back := w.profileWith(name, 1, v1alpha1.ProfileLearning); back.UID != wp.UID || back.Status.OrphanedAt != nil {
		t.Error("the profile was made anew")
	}
	w.deletePod(p)
	w.profileWith(name, 0, v1alpha1.ProfileOrphaned)
	w.clock.add(167 * time.Hour)
	w.rebalance()
	w.clock.add(2 * time.Hour)
	w.rebalance()
	w.gone(name)
	if diff := cmp.Diff([]string{"purge " + hash}, w.purger.done()); diff != "" {
		t.Errorf("measurements removed: %s", diff)
	}
}

func (w *world) gone(name string) {
	w.t.Helper()
	w.eventually(name+" to go", func() error {
		err := w.c.Get(w.t.Context(), client.ObjectKey{Name: name}, &v1alpha1.WorkloadProfile{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errors.New("still there")
		}
		return err
	})
}

// A status that a user empties is written again, without waiting for a pod.
func TestEmptiedStatusIsWrittenAgain(t *testing.T) {
	w := start(t)
	name := w.stamped(w.newPod("a", shop(v1alpha1.ModeMeasure)), "nopolicy")
	wp := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	emptied := wp.DeepCopy()
	emptied.Status = v1alpha1.WorkloadProfileStatus{}
	w.must(w.c.Status().Update(t.Context(), emptied))
	again := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	if diff := cmp.Diff(wp.Status, again.Status); diff != "" {
		t.Error(diff)
	}
}

func TestOrphanTTLIsRead(t *testing.T) {
	w := start(t)
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "nopolicy")
	w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.deletePod(p)
	w.profileWith(name, 0, v1alpha1.ProfileOrphaned)
	w.clock.add(2 * time.Minute)
	w.create(&v1alpha1.PlimsollConfig{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName},
		Spec:       v1alpha1.PlimsollConfigSpec{OrphanTTL: &metav1.Duration{Duration: time.Minute}},
	})
	w.gone(name)
}

// Deleting a profile with live pods starts its history anew, and it reappears.
func TestDeletedWithLivePods(t *testing.T) {
	w := start(t)
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "nopolicy")
	old := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.must(w.c.Delete(t.Context(), old))
	w.eventually("a new profile", func() error {
		now := &v1alpha1.WorkloadProfile{}
		if err := w.c.Get(t.Context(), client.ObjectKeyFromObject(old), now); err != nil {
			return err
		}
		if now.UID == old.UID {
			return errors.New("it is the old one")
		}
		return nil
	})
	w.profileWith(name, 1, v1alpha1.ProfileLearning)
	if diff := cmp.Diff([]string{"reset " + old.Spec.Identity.MeasurementHash}, w.purger.done()); diff != "" {
		t.Error(diff)
	}
}

func TestPurgeFails(t *testing.T) {
	w := start(t)
	w.purger.fail(errors.New("redis is away"))
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "nopolicy")
	w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.must(w.c.Delete(t.Context(), w.profile(name)))
	w.rebalance()
	if w.profile(name).DeletionTimestamp == nil {
		t.Fatal("not being deleted")
	}
	// Measurements expire by themselves; a profile does not wait for Redis for ever.
	w.deletePod(p)
	w.clock.add(193 * time.Hour)
	w.rebalance()
	w.gone(name)
	if got := w.purger.done(); len(got) > 0 {
		t.Errorf("removed %v", got)
	}
}

// Profiles from before the measurement hash was recorded, and without identity.
func TestLegacyPurge(t *testing.T) {
	w := start(t)
	legacy := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: "legacy", Finalizers: []string{v1alpha1.ProfileFinalizer}}}
	legacy.Spec.Identity.Tuple = map[string]string{"app.kubernetes.io/name": "shop"}
	nobody := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: "nobody", Finalizers: []string{v1alpha1.ProfileFinalizer}}}
	w.create(legacy, nobody)
	w.must(w.c.Delete(t.Context(), nobody))
	w.gone("nobody")
	if got := w.purger.done(); len(got) > 0 {
		t.Errorf("a profile without identity removed %v", got)
	}
	w.must(w.c.Delete(t.Context(), legacy))
	w.gone("legacy")
	const bare = "4ef99863c91bffa3" // pinned beside the other hashes
	if diff := cmp.Diff([]string{"purge " + bare}, w.purger.done()); diff != "" {
		t.Error(diff)
	}
}

// A legacy profile that pods still use is replaced, since its identity is immutable.
func TestLegacyProfileIsReplaced(t *testing.T) {
	w := start(t)
	old := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: "shop--nopolicy"}}
	old.Spec.Identity.Tuple = map[string]string{"app.kubernetes.io/name": "shop"}
	w.create(old)
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	w.eventually("an identity with a hash", func() error {
		if w.stamped(p, "nopolicy") != old.Name {
			return errors.New("another profile")
		}
		now := &v1alpha1.WorkloadProfile{}
		if err := w.c.Get(t.Context(), client.ObjectKeyFromObject(old), now); err != nil {
			return err
		}
		if now.Spec.Identity.MeasurementHash == "" {
			return errors.New("no hash")
		}
		return nil
	})
}

func TestIdentityIsImmutable(t *testing.T) {
	w := start(t)
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	wp := w.profile(w.stamped(p, "nopolicy"))
	err := w.c.Patch(t.Context(), wp, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"identity":{"tuple":{"a":"b"}}}}`)))
	if err == nil || !strings.Contains(err.Error(), "identity is immutable") {
		t.Errorf("changing the identity: %v", err)
	}
}

// A name that another identity holds is reported, and the pod does not join it.
func TestNameHeldByAnotherIdentity(t *testing.T) {
	w := start(t)
	other := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: "shop--nopolicy"}}
	other.Spec.Identity = v1alpha1.Identity{Tuple: map[string]string{"app": "ledger"}, MeasurementHash: "0123456789abcdef"}
	w.create(other)
	p := w.newPod("a", shop(v1alpha1.ModeMeasure))
	q := w.newPod("b", workload("bank", v1alpha1.ModeMeasure))
	w.stamped(q, "nopolicy")
	if ref, _ := w.stamps(p); ref != "" {
		t.Errorf("the pod was stamped %q", ref)
	}
}
