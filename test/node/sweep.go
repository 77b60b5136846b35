package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// exclusively runs f while no other program on this machine starts, removes or
// sweeps clusters.
func exclusively(f func() error) error {
	for {
		if err := os.MkdirAll(stateRoot, 0o755); err != nil {
			return fmt.Errorf("making the clusters' folder: %w", err)
		}
		lock, err := os.Open(stateRoot)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile, with the last cluster
		}
		if err != nil {
			return fmt.Errorf("opening the clusters' folder: %w", err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			lock.Close()
			return fmt.Errorf("locking the clusters' folder: %w", err)
		}
		held, err := lock.Stat()
		current, currentErr := os.Stat(stateRoot)
		if err != nil || currentErr != nil || !os.SameFile(held, current) {
			lock.Close()
			continue
		}
		defer lock.Close()
		return f()
	}
}

// clusters returns the ids of the clusters with a folder, and which of them
// run: a cluster's lock is held until its last process has ended.
func clusters() (running, dead []string, err error) {
	entries, err := os.ReadDir(stateRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("listing the clusters: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		lock, err := lockFile(filepath.Join(stateRoot, e.Name(), "lock"), false)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			running = append(running, e.Name())
			continue
		}
		if err == nil {
			lock.Close()
		}
		dead = append(dead, e.Name())
	}
	return running, dead, nil
}

// sweep removes what clusters whose starter was killed have left.
func sweep() error {
	_, dead, err := clusters()
	if err != nil {
		return err
	}
	for _, id := range dead {
		if err := remove(id); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the cgroups and the files of a cluster without processes.
func remove(id string) error {
	err := removeCgroups("plimsoll-" + id)
	if err := errors.Join(err, os.RemoveAll(filepath.Join(stateRoot, id))); err != nil {
		return fmt.Errorf("removing the cluster %s: %w", id, err)
	}
	return nil
}

// makeShared makes the folders that the sandbox covers with private ones, and
// notes which are new: the last cluster to go takes those along.
func makeShared() error {
	made := readMade()
	for _, dir := range sharedFolders {
		err := os.Mkdir(dir, 0o755)
		switch {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, fs.ErrExist):
			return fmt.Errorf("making the folder %s, which the kubelet or containerd expects: %w", dir, err)
		}
	}
	if err := os.WriteFile(madeFile(), []byte(strings.Join(made, "\n")), 0o644); err != nil {
		return fmt.Errorf("noting the folders made: %w", err)
	}
	return nil
}

// removeShared removes the folders that makeShared made, and stateRoot, once
// no cluster is left.
func removeShared() error {
	running, dead, err := clusters()
	if err != nil || len(running)+len(dead) > 0 {
		return err
	}
	for _, dir := range readMade() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing a folder made for the cluster: %w", err)
		}
	}
	if err := os.RemoveAll(stateRoot); err != nil {
		return fmt.Errorf("removing the clusters' folder: %w", err)
	}
	return nil
}

func madeFile() string { return filepath.Join(stateRoot, "made-folders") }

func readMade() []string {
	b, err := os.ReadFile(madeFile())
	if err != nil {
		return nil // nothing was made yet
	}
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(s string) bool { return s == "" })
}

// StopKept ends a running cluster by its id, or all that Keep was called on if
// id is empty, and returns the ids of those it ended.
func StopKept(id string) ([]string, error) {
	var ended []string
	err := exclusively(func() error {
		running, _, err := clusters()
		if err != nil {
			return err
		}
		for _, r := range running {
			_, err := os.Stat(filepath.Join(stateRoot, r, "kept"))
			if id != r && (id != "" || err != nil) {
				continue
			}
			if err := endInit(r); err != nil {
				return err
			}
			ended = append(ended, r)
		}
		return errors.Join(sweep(), removeShared())
	})
	return ended, err
}

// endInit kills the init process of a running cluster, and with it all others,
// and waits until they are gone.
func endInit(id string) error {
	dir := filepath.Join(stateRoot, id)
	b, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		return fmt.Errorf("reading the pid of the cluster %s: %w", id, err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		return fmt.Errorf("reading the pid of the cluster %s: %w", id, err)
	}
	// The cluster's lock is held, so its init runs and the pid is still its own.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("ending the cluster %s: %w", id, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		lock, err := lockFile(filepath.Join(dir, "lock"), false)
		if err == nil {
			return lock.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for the cluster %s to end: %w", id, err)
		}
	}
}
