package node

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// CgroupRoot is where a Linux system mounts its cgroup hierarchies.
const CgroupRoot = "/sys/fs/cgroup"

// hierarchy is one mounted cgroup hierarchy of the host.
type hierarchy struct {
	mount   string
	v2      bool
	options []string // v1: the controllers
}

// hierarchies returns every cgroup hierarchy below CgroupRoot: one on a
// cgroup v2 host, one for each controller on v1, and both kinds on a hybrid.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	defer f.Close()
	var found []hierarchy
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 98:0 / /mount/point options - type source super,options
		fields, super, ok := strings.Cut(lines.Text(), " - ")
		before, after := strings.Fields(fields), strings.Fields(super)
		if !ok || len(before) < 5 || len(after) < 3 || !strings.HasPrefix(before[4], CgroupRoot) {
			continue
		}
		if after[0] == "cgroup" || after[0] == "cgroup2" {
			found = append(found, hierarchy{
				mount: before[4], v2: after[0] == "cgroup2", options: strings.Split(after[2], ","),
			})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted below %s: a container needs its host's, as with --privileged", CgroupRoot)
	}
	return found, nil
}

// unified reports whether the host's controllers are in the cgroup v2 tree.
func unified(hs []hierarchy) bool {
	return !slices.ContainsFunc(hs, func(h hierarchy) bool { return !h.v2 })
}

// makeCgroups makes the cluster's top cgroup in every hierarchy, as the
// kubelet expects it.
func makeCgroups(name string) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if unified(hs) {
			if err := enableControllers(h.mount); err != nil {
				return err
			}
		}
		dir := filepath.Join(h.mount, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making a cgroup: %w", err)
		}
		if err := favour(h, dir); err != nil {
			return err
		}
		if !h.v2 && slices.Contains(h.options, "cpuset") {
			// A v1 cpuset starts without any CPU or memory node.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := copyFile(filepath.Join(h.mount, file), filepath.Join(dir, file)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// favour gives the cluster's pods more weight than anything else on the
// machine, so that what a workload uses is what it was told to use, whatever
// else is being built or tested meanwhile.
func favour(h hierarchy, dir string) error {
	file, weight := "cpu.weight", "10000" // the most there is; 100 is usual
	if !h.v2 {
		file, weight = "cpu.shares", "102400" // as much more than the usual 1024
	}
	err := os.WriteFile(filepath.Join(dir, file), []byte(weight), 0o644)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil // a hierarchy without the controller
	}
	if err != nil {
		return fmt.Errorf("weighing the pods' CPU: %w", err)
	}
	return nil
}

// enableControllers hands the controllers that the kubelet needs to the
// children of the cgroup v2 root.
func enableControllers(root string) error {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the cgroup controllers: %w", err)
	}
	control := filepath.Join(root, "cgroup.subtree_control")
	enabled, err := os.ReadFile(control)
	if err != nil {
		return fmt.Errorf("reading the cgroup controllers: %w", err)
	}
	has := strings.Fields(string(enabled))
	for _, c := range strings.Fields(string(available)) {
		needed := slices.Contains([]string{"cpu", "cpuset", "memory", "pids", "io", "hugetlb"}, c)
		if !needed || slices.Contains(has, c) {
			continue
		}
		err := os.WriteFile(control, []byte("+"+c), 0o644)
		if errors.Is(err, syscall.EBUSY) {
			return fmt.Errorf("enabling the cgroup controller %s: processes are in %s itself; "+
				"in a container, move them first: mkdir %[2]s/init; xargs -n1 < %[2]s/cgroup.procs > %[2]s/init/cgroup.procs", c, root)
		}
		if err != nil {
			return fmt.Errorf("enabling the cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// copyFile writes the content of one cgroup file to another.
func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading a cgroup file: %w", err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		return fmt.Errorf("writing a cgroup file: %w", err)
	}
	return nil
}

// removeCgroups removes the cluster's cgroups from every hierarchy once their
// processes have ended.
func removeCgroups(name string) error {
	hs, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if err := removeTree(filepath.Join(h.mount, name)); err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes a cgroup and its descendants, deepest first. The kernel
// may call a cgroup busy for a moment after its last process has ended.
func removeTree(top string) error {
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var dirs []string
		walk := func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil // what has vanished meanwhile is what we want
		}
		if err = filepath.WalkDir(top, walk); err == nil && len(dirs) == 0 {
			return nil
		}
		for _, dir := range slices.Backward(dirs) {
			err = syscall.Rmdir(dir)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("removing the cgroup %s: %w", top, err)
}
