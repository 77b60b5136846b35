package discovery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// rootDepth is how deep a kubepods cgroup is searched: a kubelet inside a container is the deepest seen
	// (docker/<id>/kubelet/kubepods).
	rootDepth = 5
	// idDepth is how far below kubepods a container is searched by its id.
	idDepth = 5
	// maxVisited bounds the directories one search looks into.
	maxVisited = 20000
)

// errTooMany reports that a search was cut short.
var errTooMany = fmt.Errorf("more than %d cgroups", maxVisited)

// Tree finds pods and containers in a cgroup hierarchy mounted at a directory. Paths it takes and returns are relative
// to that directory and begin with a slash.
type Tree struct{ dir string }

// NewTree returns the Tree of the hierarchy mounted at dir.
func NewTree(dir string) Tree { return Tree{dir: dir} }

// Roots returns every kubepods cgroup in the tree, so that a kubelet with a cgroupRoot of its own is found too.
func (t Tree) Roots() ([]string, error) {
	var roots []string
	err := t.walk("/", rootDepth, func(p string) step {
		if isKubepods(path.Base(p)) {
			roots = append(roots, p)
			return over
		}
		return into
	})
	return roots, err
}

// Pod returns the pod's cgroup below one of the roots; false if it is not there (yet).
func (t Tree) Pod(roots []string, uid types.UID, qos corev1.PodQOSClass) (string, bool) {
	for _, root := range roots {
		for _, p := range PodPaths(root, uid, qos) {
			if st, err := os.Stat(filepath.Join(t.dir, p)); err == nil && st.IsDir() {
				return p, true
			}
		}
	}
	return "", false
}

// Container returns the cgroup of a container by its id alone, wherever it is below the roots; false if it is not there.
func (t Tree) Container(roots []string, id string) (string, bool) {
	if id == "" || strings.ContainsAny(id, "/\x00") {
		return "", false
	}
	found := ""
	for _, root := range roots {
		// A search cut short finds nothing, as if the container were not there.
		_ = t.walk(root, idDepth, func(p string) step {
			if isContainer(path.Base(p), id) {
				found = p
				return stop
			}
			return into
		})
		if found != "" {
			return found, true
		}
	}
	return "", false
}

// Containers returns the paths of the containers' cgroups in a pod's, by container id. A vanished pod has none.
func (t Tree) Containers(pod string) (map[string]string, error) {
	entries, err := os.ReadDir(filepath.Join(t.dir, pod))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a pod's cgroup: %w", err)
	}
	found := make(map[string]string, 2)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if id, ok := ContainerID(e.Name()); ok {
			found[id] = path.Join(pod, e.Name())
		}
	}
	return found, nil
}

// Exists reports whether the cgroup is still there; doubt counts as yes.
func (t Tree) Exists(p string) bool {
	_, err := os.Stat(filepath.Join(t.dir, p))
	return !errors.Is(err, fs.ErrNotExist)
}

// children returns the number of cgroups in one, cheaply: the kernel counts them as links. Zero: not known.
func (t Tree) children(p string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(t.dir, p), &st); err != nil {
		return 0
	}
	return uint64(st.Nlink) //nolint:unconvert // Nlink is narrower on arm64
}

// step says how a walk goes on after a directory.
type step int

const (
	into step = iota
	over
	stop
)

// walk visits the directories below p, level by level, to a depth; those that cannot be read are passed over.
func (t Tree) walk(p string, depth int, visit func(string) step) error {
	visited := 0
	level := []string{p}
	for ; depth > 0 && len(level) > 0; depth-- {
		var next []string
		for _, dir := range level {
			entries, err := os.ReadDir(filepath.Join(t.dir, dir))
			if err != nil {
				continue
			}
			for _, e := range entries {
				if !e.IsDir() {
					continue
				}
				if visited++; visited > maxVisited {
					return errTooMany
				}
				child := path.Join(dir, e.Name())
				switch visit(child) {
				case into:
					next = append(next, child)
				case over:
				case stop:
					return nil
				}
			}
		}
		level = next
	}
	return nil
}
