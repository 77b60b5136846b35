package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"plimsoll.dev/test/env/controlplane"
)

// Binaries are the folders of programs that a cluster is made of.
type Binaries struct {
	ControlPlane string // etcd, kube-apiserver, ..., kubelet, kubectl
	Runtime      string // containerd, containerd-shim-runc-v2, ctr, runc
	CNI          string // bridge, host-local, ...
	Init         string // the sandbox's init program
	Workload     string // the program that the pods run
}

// runtimePrograms are the tools of test/runtime's go.mod; runc needs C, the
// others do without it.
var runtimePrograms = map[string]string{
	"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
	"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	"ctr":                     "github.com/containerd/containerd/v2/cmd/ctr",
	"runc":                    "github.com/opencontainers/runc",
}

// Build compiles what is not yet in the repository's .cache and says on
// progress what it waits for. A missing Debian package is an error that says
// how to install it.
func Build(ctx context.Context, progress io.Writer) (Binaries, error) {
	b := Binaries{CNI: "/usr/lib/cni"}
	if err := checkMachine(b.CNI); err != nil {
		return b, err
	}
	root, err := controlplane.Root()
	if err != nil {
		return b, err
	}
	if b.ControlPlane, err = controlplane.Build(ctx, progress); err != nil {
		return b, err
	}
	if b.Runtime, err = buildRuntime(ctx, root, progress); err != nil {
		return b, err
	}
	own := filepath.Join(root, ".cache", "node")
	for path, pkg := range map[*string]string{&b.Init: "test/node/init", &b.Workload: "test/workload"} {
		*path = filepath.Join(own, filepath.Base(pkg))
		if err := goBuild(ctx, root, false, "-o", *path, "./"+pkg); err != nil {
			return b, err
		}
	}
	return b, nil
}

// checkMachine names the first thing this machine lacks.
func checkMachine(cni string) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs namespaces, cgroups and mounts: run this as root")
	}
	for program, pkg := range map[string]string{
		"ip": "iproute2", "gcc": "gcc libc6-dev", "pkg-config": "pkg-config",
		filepath.Join(cni, "bridge"): "containernetworking-plugins",
	} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing (Debian package %s): run test/node/setup.sh as root", program, pkg)
		}
	}
	if err := exec.Command("pkg-config", "--exists", "libseccomp").Run(); err != nil {
		return errors.New("libseccomp is missing (Debian package libseccomp-dev): run test/node/setup.sh as root")
	}
	return nil
}

// buildRuntime builds containerd and runc into .cache/runtime/<hash of what
// they are built from> and returns that folder.
func buildRuntime(ctx context.Context, root string, progress io.Writer) (string, error) {
	module := filepath.Join(root, "test", "runtime")
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("reading the container runtime's module: %w", err)
		}
		sum.Write(b)
	}
	cache := filepath.Join(root, ".cache", "runtime")
	dir := filepath.Join(cache, hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("making the container runtime's cache: %w", err)
	}
	lock, err := lockFile(filepath.Join(cache, "lock"), true)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	start := time.Now()
	fmt.Fprintln(progress, "container runtime: building containerd and runc from source; 1 to 2 minutes on 2 cores the first time")
	tmp := filepath.Join(cache, "building")
	defer os.RemoveAll(tmp)
	for name, pkg := range runtimePrograms {
		cgo := name == "runc"
		args := []string{"-o", filepath.Join(tmp, name), "-ldflags", "-s -w"}
		if cgo {
			args = append(args, "-tags", "seccomp")
		}
		if err := goBuild(ctx, module, cgo, append(args, pkg)...); err != nil {
			return "", err
		}
		fmt.Fprintf(progress, "container runtime: %s is built, %s so far\n", name, time.Since(start).Round(time.Second))
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", fmt.Errorf("publishing the container runtime: %w", err)
	}
	return dir, nil
}

// goBuild runs go build in a module.
func goBuild(ctx context.Context, module string, cgo bool, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath"}, args...)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", args[len(args)-1], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// lockFile takes an exclusive lock that is held until every descriptor of the
// returned file is closed; without wait it fails at once if it is held.
func lockFile(path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}
