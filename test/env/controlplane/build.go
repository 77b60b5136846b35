package controlplane

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// KubernetesVersion is what the programs are built from: k8s.io/kubernetes in
// the go.mod of test/controlplane.
const KubernetesVersion = "v1.37.2"

// ldflags gives the programs the version that Kubernetes' own build scripts
// would; without it they report none, which clients refuse.
func ldflags() string {
	const pkg = " -X k8s.io/component-base/version."
	number := strings.Split(strings.TrimPrefix(KubernetesVersion, "v"), ".")
	return "-s -w" + pkg + "gitVersion=" + KubernetesVersion + pkg + "gitMajor=" + number[0] + pkg + "gitMinor=" + number[1]
}

// build compiles the binary beside dir and moves the finished folder there, so
// that dir is never seen half done.
func build(ctx context.Context, module, dir string, progress io.Writer) error {
	start := time.Now()
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "building-")
	if err != nil {
		return fmt.Errorf("making a folder for the control plane: %w", err)
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintln(progress, "control plane: building Kubernetes "+KubernetesVersion+" from source; "+
		"6 to 9 minutes on 2 cores the first time, half a minute with a warm build cache")
	total := countPackages(ctx, module)

	const binary = "hyperkube"
	cmd := goCommand(ctx, module, "build", "-v", "-trimpath", "-ldflags", ldflags(), "-o", filepath.Join(tmp, binary), ".")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("building the control plane: %w", err)
	}
	complaints := follow(stderr, progress, total, start)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("building the control plane: %w\n%s", err, complaints)
	}
	for _, p := range Programs {
		if err := os.Symlink(binary, filepath.Join(tmp, p)); err != nil {
			return fmt.Errorf("linking %s: %w", p, err)
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil { // MkdirTemp's folders are private
		return fmt.Errorf("publishing the control plane: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing an incomplete control plane: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("publishing the control plane: %w", err)
	}
	fmt.Fprintf(progress, "control plane: built in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// goCommand runs go in the module, ended by the kernel when this process dies.
func goCommand(ctx context.Context, module string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// countPackages returns how many packages the binary has, or 0 if go cannot
// say; the build will then tell why.
func countPackages(ctx context.Context, module string) int {
	out, err := goCommand(ctx, module, "list", "-deps", ".").Output()
	if err != nil {
		return 0
	}
	return strings.Count(string(out), "\n")
}

// follow reads go's output to its end, reports every ten seconds how far it is
// and returns what was neither progress nor a download. Packages from the
// build cache are not named, so the count is a lower bound.
func follow(output io.Reader, progress io.Writer, total int, start time.Time) string {
	var (
		complaints []string
		downloads  int
		compiled   int
		reported   = start
	)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			downloads++
		case strings.ContainsAny(line, " \t:#"):
			complaints = append(complaints, line)
		default:
			compiled++
		}
		if time.Since(reported) >= 10*time.Second {
			reported = time.Now()
			fmt.Fprintf(progress, "control plane: %s, %d modules downloaded, %d of at most %d packages compiled\n",
				time.Since(start).Round(time.Second), downloads, compiled, total)
		}
	}
	return strings.Join(complaints, "\n")
}
