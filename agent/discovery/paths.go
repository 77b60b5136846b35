package discovery

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A kubelet puts pods below a cgroup named kubepods, which stands at the root or below the kubelet's cgroupRoot:
//
//	cgroupfs driver  <root>/kubepods[/burstable|/besteffort]/pod<uid>
//	systemd driver   <root>/[<prefix>-]kubepods.slice[/[<prefix>-]kubepods-burstable.slice]/
//	                 [<prefix>-]kubepods-burstable-pod<uid with _ for ->.slice
//
// Guaranteed pods have no level of their own. The runtime adds the container's cgroup:
//
//	containerd  <id>     cri-containerd-<id>.scope
//	docker      <id>     docker-<id>.scope
//	CRI-O       crio-<id>     crio-<id>.scope, in which newer ones put the processes one level deeper
const (
	kubepods = "kubepods"
	slice    = ".slice"
	scope    = ".scope"
)

// isKubepods reports whether a directory's name is that of the cgroup below which a kubelet puts pods.
func isKubepods(name string) bool {
	stem := strings.TrimSuffix(name, slice)
	return stem == kubepods || (stem != name && strings.HasSuffix(stem, "-"+kubepods))
}

// PodPaths returns where the cgroup of a pod may be below root, a kubepods cgroup of either driver, the place for qos
// first; an empty qos is one the API server has not told yet.
func PodPaths(root string, uid types.UID, qos corev1.PodQOSClass) []string {
	classes := []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
	paths := make([]string, 0, len(classes)+1)
	if qos != "" {
		paths = append(paths, podPath(root, uid, qos))
	}
	for _, c := range classes {
		if c != qos {
			paths = append(paths, podPath(root, uid, c))
		}
	}
	return paths
}

func podPath(root string, uid types.UID, qos corev1.PodQOSClass) string {
	class := ""
	if qos != corev1.PodQOSGuaranteed {
		class = strings.ToLower(string(qos))
	}
	stem, systemd := strings.CutSuffix(path.Base(root), slice)
	if !systemd {
		return path.Join(root, class, "pod"+string(uid))
	}
	dir := root
	if class != "" {
		stem += "-" + class
		dir = path.Join(dir, stem+slice)
	}
	return path.Join(dir, stem+"-pod"+strings.ReplaceAll(string(uid), "-", "_")+slice)
}

// ContainerID returns the container id in the name of a container's cgroup, of any runtime and driver; false for other
// cgroups, such as CRI-O's monitor processes.
func ContainerID(name string) (string, bool) {
	id := strings.TrimSuffix(name, scope)
	if i := strings.LastIndexByte(id, '-'); i >= 0 {
		if strings.HasSuffix(id[:i], "conmon") {
			return "", false
		}
		id = id[i+1:]
	}
	if len(id) != 64 {
		return "", false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return id, true
}

// isContainer reports whether the cgroup's name is that of the container with this id.
func isContainer(name, id string) bool {
	stem := strings.TrimSuffix(name, scope)
	if stem == id {
		return true
	}
	runtime, ok := strings.CutSuffix(stem, "-"+id)
	return ok && !strings.HasSuffix(runtime, "conmon")
}

// statusID returns the bare id of a status's "<runtime>://<id>".
func statusID(s string) string {
	if _, id, ok := strings.Cut(s, "://"); ok {
		return id
	}
	return s
}
