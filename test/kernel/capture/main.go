// Command capture makes a cgroup in which things happen and copies the files
// that the agent reads of it, as a small tree with the cgroup pod/web: the
// fixtures of the readers' tests. It works on cgroup v1, v2 and hybrid.
//
//	capture FOLDER
//
// In pod/web, with a quota of 0.2 cores and a limit of 64 MiB, a file of
// 100 MiB is read, a loop runs for 300 ms of CPU time and one process is
// OOM-killed; then two are killed in a cgroup inside it, which has a limit of
// 32 MiB; and at the end one holds 20 MiB in there and 2 MiB of the file, which
// is read again, its beginning twice.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == workArgument {
		os.Exit(work(os.Args[2]))
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: capture FOLDER")
		os.Exit(2)
	}
	if err := capture(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func capture(folder string) (err error) {
	t, err := newTree()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.remove()) }()
	web := filepath.Join(t.top, "web")
	if err := t.make(web, 64<<20); err != nil {
		return err
	}
	if err := t.quota(web, 20); err != nil {
		return err
	}
	file, err := bigFile()
	if err != nil {
		return err
	}
	defer os.Remove(file)
	for _, job := range []string{"read " + file, "loop", "eat"} {
		if err := t.run(web, job); err != nil {
			return err
		}
	}
	inner := filepath.Join(web, "inner")
	if err := t.make(inner, 32<<20); err != nil {
		return err
	}
	for range 2 {
		if err := t.run(inner, "eat"); err != nil {
			return err
		}
	}
	holder, err := t.start(inner, "hold "+file)
	if err != nil {
		return err
	}
	for _, job := range []string{"read " + file, "reread " + file} {
		if err := t.run(inner, job); err != nil {
			return errors.Join(err, holder.end())
		}
	}
	return errors.Join(t.copy(web, folder), holder.end())
}

// tree is the machine's cgroup file system.
type tree struct {
	v2   bool
	top  string            // our cgroup, relative to each root
	dirs map[string]string // root of each hierarchy by its name; v2: one without a name
	made []string          // cgroups, relative
}

const mounted = "/sys/fs/cgroup"

func newTree() (*tree, error) {
	t := &tree{top: fmt.Sprintf("plimsoll-capture-%d", os.Getpid()), dirs: map[string]string{}}
	if _, err := os.Stat(filepath.Join(mounted, "cgroup.controllers")); err == nil {
		t.v2, t.dirs[""] = true, mounted
	} else {
		for _, name := range []string{"cpu", "cpuacct", "memory", "unified"} {
			dir := filepath.Join(mounted, name)
			if _, err := os.Stat(dir); err == nil {
				t.dirs[name] = dir
			}
		}
	}
	if len(t.dirs) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted at %s", mounted)
	}
	return t, t.make(t.top, 0)
}

// make makes a cgroup; a limit of 0 bytes is none.
func (t *tree) make(path string, limit int) error {
	t.made = append(t.made, path)
	for _, dir := range t.dirs {
		if t.v2 {
			parent := filepath.Join(dir, filepath.Dir(path))
			if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpu +memory"), 0); err != nil {
				return fmt.Errorf("enabling the controllers: %w", err)
			}
		}
		if err := os.Mkdir(filepath.Join(dir, path), 0o755); err != nil {
			return fmt.Errorf("making a cgroup: %w", err)
		}
	}
	if limit == 0 {
		return nil
	}
	return t.set(path, "memory.limit_in_bytes", "memory.max", strconv.Itoa(limit))
}

// quota limits the CPU use to some milliseconds of every hundred.
func (t *tree) quota(path string, ms int) error {
	if t.v2 {
		return t.set(path, "", "cpu.max", fmt.Sprintf("%d 100000", ms*1000))
	}
	return t.set(path, "cpu.cfs_quota_us", "", strconv.Itoa(ms*1000))
}

// set writes to the file that goes by the one name on v1 and by the other on v2.
func (t *tree) set(path, v1, v2, value string) error {
	name := v1
	if t.v2 {
		name = v2
	}
	for _, dir := range t.dirs {
		file := filepath.Join(dir, path, name)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return fmt.Errorf("limiting a cgroup: %w", err)
		}
		return nil
	}
	return fmt.Errorf("no hierarchy has %s", name)
}

// files are what the agent reads, by the layout of the hierarchy.
var files = map[string][]string{
	"": {
		"cpu.max", "cpu.pressure", "cpu.stat", "memory.current", "memory.events", "memory.events.local",
		"memory.max", "memory.peak", "memory.pressure", "memory.stat",
	},
	"cpu":     {"cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.stat"},
	"cpuacct": {"cpuacct.usage"},
	"memory": {
		"memory.failcnt", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.stat",
		"memory.usage_in_bytes",
	},
	"unified": {"cpu.pressure", "cpu.stat", "memory.pressure"},
}

// copy copies the files of a cgroup to FOLDER/HIERARCHY/pod/web. What this
// kernel has no file for is left out.
func (t *tree) copy(path, folder string) error {
	for name, dir := range t.dirs {
		to := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Join(to, "pod", "web"), 0o755); err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
		if t.v2 || name == "unified" {
			if err := copyFile(filepath.Join(dir, "cgroup.controllers"), filepath.Join(to, "cgroup.controllers")); err != nil {
				return err
			}
		}
		for _, file := range files[name] {
			err := copyFile(filepath.Join(dir, path, file), filepath.Join(to, "pod", "web", file))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading a cgroup file: %w", err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		return fmt.Errorf("writing a fixture: %w", err)
	}
	return nil
}
