// Package controlplane builds the Kubernetes programs that tests run against
// from the module test/controlplane: one binary that is, by the name it is
// called, etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
// kubelet, kubectl or fakekubelet.
//
// It lands in .cache/controlplane/<hash> at the top of the repository, where
// the hash is over the module's go.mod, go.sum and sources, the Go version and
// the architecture, so it is built once and again only after a change.
package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Programs are the names of the links in the folder that Build returns.
var Programs = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "fakekubelet",
}

// Build returns the folder holding the programs and builds them first if they
// are not there. It reports on progress only if there is something to wait
// for. Builders of other processes wait for each other.
func Build(ctx context.Context, progress io.Writer) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "test", "controlplane")
	hash, err := sourceHash(module)
	if err != nil {
		return "", err
	}
	cache := filepath.Join(root, ".cache", "controlplane")
	dir := filepath.Join(cache, hash)
	if complete(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the control plane's cache: %w", err)
	}
	unlock, err := lock(filepath.Join(cache, "lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if complete(dir) {
		return dir, nil
	}
	if err := build(ctx, module, dir, progress); err != nil {
		return "", fmt.Errorf("%w\nto see it alone: go run ./test/env/cmd/controlplane", err)
	}
	return dir, removeOthers(cache, hash)
}

// Root returns the top of the repository that holds the working directory.
func Root() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module plimsoll.dev\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the repository: no folder above %s has the go.mod of plimsoll.dev", wd)
		}
	}
}

func complete(dir string) bool {
	for _, p := range Programs {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			return false
		}
	}
	return true
}

// sourceHash covers everything that decides what the binary does.
func sourceHash(module string) (string, error) {
	files := []string{filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")}
	err := filepath.WalkDir(module, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("listing the control plane's sources: %w", err)
	}
	slices.Sort(files)
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOARCH, ldflags())
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the control plane's sources: %w", err)
		}
		name, err := filepath.Rel(module, path)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, name, len(b))
		sum.Write(b)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// lock takes an exclusive lock that ends with the process, and says so when it
// has to wait.
func lock(path string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the control plane's lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Fprintln(progress, "control plane: another process is building it, waiting for that")
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// removeOthers deletes what earlier sources were built to; a running program
// keeps its file.
func removeOthers(cache, hash string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return fmt.Errorf("reading the control plane's cache: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && e.Name() != hash {
			if err := os.RemoveAll(filepath.Join(cache, e.Name())); err != nil {
				return fmt.Errorf("removing an old control plane: %w", err)
			}
		}
	}
	return nil
}
