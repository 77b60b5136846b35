package profile_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// mode waits until a pod's mode labels and stamps are as wanted.
func (w *world) mode(p *corev1.Pod, mode, source string, stamped bool) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s with mode %q from %q", p.Name, mode, source), func() error {
		w.get(p)
		_, ref := p.Annotations[v1alpha1.AnnotationProfileRef]
		if p.Labels[v1alpha1.LabelMode] != mode || p.Labels[v1alpha1.LabelModeSource] != source || ref != stamped {
			return fmt.Errorf("labels %v, annotations %v", p.Labels, p.Annotations)
		}
		return nil
	})
}

// A namespace's mode is copied to pods that run already, the copies follow it,
// and a pod's own mode does not.
func TestNamespaceMode(t *testing.T) {
	w := start(t)
	running := w.newPod("running", shop(""))
	own := w.newPod("own", shop(v1alpha1.ModeApply))
	off := w.newPod("off", shop(v1alpha1.ModeOff))
	windows := pod(w.namespace, "windows", shop(""))
	windows.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	w.create(windows)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	set := func(mode string) {
		w.patch(ns, fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, v1alpha1.LabelMode, mode))
	}
	set(`"measure"`)
	w.mode(running, "measure", "namespace", true)
	set(`"resize"`)
	w.mode(running, "resize", "namespace", true)
	w.mode(own, "apply", "", true)
	w.mode(off, "off", "", false)
	w.mode(windows, "", "", false)
	w.profileWith("shop--nopolicy", 2, v1alpha1.ProfileLearning)

	set(`"on"`) // names no mode
	w.mode(running, "", "", false)
	w.eventually("the report", func() error {
		if got := w.events.about("InvalidNamespaceMode", w.namespace); len(got) != 1 {
			return fmt.Errorf("events %v", got)
		}
		return nil
	})
	set(`"apply"`)
	w.mode(running, "apply", "namespace", true)
	set(`null`)
	w.mode(running, "", "", false)
	w.mode(own, "apply", "", true)
	w.profileWith("shop--nopolicy", 1, v1alpha1.ProfileLearning)
}

// A pod that came while admission was away gets its namespace's mode later.
func TestPodMissedByAdmission(t *testing.T) {
	w := start(t)
	before := w.newPod("before", shop(""))
	w.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}, `{"metadata":{"labels":{"plimsoll.dev/mode":"apply"}}}`)
	w.mode(before, "apply", "namespace", true)
	missed := w.newPod("missed", shop(""))
	w.eventually("the next walk", func() error {
		w.rebalance() // stands in for the time until then
		if w.get(missed); missed.Labels[v1alpha1.LabelMode] != "apply" {
			return errors.New("not labelled")
		}
		return nil
	})
	w.mode(missed, "apply", "namespace", true)
}

// A stored invalid mode is reported once and counts as off.
func TestInvalidModeAtRest(t *testing.T) {
	w := start(t)
	p := w.newPod("x", shop("on"))
	w.eventually("the report", func() error {
		if got := w.events.about("InvalidMode", "x"); len(got) != 1 {
			return fmt.Errorf("events %v", got)
		}
		return nil
	})
	w.rebalance()
	w.mode(p, "on", "", false)
	w.patch(p, `{"metadata":{"labels":{"plimsoll.dev/mode":"measure"}}}`)
	w.stamped(p, "nopolicy")
	w.patch(p, `{"metadata":{"labels":{"plimsoll.dev/mode":"On"}}}`)
	w.mode(p, "On", "", false) // the stamps go
	if got := w.events.about("InvalidMode", "x"); len(got) != 1 {
		t.Errorf("reported %v", got)
	}
}

// A pod that asks for a mode it cannot have learns why.
func TestRefusedPods(t *testing.T) {
	w := start(t)
	anonymous := w.newPod("anonymous", map[string]string{v1alpha1.LabelMode: "resize"})
	windows := pod(w.namespace, "windows", shop(v1alpha1.ModeResize))
	windows.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
	w.create(windows)
	w.eventually("the reports", func() error {
		if a, b := w.events.about("NoIdentity", "anonymous"), w.events.about("WindowsPod", "windows"); len(a) != 1 || len(b) != 1 {
			return fmt.Errorf("events %v, %v", a, b)
		}
		return nil
	})
	w.mode(anonymous, "resize", "", false)
	w.mode(windows, "resize", "", false)
	if got := w.profiles(); len(got) > 0 {
		t.Errorf("profiles %v", got)
	}
}

// Users' own stamps are overwritten, and removed where a pod is not enrolled.
func TestForgedStamps(t *testing.T) {
	w := start(t)
	p := pod(w.namespace, "x", shop(v1alpha1.ModeMeasure))
	p.Annotations = map[string]string{v1alpha1.AnnotationPolicyRef: "ClusterResourcePolicy/mine", v1alpha1.AnnotationProfileRef: "theirs"}
	w.create(p)
	if got := w.stamped(p, "nopolicy"); got != "shop--nopolicy" {
		t.Errorf("profile %s", got)
	}
}

// Other identity labels start other profiles; going back finds the first again.
func TestIdentityLabels(t *testing.T) {
	w := start(t)
	labels := shop(v1alpha1.ModeMeasure)
	labels["team"] = "pay"
	p := w.newPod("x", labels)
	first := w.profileWith(w.stamped(p, "nopolicy"), 1, v1alpha1.ProfileLearning)
	config := &v1alpha1.PlimsollConfig{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName},
		Spec:       v1alpha1.PlimsollConfigSpec{IdentityLabels: []string{"team"}},
	}
	w.create(config)
	var second string
	w.eventually("another profile", func() error {
		if _, second = w.stamps(p); second == first.Name {
			return errors.New(second)
		}
		return nil
	})
	if diff := cmp.Diff(map[string]string{"team": "pay"}, w.profile(second).Spec.Identity.Tuple); diff != "" {
		t.Error(diff)
	}
	w.profileWith(second, 1, v1alpha1.ProfileLearning)
	w.profileWith(first.Name, 0, v1alpha1.ProfileOrphaned)
	w.must(w.c.Delete(t.Context(), config))
	if again := w.profileWith(first.Name, 1, v1alpha1.ProfileLearning); again.UID != first.UID {
		t.Error("the first profile was made anew")
	}
}

// A replica writes what it owns and nothing else; together two write everything once.
func TestOwnership(t *testing.T) {
	mine := func(key string) bool { return len(key)%2 == 0 }
	w := startReplica(t, replica{owns: mine})
	var pods []*corev1.Pod
	for _, name := range []string{"p", "pp", "ppp", "pppp"} {
		pods = append(pods, w.newPod(name, shop(v1alpha1.ModeMeasure)))
	}
	w.quiet()
	for _, p := range pods {
		_, ref := w.stamps(p)
		if key := client.ObjectKeyFromObject(p).String(); (ref != "") != mine(key) {
			t.Errorf("pod %s is stamped %q by one who owns it: %v", key, ref, mine(key))
		}
	}
	w.stop()
	w.run(replica{owns: func(key string) bool { return !mine(key) }})
	for _, p := range pods {
		w.stamped(p, "nopolicy")
	}
}

// The change of a pod never lands on a later pod of the same name.
func TestStampKeepsToItsPod(t *testing.T) {
	w := start(t)
	p := w.newPod("x", shop(v1alpha1.ModeMeasure))
	w.stamped(p, "nopolicy")
	err := w.c.Patch(t.Context(), p, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"uid":"another"}}`)))
	if err == nil {
		t.Error("the API server takes a patch meant for another pod")
	}
}
