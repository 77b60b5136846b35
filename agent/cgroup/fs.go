// Package cgroup reads what the kernel says about a container's cgroup, on the v1, v2 and hybrid layouts, through
// descriptors kept open and buffers reused, so that one reading allocates nothing.
//
// A Reading is what the files say at one moment; a Sample is the difference of two Readings.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// Mode is how the node mounts its cgroup hierarchies.
type Mode string

const (
	// V1 is one hierarchy per controller, without a unified tree.
	V1 Mode = "v1"
	// V2 is the unified tree alone.
	V2 Mode = "v2"
	// Hybrid is one hierarchy per controller plus a unified tree, which may carry some controllers of its own.
	Hybrid Mode = "hybrid"
)

// ErrGone reports that a cgroup no longer exists; the kernel says so with ENOENT on open and ENODEV on read.
var ErrGone = errors.New("cgroup is gone")

// defaultDescriptors bounds the files kept open; readers beyond it open, read and close each time.
const defaultDescriptors = 16384

// FS is the node's cgroup file system; its zero value is not usable, use NewFS.
type FS struct {
	root string
	mode Mode

	// Directories of the hierarchies each group of files is read from. On v2 they are all the root.
	// Empty: the node has no such controller.
	cpu, cpuacct, memory, unified string
	cpuV2, memoryV2               bool

	descriptors *atomic.Int64
}

// NewFS opens the cgroup file system mounted at root (usually /sys/fs/cgroup), finding its layout from what is
// there; the error says which directory lacks what.
func NewFS(root string) (FS, error) {
	left := new(atomic.Int64)
	left.Store(defaultDescriptors)
	f := FS{root: root, descriptors: left}

	if _, err := os.ReadDir(root); err != nil {
		return FS{}, fmt.Errorf("reading the cgroup root: %w", err)
	}
	if controllers, err := readControllers(root); err == nil {
		f.mode, f.unified = V2, root
		return f.useUnified(controllers)
	}

	f.mode = V1
	f.cpu = firstDir(root, "cpu", "cpu,cpuacct", "cpuacct,cpu")
	f.cpuacct = firstDir(root, "cpuacct", "cpu,cpuacct", "cpuacct,cpu")
	f.memory = firstDir(root, "memory")
	if unified := firstDir(root, "unified"); unified != "" {
		if controllers, err := readControllers(unified); err == nil {
			f.mode, f.unified = Hybrid, unified
			return f.useUnified(controllers)
		}
	}
	return f.complete()
}

// useUnified takes from the unified tree the controllers which no v1 hierarchy has: a controller belongs to one
// hierarchy at a time (Documentation/admin-guide/cgroup-v2.rst, "Mounting").
func (f FS) useUnified(controllers []string) (FS, error) {
	if f.cpuacct == "" && slices.Contains(controllers, "cpu") {
		f.cpu, f.cpuacct, f.cpuV2 = f.unified, f.unified, true
	}
	if f.memory == "" && slices.Contains(controllers, "memory") {
		f.memory, f.memoryV2 = f.unified, true
	}
	return f.complete()
}

func (f FS) complete() (FS, error) {
	var missing []string
	if f.cpuacct == "" {
		missing = append(missing, "cpu")
	}
	if f.memory == "" {
		missing = append(missing, "memory")
	}
	if len(missing) > 0 {
		return FS{}, fmt.Errorf("no %s controller under %s", strings.Join(missing, " and "), f.root)
	}
	return f, nil
}

// Mode returns the layout that was found.
func (f FS) Mode() Mode { return f.mode }

// Root returns the directory the file system is mounted at.
func (f FS) Root() string { return f.root }

// Tree returns the directory of the hierarchy in which containers are searched: that of the memory controller.
func (f FS) Tree() string { return f.memory }

// LimitDescriptors sets how many files may be kept open by all readers together; beyond it a reader opens, reads
// and closes its files each time, which is slower but never fails for want of descriptors.
func (f FS) LimitDescriptors(n int) { f.descriptors.Store(int64(n)) }

func readControllers(dir string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("reading cgroup.controllers: %w", err)
	}
	return strings.Fields(string(b)), nil
}

func firstDir(root string, names ...string) string {
	for _, n := range names {
		dir := filepath.Join(root, n)
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return ""
}

// Exists reports whether the container's directory is still in the tree; an error other than absence counts as
// existing, since nothing is given up on doubt.
func (f FS) Exists(path string) bool {
	_, err := os.Stat(filepath.Join(f.memory, path))
	return !errors.Is(err, fs.ErrNotExist)
}
