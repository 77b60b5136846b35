package discovery_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/api/v1alpha1"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// node is a cgroup tree and the Discovery over it.
type node struct {
	t   *testing.T
	dir string
	d   *discovery.Discovery
	now time.Time
}

func newNode(t *testing.T) *node {
	dir := t.TempDir()
	return &node{t: t, dir: dir, d: discovery.New(discovery.NewTree(dir)), now: start}
}

func (n *node) cgroup(id string) string {
	return layout{naming: "ID"}.dir(corev1.PodQOSBurstable, id)
}

func (n *node) make(ids ...string) {
	for _, id := range ids {
		makeDir(n.t, filepath.Join(n.dir, n.cgroup(id)))
	}
}

func (n *node) remove(ids ...string) {
	for _, id := range ids {
		if err := os.RemoveAll(filepath.Join(n.dir, n.cgroup(id))); err != nil {
			n.t.Fatal(err)
		}
	}
}

// scan lets time pass and returns what is found: container names, "?" where there is none, by id.
func (n *node) scan(after time.Duration) map[string]string {
	n.now = n.now.Add(after)
	all, _ := n.d.Scan(n.now)
	got := map[string]string{}
	for _, c := range all {
		got[c.ID] = c.Name
		if c.Name == "" {
			got[c.ID] = "?"
		}
		if c.Path != n.cgroup(c.ID) {
			n.t.Errorf("container %s at %q, want %q", c.Name, c.Path, n.cgroup(c.ID))
		}
	}
	return got
}

func (n *node) expect(what string, after time.Duration, want map[string]string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.scan(after)); diff != "" {
		n.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func newPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", UID: uid,
			Labels:      map[string]string{v1alpha1.LabelMode: "measure", "app.kubernetes.io/name": "web"},
			Annotations: map[string]string{v1alpha1.AnnotationPolicyRef: "ClusterResourcePolicy/all"},
		},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app"}}},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable},
	}
}

func running(name, id string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: name, ContainerID: "containerd://" + id,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start.Add(-time.Hour))}},
	}
}

func terminated(name, id string) corev1.ContainerStatus {
	s := running(name, id)
	s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "containerd://" + id}}
	return s
}

// C25: native sidecars are measured, init and ephemeral containers are not.
func TestC25KindsOfContainers(t *testing.T) {
	n := newNode(t)
	always := corev1.ContainerRestartPolicyAlways
	pod := newPod()
	pod.Spec.InitContainers = []corev1.Container{{Name: "setup"}, {Name: "proxy", RestartPolicy: &always}}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	id4 := id3[:62] + "44"
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{running("setup", id1), running("proxy", id2)}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id3)}
	pod.Status.EphemeralContainerStatuses = []corev1.ContainerStatus{running("debug", id4)}
	n.make(id1, id2, id3, id4)
	n.d.SetPod(pod)
	n.expect("all kinds", 0, map[string]string{id2: "proxy", id3: "app"})

	all, _ := n.d.Scan(n.now)
	for _, c := range all {
		if c.Pod.PolicyRef != "ClusterResourcePolicy/all" || c.Pod.Name != "web-1" || !c.StartedAt.Equal(start.Add(-time.Hour)) {
			t.Errorf("container %+v of pod %+v", c, c.Pod)
		}
	}
}

// C13: an init container of one pod has the name of another's app container; only the former is excluded.
func TestC13SameNameInAnotherPod(t *testing.T) {
	n := newNode(t)
	app := newPod()
	app.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	other := newPod()
	other.UID, other.Name = "5f1d6a0e-2c1b-4d38-8f4e-9a7b6c5d4e3f", "web-2"
	other.Spec.InitContainers = []corev1.Container{{Name: "app"}}
	other.Spec.Containers = []corev1.Container{{Name: "main"}}
	other.Status.InitContainerStatuses = []corev1.ContainerStatus{running("app", id2)}
	other.Status.ContainerStatuses = []corev1.ContainerStatus{running("main", id3)}
	n.make(id1)
	for _, id := range []string{id2, id3} {
		dir := strings.ReplaceAll(n.cgroup(id), string(uid), string(other.UID))
		makeDir(t, filepath.Join(n.dir, dir))
	}
	n.d.SetPod(other)
	n.d.SetPod(app)
	got := map[string]string{}
	all, _ := n.d.Scan(n.now)
	for _, c := range all {
		got[c.ID] = c.Pod.Name + "/" + c.Name
	}
	if diff := cmp.Diff(map[string]string{id1: "web-1/app", id3: "web-2/main"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// C26: the status lags, the pod vanishes from the watch: nothing is evicted on absence alone.
func TestC26OnlyClearEvidenceEndsAContainer(t *testing.T) {
	n := newNode(t)
	n.d.SetPod(newPod())
	n.expect("no cgroup yet", 0, map[string]string{})
	n.make(id1)
	n.expect("cgroup seen, status lags", 6*time.Second, map[string]string{id1: "?"})
	n.expect("still no status", 30*time.Second, map[string]string{id1: "?"})

	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	n.expect("named", time.Second, map[string]string{id1: "app"})

	n.d.DeletePod(uid)
	n.expect("absent from the list", time.Hour, map[string]string{id1: "app"})
	n.d.SetPod(newPod())
	n.expect("listed again with an old status", time.Second, map[string]string{id1: "app"})
	n.d.SetPod(pod)
	n.expect("and a current one", time.Second, map[string]string{id1: "app"})

	n.d.DeletePod(uid)
	n.remove(id1)
	n.expect("cgroup vanished", time.Second, map[string]string{})
	if c, ok := n.d.Lookup(uid, id1); !ok || c.Name != "app" {
		t.Errorf("the name of a container just gone: %+v, %v", c, ok)
	}
	n.scan(discovery.UnnamedFor + time.Second)
	if pods := n.d.Pods(); len(pods) != 0 {
		t.Errorf("%d pods kept", len(pods))
	}
}

func TestRestart(t *testing.T) {
	n := newNode(t)
	n.make(id1)
	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	n.expect("first run", 0, map[string]string{id1: "app"})
	n.expect("still the first run", time.Second, map[string]string{id1: "app"})
	n.remove(id1)
	n.make(id2)
	n.d.Gone(uid, id1)
	n.expect("second run, status lags", time.Second, map[string]string{id2: "?"})
	pod = newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id2)}
	pod.Status.ContainerStatuses[0].LastTerminationState = terminated("app", id1).State
	n.d.SetPod(pod)
	n.expect("second run named", time.Second, map[string]string{id2: "app"})
	all, _ := n.d.Scan(n.now)
	if len(all) != 1 || !all[0].AbsentAt.Equal(start) {
		t.Errorf("%+v: not known to be absent at the scan before", all)
	}
	pod = newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{terminated("app", id2)}
	pod.Status.ContainerStatuses[0].State.Terminated.Reason = "OOMKilled"
	pod.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(start)
	n.d.SetPod(pod)
	if killed := n.d.OOMKilled(); len(killed) != 1 || killed[0].ID != id2 || !killed[0].At.Equal(start) {
		t.Errorf("OOM kills by status: %+v", killed)
	}
	n.expect("ended by its status", time.Second, map[string]string{})
}

func TestUnnamedIsGivenUpAndComesBack(t *testing.T) {
	n := newNode(t)
	n.make(id1, id2)
	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	n.expect("app and the sandbox", 0, map[string]string{id1: "app", id2: "?"})
	n.expect("after two minutes", 121*time.Second, map[string]string{id1: "app"})
	pod = newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1), running("app", id2)}
	n.d.SetPod(pod)
	n.expect("named late", time.Second, map[string]string{id1: "app", id2: "app"})
}

func TestEnrolment(t *testing.T) {
	tests := map[string]struct {
		mode string
		want bool
	}{
		"measure": {"measure", true},
		"apply":   {"apply", true},
		"resize":  {"resize", true},
		"off":     {"off", false},
		"unknown": {"always", false},
		"none":    {"", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.make(id1)
			pod := newPod()
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
			n.d.SetPod(pod)
			n.expect("enrolled", 0, map[string]string{id1: "app"})
			pod = pod.DeepCopy()
			pod.Labels[v1alpha1.LabelMode] = tc.mode
			n.d.SetPod(pod)
			if got := len(n.scan(time.Second)) == 1; got != tc.want {
				t.Errorf("mode %q: measured %v, want %v", tc.mode, got, tc.want)
			}
		})
	}
}

func TestStampsAndJobsAreFollowed(t *testing.T) {
	pod := newPod()
	delete(pod.Annotations, v1alpha1.AnnotationPolicyRef)
	isController := true
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "j", Controller: &isController}}
	got, ok := discovery.NewPod(pod)
	if !ok || got.PolicyRef != "" || !got.Job {
		t.Errorf("unstamped pod of a Job: %+v, %v", got, ok)
	}
	pod.Annotations[v1alpha1.AnnotationPolicyRef] = "ResourcePolicy/shop/web"
	pod.Annotations[v1alpha1.AnnotationProfileRef] = "web--web-12345678"
	got, _ = discovery.NewPod(pod)
	if got.PolicyRef != "ResourcePolicy/shop/web" || got.ProfileRef != "web--web-12345678" {
		t.Errorf("stamped pod: %+v", got)
	}
}

// A container that replaces another between two looks was absent no later than when the other was last there.
func TestAbsentAtOfAReplacement(t *testing.T) {
	n := newNode(t)
	n.make(id1)
	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	n.scan(0)
	n.scan(time.Second) // the first is still there
	n.remove(id1)
	n.make(id2)
	n.scan(time.Second) // as many links as before
	n.d.Gone(uid, id1)
	n.scan(time.Second)
	all, _ := n.d.Scan(n.now)
	if len(all) != 1 || all[0].ID != id2 || !all[0].AbsentAt.Equal(start.Add(time.Second)) {
		t.Errorf("%+v, want %s absent at %s", all, id2, start.Add(time.Second))
	}
}

// A settled pod's tree is not read again each second, yet a change in it is seen at once.
func TestScanReportsChangesOnly(t *testing.T) {
	n := newNode(t)
	n.make(id1)
	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	_, changed := n.d.Scan(n.now)
	if !changed {
		t.Error("the first scan found nothing new")
	}
	first, changed := n.d.Scan(n.now.Add(time.Second))
	if changed || len(first) != 1 {
		t.Errorf("nothing happened, yet changed is %v with %d containers", changed, len(first))
	}
	n.make(id2)
	if _, changed := n.d.Scan(n.now.Add(2 * time.Second)); !changed {
		t.Error("a new cgroup was not seen")
	}
}

// A layout nobody has described: the container is found by the id in the pod's status.
func TestUnknownLayout(t *testing.T) {
	n := newNode(t)
	odd := "/kubepods/tenant-a/" + string(uid) + "/deep/rt-" + id1 + ".scope"
	makeDir(t, filepath.Join(n.dir, odd))
	pod := newPod()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{running("app", id1)}
	n.d.SetPod(pod)
	all, _ := n.d.Scan(n.now)
	if len(all) != 1 || all[0].Path != odd || all[0].Name != "app" {
		t.Fatalf("found %+v, want one at %q", all, odd)
	}
	n.d.DeletePod(types.UID("another"))
	if err := os.RemoveAll(filepath.Join(n.dir, odd)); err != nil {
		t.Fatal(err)
	}
	if all, _ := n.d.Scan(n.now.Add(time.Second)); len(all) != 0 {
		t.Errorf("still found: %+v", all)
	}
}

// Five thousand cgroups appear at once; a scan stays well within a second.
func TestFiveThousandCgroupsAtOnce(t *testing.T) {
	n := newNode(t)
	for i := range 50 {
		pod := newPod()
		pod.UID = types.UID(string(uid[:34]) + string(rune('a'+i/26)) + string(rune('a'+i%26)))
		for j := range 100 {
			id := id1[:58] + string([]byte{hexDigit(i / 16), hexDigit(i % 16), hexDigit(j / 16), hexDigit(j % 16), '0', '0'})
			makeDir(t, filepath.Join(n.dir, "kubepods/burstable", "pod"+string(pod.UID), id))
		}
		n.d.SetPod(pod)
	}
	began := time.Now()
	all, _ := n.d.Scan(n.now)
	if len(all) != 5000 {
		t.Errorf("%d containers found, want 5000", len(all))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("the scan took %v", took)
	}
}

func hexDigit(i int) byte { return "0123456789abcdef"[i] }
