package profile_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/controller/profile"
)

func only(namespaces ...v1alpha1.Pattern) v1alpha1.Selector {
	return v1alpha1.Selector{Namespaces: &v1alpha1.NamespaceSelector{Include: namespaces}}
}

func kinds(kinds ...string) v1alpha1.Selector { return v1alpha1.Selector{Kinds: kinds} }

// C01: the top-level owner's kind counts, not the direct owner's.
func TestC01TopLevelOwner(t *testing.T) {
	w := start(t)
	for _, kind := range []string{"Deployment", "CronJob", "ReplicaSet", "Job", "Pod"} {
		w.cluster(strings.ToLower(kind), 0, kinds(kind))
	}
	rs := w.replicaSet("web")
	yes := true
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "nightly-1", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "CronJob", Name: "nightly", UID: "c", Controller: &yes}}},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod("", "", nil).Spec}},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	w.create(job)
	web := pod(w.namespace, "web-x", workload("web", v1alpha1.ModeMeasure))
	web.OwnerReferences = controller("apps/v1", "ReplicaSet", rs)
	nightly := pod(w.namespace, "nightly-x", workload("nightly", v1alpha1.ModeMeasure))
	nightly.OwnerReferences = controller("batch/v1", "Job", job)
	gone := pod(w.namespace, "gone-x", workload("gone", v1alpha1.ModeMeasure))
	gone.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "gone", UID: "g", Controller: &yes}}
	w.create(web, nightly, gone)
	w.stamped(web, "ClusterResourcePolicy/deployment")
	w.stamped(nightly, "ClusterResourcePolicy/cronjob")
	w.stamped(gone, "ClusterResourcePolicy/replicaset") // the only owner that is known
	w.stamped(w.newPod("alone", workload("alone", v1alpha1.ModeMeasure)), "ClusterResourcePolicy/pod")
}

// C02, C03, C04: no namespace; a loose ResourcePolicy elsewhere; one of higher priority elsewhere.
func TestC02C03C04NamespacedPoliciesStayHome(t *testing.T) {
	w := start(t)
	elsewhere := w.newNamespace(nil)
	w.cluster("fleet", 0, v1alpha1.Selector{})
	w.namespaced(elsewhere, "loose", 0)
	w.namespaced(elsewhere, "strong", 1000)
	here := w.newPod("here", shop(v1alpha1.ModeMeasure))
	there := pod(elsewhere, "there", shop(v1alpha1.ModeMeasure))
	w.create(there)
	w.stamped(here, "ClusterResourcePolicy/fleet")
	w.stamped(there, "ResourcePolicy/"+elsewhere+"/strong")

	resolve := func(p *corev1.Pod, namespace string) string {
		a, err := w.resolver.Resolve(t.Context(), p, namespace)
		w.must(err)
		return a.Stamps()[v1alpha1.AnnotationPolicyRef]
	}
	if got := resolve(here, ""); got != "ClusterResourcePolicy/fleet" {
		t.Errorf("C03: without a namespace %s governs", got)
	}
	// C04: at admission the pod's own namespace is empty and the request's counts.
	admitted := pod("", "", shop(v1alpha1.ModeMeasure))
	if got := resolve(admitted, elsewhere); got != "ResourcePolicy/"+elsewhere+"/strong" {
		t.Errorf("C04: at admission %s governs", got)
	}
	if got := resolve(admitted, w.namespace); got != "ClusterResourcePolicy/fleet" {
		t.Errorf("C04: at admission elsewhere %s governs", got)
	}
}

// C05: among equals the name decides, and both say so, once.
func TestC05Overlap(t *testing.T) {
	w := start(t)
	b := w.cluster("b", 5, v1alpha1.Selector{})
	a := w.cluster("a", 5, v1alpha1.Selector{})
	apart := w.cluster("c", 5, only("nowhere"))
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	w.stamped(p, "ClusterResourcePolicy/a")
	condition := func(p *v1alpha1.ClusterResourcePolicy) *metav1.Condition {
		w.get(p)
		return meta.FindStatusCondition(p.Status.Conditions, profile.ConditionOverlap)
	}
	w.eventually("both to report the overlap", func() error {
		ca, cb := condition(a), condition(b)
		if ca == nil || cb == nil {
			return errors.New("not both do")
		}
		if !strings.Contains(ca.Message, "ClusterResourcePolicy/b;") || !strings.Contains(cb.Message, "ClusterResourcePolicy/a;") {
			return fmt.Errorf("%q and %q", ca.Message, cb.Message)
		}
		return nil
	})
	if condition(apart) != nil {
		t.Error("a policy that matches none of the pods overlaps")
	}
	w.quiet()
	before := api.Requests()
	w.rebalance()
	w.quiet()
	if n := api.Requests().Since(before).Writes(""); n != 0 {
		t.Errorf("reporting the same overlap again took %d writes", n)
	}
	w.must(w.c.Delete(t.Context(), b))
	w.eventually("the overlap to end", func() error {
		if c := condition(a); c != nil {
			return errors.New(c.Message)
		}
		return nil
	})
}

// C06: a stored policy that does not compile is skipped and reported; no other answer changes.
func TestC06BrokenPolicy(t *testing.T) {
	w := start(t)
	w.cluster("fleet", 0, v1alpha1.Selector{})
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	w.stamped(p, "ClusterResourcePolicy/fleet")
	w.quiet()
	before := api.Requests()
	w.cluster("broken", 1000, only("/(/"))
	w.eventually("the report", func() error {
		if got := w.events.about("PolicyBroken", "broken"); len(got) != 1 || !strings.Contains(got[0], "spec.selector.namespaces.include[0]") {
			return fmt.Errorf("events %v", got)
		}
		return nil
	})
	w.quiet()
	w.stamped(p, "ClusterResourcePolicy/fleet")
	if n := api.Requests().Since(before).Writes("pods"); n != 0 {
		t.Errorf("a broken policy caused %d writes to pods", n)
	}
}

// C07: values that sanitise alike make different profiles, all valid names.
func TestC07AlikeWhenSanitised(t *testing.T) {
	w := start(t)
	values := []string{"a.b", "a-b", "A-B", "a_b", "A.b"}
	names := map[string]string{}
	for i, v := range values {
		name := w.stamped(w.newPod(fmt.Sprintf("p%d", i), workload(v, v1alpha1.ModeMeasure)), "nopolicy")
		if other, ok := names[name]; ok {
			t.Errorf("%s and %s share profile %s", v, other, name)
		}
		names[name] = v
		if got := w.profile(name).Spec.Identity.Tuple["app.kubernetes.io/name"]; got != v {
			t.Errorf("profile %s is of %q, want %q", name, got, v)
		}
	}
}

// C08: the longest names there can be.
func TestC08LongestNames(t *testing.T) {
	w := start(t)
	long := strings.Repeat(strings.Repeat("p", 62)+".", 4)[:validation.DNS1123SubdomainMaxLength-1] + "p"
	w.cluster(long, 0, v1alpha1.Selector{})
	value := strings.Repeat("v", 63)
	labels := workload(value, v1alpha1.ModeMeasure)
	labels["app.kubernetes.io/component"] = value
	p := w.newPod(value, labels)
	name := w.stamped(p, "ClusterResourcePolicy/"+long)
	if len(name) > validation.DNS1123SubdomainMaxLength {
		t.Errorf("name of %d characters", len(name))
	}
	if got := w.profile(name).Spec.Identity.PolicyRef.Name; got != long {
		t.Errorf("traced to policy %q", got)
	}
}

// C09: a policy deleted and recreated under the same name while pods run.
func TestC09PolicyRecreated(t *testing.T) {
	w := start(t)
	fleet := w.cluster("fleet", 0, v1alpha1.Selector{})
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "ClusterResourcePolicy/fleet")
	first := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.must(w.c.Delete(t.Context(), fleet))
	between := w.stamped(p, "nopolicy")
	w.profileWith(name, 0, v1alpha1.ProfileOrphaned)
	w.cluster("fleet", 0, v1alpha1.Selector{})
	if again := w.stamped(p, "ClusterResourcePolicy/fleet"); again != name {
		t.Errorf("profile %s became %s", name, again)
	}
	if again := w.profileWith(name, 1, v1alpha1.ProfileLearning); again.UID != first.UID {
		t.Error("the profile was made anew")
	}
	if diff := cmp.Diff([]string{name, between}, w.profiles()); diff != "" {
		t.Error(diff)
	}
	// What was measured in between goes with its own profile, and nothing else.
	orphan := w.profileWith(between, 0, v1alpha1.ProfileOrphaned)
	w.clock.add(169 * 3600e9)
	w.rebalance()
	w.gone(between)
	if diff := cmp.Diff([]string{"purge " + orphan.Spec.Identity.MeasurementHash}, w.purger.done()); diff != "" {
		t.Error(diff)
	}
}

// C10: editing only headroom renames nothing, resolves nothing again, and is what is read next.
func TestC10HeadroomEdit(t *testing.T) {
	w := start(t)
	fleet := w.cluster("fleet", 0, v1alpha1.Selector{})
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "ClusterResourcePolicy/fleet")
	w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.quiet()
	index, before := w.resolver.Policies.Get(), api.Requests()
	w.patch(fleet, `{"spec":{"resources":[{"resource":"cpu","field":"request","headroom":"3"}]}}`)
	ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "fleet"}
	w.eventually("the new headroom", func() error {
		governing, ok := w.resolver.Policies.Get().Load(ref)
		if !ok || len(governing.Settings.Rules) != 1 || governing.Settings.Rules[0].Headroom != 3 {
			return errors.New("not read yet")
		}
		return nil
	})
	if w.resolver.Policies.Get().RescopedFrom(index) {
		t.Error("pods would be resolved again")
	}
	w.quiet()
	if n := api.Requests().Since(before).Writes(""); n != 1 {
		t.Errorf("%d writes, want the edit alone", n)
	}
	if diff := cmp.Diff([]string{name}, w.profiles()); diff != "" {
		t.Error(diff)
	}
}

// C14: after many racing creations and deletions the count is that of the live
// pods, and no pod has a finalizer.
func TestC14CountAfterRaces(t *testing.T) {
	w := start(t)
	const workers, rounds = 10, 100
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	for i := range workers {
		wg.Go(func() {
			for j := range rounds {
				p := pod(w.namespace, fmt.Sprintf("p-%d-%d", i, j), shop(v1alpha1.ModeMeasure))
				if err := w.c.Create(t.Context(), p); err != nil {
					failed <- err
					return
				}
				if j%10 == 9 { // one in ten stays
					continue
				}
				if err := w.c.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
	w.profileWith("shop--nopolicy", workers*rounds/10, v1alpha1.ProfileLearning)
	w.quiet()
	w.profileWith("shop--nopolicy", workers*rounds/10, v1alpha1.ProfileLearning)
	var pods corev1.PodList
	w.must(w.c.List(t.Context(), &pods, client.InNamespace(w.namespace)))
	for _, p := range pods.Items {
		if len(p.Finalizers) > 0 {
			t.Fatalf("pod %s has finalizers %v", p.Name, p.Finalizers)
		}
	}
}

// C15: a selector that flips away and back finds the samples of before again.
func TestC15SelectorFlips(t *testing.T) {
	w := start(t)
	fleet := w.cluster("fleet", 0, v1alpha1.Selector{})
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	name := w.stamped(p, "ClusterResourcePolicy/fleet")
	first := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	w.patch(fleet, `{"spec":{"selector":{"kinds":["Nothing"]}}}`)
	w.stamped(p, "nopolicy")
	w.patch(fleet, `{"spec":{"selector":{"kinds":null}}}`)
	w.stamped(p, "ClusterResourcePolicy/fleet")
	again := w.profileWith(name, 1, v1alpha1.ProfileLearning)
	if again.UID != first.UID || again.Spec.Identity.MeasurementHash != first.Spec.Identity.MeasurementHash {
		t.Error("another profile or other measurements")
	}
	if got := w.purger.done(); len(got) > 0 {
		t.Errorf("removed %v", got)
	}
}

// One workload under two policies has two profiles; a policy applied or removed
// at run time moves its pods; the discriminator finds a policy's profiles.
func TestSplitAndTrace(t *testing.T) {
	w := start(t)
	other := w.newNamespace(nil)
	fleet := w.cluster("fleet", 0, v1alpha1.Selector{})
	here := w.newPod("here", shop(v1alpha1.ModeMeasure))
	there := pod(other, "there", shop(v1alpha1.ModeMeasure))
	w.create(there)
	shared := w.stamped(here, "ClusterResourcePolicy/fleet")
	if got := w.stamped(there, "ClusterResourcePolicy/fleet"); got != shared {
		t.Errorf("the workload has profiles %s and %s", shared, got)
	}
	w.profileWith(shared, 2, v1alpha1.ProfileLearning) // pooled across namespaces

	own := w.namespaced(other, "own", 0)
	split := w.stamped(there, "ResourcePolicy/"+other+"/own")
	w.profileWith(shared, 1, v1alpha1.ProfileLearning)
	w.profileWith(split, 1, v1alpha1.ProfileLearning)
	w.eventually("what the policies govern", func() error {
		w.get(fleet)
		w.get(own)
		for _, s := range []v1alpha1.ResourcePolicyStatus{fleet.Status, own.Status} {
			if s.Pods != 1 || s.Profiles != 1 || s.ProfileDiscriminator == "" {
				return fmt.Errorf("%+v", s)
			}
		}
		return nil
	})
	found := w.shell(`kubectl get wp --no-headers | grep -- $(kubectl get crp fleet -o jsonpath='{.status.profileDiscriminator}')`)
	if fields := strings.Fields(found); len(fields) < 4 || fields[0] != shared || fields[1] != "fleet" || fields[2] != "Learning" || fields[3] != "1" {
		t.Errorf("kubectl shows %q, want %s of policy fleet, Learning, 1 pod", found, shared)
	}
	if strings.Count(found, "\n") != 1 {
		t.Errorf("the discriminator finds %q", found)
	}
	columns := w.shell(`kubectl get crp fleet; kubectl get rp -n ` + other + ` own`)
	for _, want := range []string{"DISCRIMINATOR", fleet.Status.ProfileDiscriminator, own.Status.ProfileDiscriminator} {
		if !strings.Contains(columns, want) {
			t.Errorf("kubectl does not show %s:\n%s", want, columns)
		}
	}

	w.must(w.c.Delete(t.Context(), own))
	w.stamped(there, "ClusterResourcePolicy/fleet")
	w.profileWith(shared, 2, v1alpha1.ProfileLearning)
	w.profileWith(split, 0, v1alpha1.ProfileOrphaned)
}

// shell runs a command line with kubectl at hand.
func (w *world) shell(line string) string {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "bash", "-o", "pipefail", "-c", line)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+api.Kubeconfig, "PATH="+api.Assets+":/usr/bin:/bin", "HOME="+filepath.Join(w.t.TempDir()))
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		w.t.Fatalf("%s: %v", line, err)
	}
	return string(out)
}
