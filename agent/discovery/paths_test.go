package discovery_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/discovery"
)

const (
	uid        = types.UID("0d7ee1f5-7b3a-4a9c-9e58-0f9a3c1c7a11")
	escapedUID = "0d7ee1f5_7b3a_4a9c_9e58_0f9a3c1c7a11"
)

var (
	id1 = strings.Repeat("1a", 32)
	id2 = strings.Repeat("2b", 32)
	id3 = strings.Repeat("3c", 32)
)

func TestPodPaths(t *testing.T) {
	tests := map[string]struct {
		root string
		qos  corev1.PodQOSClass
		want string
	}{
		"cgroupfs guaranteed":           {"/kubepods", corev1.PodQOSGuaranteed, "/kubepods/pod" + string(uid)},
		"cgroupfs burstable":            {"/kubepods", corev1.PodQOSBurstable, "/kubepods/burstable/pod" + string(uid)},
		"cgroupfs best effort":          {"/kubepods", corev1.PodQOSBestEffort, "/kubepods/besteffort/pod" + string(uid)},
		"cgroupfs with a cgroupRoot":    {"/node-a/kubepods", corev1.PodQOSBurstable, "/node-a/kubepods/burstable/pod" + string(uid)},
		"systemd guaranteed":            {"/kubepods.slice", corev1.PodQOSGuaranteed, "/kubepods.slice/kubepods-pod" + escapedUID + ".slice"},
		"systemd burstable":             {"/kubepods.slice", corev1.PodQOSBurstable, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + escapedUID + ".slice"},
		"systemd best effort":           {"/kubepods.slice", corev1.PodQOSBestEffort, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + escapedUID + ".slice"},
		"systemd with a cgroupRoot":     {"/node.slice/node-kubepods.slice", corev1.PodQOSBurstable, "/node.slice/node-kubepods.slice/node-kubepods-burstable.slice/node-kubepods-burstable-pod" + escapedUID + ".slice"},
		"class not known to the server": {"/kubepods", "", "/kubepods/pod" + string(uid)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := discovery.PodPaths(tc.root, uid, tc.qos)
			if got[0] != tc.want || len(got) != 3 {
				t.Errorf("got %q, want 3 with %q first", got, tc.want)
			}
		})
	}
}

func TestContainerID(t *testing.T) {
	tests := map[string]struct {
		name string
		want string
	}{
		"containerd or docker, cgroupfs": {id1, id1},
		"containerd, systemd":            {"cri-containerd-" + id1 + ".scope", id1},
		"docker, systemd":                {"docker-" + id1 + ".scope", id1},
		"CRI-O, systemd":                 {"crio-" + id1 + ".scope", id1},
		"CRI-O, cgroupfs":                {"crio-" + id1, id1},
		"CRI-O's monitor":                {"crio-conmon-" + id1 + ".scope", ""},
		"a slice":                        {"kubepods-burstable.slice", ""},
		"too short":                      {id1[:63], ""},
		"not hex":                        {id1[:63] + "g", ""},
		"CRI-O's extra level":            {"container", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := discovery.ContainerID(tc.name)
			if got != tc.want || ok != (tc.want != "") {
				t.Errorf("got %q, %v; want %q", got, ok, tc.want)
			}
		})
	}
}

func FuzzContainerID(f *testing.F) {
	f.Add("crio-" + id1 + ".scope")
	f.Add(id1)
	f.Add("-.scope")
	f.Fuzz(func(t *testing.T, name string) {
		if id, ok := discovery.ContainerID(name); ok && (len(id) != 64 || !strings.Contains(name, id)) {
			t.Errorf("%q has the id %q", name, id)
		}
	})
}

// layout is a driver, a runtime and a mounted hierarchy set, as real nodes combine them.
type layout struct {
	systemd bool
	parent  string // kubelet's cgroupRoot
	naming  string // of the container's cgroup, with ID
	extra   string // a level that the runtime adds below
}

// dir returns where the layout puts a container.
func (l layout) dir(qos corev1.PodQOSClass, id string) string {
	class := map[corev1.PodQOSClass]string{corev1.PodQOSBurstable: "burstable", corev1.PodQOSBestEffort: "besteffort"}[qos]
	leaf := strings.ReplaceAll(l.naming, "ID", id)
	if !l.systemd {
		return path.Join("/", l.parent, "kubepods", class, "pod"+string(uid), leaf)
	}
	stem, dir := "kubepods", "/"
	if l.parent != "" {
		stem, dir = l.parent+"-kubepods", "/"+l.parent+".slice"
	}
	dir = path.Join(dir, stem+".slice")
	if class != "" {
		stem += "-" + class
		dir = path.Join(dir, stem+".slice")
	}
	return path.Join(dir, stem+"-pod"+escapedUID+".slice", leaf)
}

var layouts = map[string]layout{
	"containerd cgroupfs":            {naming: "ID"},
	"containerd systemd":             {systemd: true, naming: "cri-containerd-ID.scope"},
	"docker cgroupfs":                {naming: "ID"},
	"docker systemd":                 {systemd: true, naming: "docker-ID.scope"},
	"CRI-O cgroupfs":                 {naming: "crio-ID"},
	"CRI-O systemd":                  {systemd: true, naming: "crio-ID.scope"},
	"CRI-O systemd with extra level": {systemd: true, naming: "crio-ID.scope", extra: "container"},
	"containerd cgroupfs cgroupRoot": {parent: "plimsoll-xyz", naming: "ID"},
	"containerd systemd cgroupRoot":  {systemd: true, parent: "xyz", naming: "cri-containerd-ID.scope"},
}

// hierarchies are the directories below the mount which the kubelet and the runtime fill, by mode.
var hierarchies = map[cgroup.Mode][]string{
	cgroup.V1:     {"cpu,cpuacct", "memory", "pids", "systemd"},
	cgroup.Hybrid: {"cpu,cpuacct", "memory", "pids", "systemd", "unified"},
	cgroup.V2:     {"."},
}

func makeMount(t *testing.T, mode cgroup.Mode) string {
	t.Helper()
	root := t.TempDir()
	for _, h := range hierarchies[mode] {
		makeDir(t, filepath.Join(root, h))
	}
	controllers := map[cgroup.Mode]string{cgroup.V2: "cgroup.controllers", cgroup.Hybrid: "unified/cgroup.controllers"}[mode]
	if controllers != "" {
		if err := os.WriteFile(filepath.Join(root, controllers), []byte("cpuset cpu io memory pids\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func makeDir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// C24: every driver, runtime, hierarchy and class: the pod's containers are found, and one by its id alone.
func TestC24Layouts(t *testing.T) {
	for mode := range hierarchies {
		for name, l := range layouts {
			for _, qos := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
				t.Run(strings.Join([]string{string(mode), name, string(qos)}, "/"), func(t *testing.T) {
					root := makeMount(t, mode)
					want := map[string]string{}
					for _, id := range []string{id1, id2} {
						want[id] = l.dir(qos, id)
						for _, h := range hierarchies[mode] {
							makeDir(t, filepath.Join(root, h, want[id], l.extra))
							makeDir(t, filepath.Join(root, h, path.Dir(want[id]), "crio-conmon-"+id+".scope"))
							makeDir(t, filepath.Join(root, h, "system.slice/containerd.service"))
						}
					}
					files, err := cgroup.NewFS(root)
					if err != nil {
						t.Fatal(err)
					}
					if files.Mode() != mode {
						t.Errorf("mode %s, want %s", files.Mode(), mode)
					}
					checkFound(t, discovery.NewTree(files.Tree()), qos, want)
				})
			}
		}
	}
}

func checkFound(t *testing.T, tree discovery.Tree, qos corev1.PodQOSClass, want map[string]string) {
	t.Helper()
	roots, err := tree.Roots()
	if err != nil || len(roots) != 1 {
		t.Fatalf("roots %q, %v; want one", roots, err)
	}
	for _, class := range []corev1.PodQOSClass{qos, ""} {
		pod, ok := tree.Pod(roots, uid, class)
		if !ok {
			t.Fatalf("the pod was not found with class %q", class)
		}
		got, err := tree.Containers(pod)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("containers (-want +got):\n%s", diff)
		}
	}
	for id, p := range want {
		if got, ok := tree.Container(roots, id); !ok || got != p {
			t.Errorf("by id alone: got %q, %v; want %q", got, ok, p)
		}
	}
	if got, ok := tree.Container(roots, id3); ok {
		t.Errorf("found a container that is not there: %q", got)
	}
}

func TestTwoKubeletsOnOneMachine(t *testing.T) {
	dir := t.TempDir()
	a, b := layout{parent: "a", naming: "ID"}, layout{naming: "ID"}
	makeDir(t, filepath.Join(dir, a.dir(corev1.PodQOSBurstable, id1)))
	makeDir(t, filepath.Join(dir, b.dir(corev1.PodQOSGuaranteed, id2)))
	tree := discovery.NewTree(dir)
	roots, err := tree.Roots()
	if err != nil || len(roots) != 2 {
		t.Fatalf("roots %q, %v; want two", roots, err)
	}
	for id, want := range map[string]string{id1: a.dir(corev1.PodQOSBurstable, id1), id2: b.dir(corev1.PodQOSGuaranteed, id2)} {
		if got, ok := tree.Container(roots, id); !ok || got != want {
			t.Errorf("got %q, %v; want %q", got, ok, want)
		}
	}
}

func TestContainerOnlyByWholeID(t *testing.T) {
	dir := t.TempDir()
	l := layout{naming: "ID"}
	makeDir(t, filepath.Join(dir, l.dir(corev1.PodQOSBurstable, id1)))
	tree := discovery.NewTree(dir)
	roots, err := tree.Roots()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringN(0, 70, -1).Draw(t, "id")
		if got, ok := tree.Container(roots, id); ok && id != id1 {
			t.Fatalf("%q finds %q", id, got)
		}
	})
}
