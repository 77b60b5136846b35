package guest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kernel is one of Debian's kernels, unpacked.
type Kernel struct {
	// Release is what uname -r says there.
	Release string
	dir     string // the unpacked package
}

// Fetch returns Debian's newest cloud kernel of a series, such as "6.12", from
// cache, a folder, or once from the package archives that this machine's apt
// knows.
func Fetch(ctx context.Context, cache, series string) (Kernel, error) {
	have, err := filepath.Glob(filepath.Join(cache, series+".*-cloud-amd64"))
	if err != nil {
		return Kernel{}, fmt.Errorf("looking for kernel %s: %w", series, err)
	}
	if len(have) > 0 {
		dir := slices.MaxFunc(have, byVersion)
		return Kernel{Release: filepath.Base(dir), dir: dir}, nil
	}
	name, err := newest(ctx, series)
	if err != nil {
		return Kernel{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Kernel{}, fmt.Errorf("making the kernels' cache: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return Kernel{}, fmt.Errorf("making the kernels' cache: %w", err)
	}
	defer os.RemoveAll(tmp)
	if _, err := output(ctx, tmp, "apt-get", "-q", "download", name); err != nil {
		return Kernel{}, err
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb")) // a fixed pattern is never malformed
	if len(debs) != 1 {
		return Kernel{}, fmt.Errorf("fetching the package %s brought the files %q, want one", name, debs)
	}
	if _, err := output(ctx, tmp, "dpkg-deb", "-x", debs[0], "tree"); err != nil {
		return Kernel{}, err
	}
	release := strings.TrimPrefix(name, "linux-image-")
	k := Kernel{Release: release, dir: filepath.Join(cache, release)}
	if err := os.Rename(filepath.Join(tmp, "tree"), k.dir); err != nil {
		return Kernel{}, fmt.Errorf("publishing kernel %s: %w", release, err)
	}
	return k, nil
}

// newest returns the name of the newest package of a series.
func newest(ctx context.Context, series string) (string, error) {
	find := func() ([]string, error) {
		pattern := "^linux-image-" + regexp.QuoteMeta(series) + `\..*-cloud-amd64$`
		out, err := output(ctx, "", "apt-cache", "search", "--names-only", pattern)
		if err != nil {
			return nil, err
		}
		var names []string
		for line := range strings.Lines(out) {
			names = append(names, strings.Fields(line)[0])
		}
		return names, nil
	}
	names, err := find()
	if err == nil && len(names) == 0 && os.Geteuid() == 0 {
		// A fresh machine has no package lists yet.
		if _, err := output(ctx, "", "apt-get", "-q", "update"); err != nil {
			return "", err
		}
		names, err = find()
	}
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("apt knows no cloud kernel %s: run apt-get update; "+
			"on a Debian that has no such kernel, add the one that has to /etc/apt/sources.list.d", series)
	}
	return slices.MaxFunc(names, byVersion), nil
}

var digits = regexp.MustCompile(`\d+`)

// byVersion compares names by the numbers in them.
func byVersion(a, b string) int {
	return slices.CompareFunc(digits.FindAllString(a, -1), digits.FindAllString(b, -1), func(a, b string) int {
		x, _ := strconv.Atoi(a) // digits alone
		y, _ := strconv.Atoi(b)
		return cmp.Compare(x, y)
	})
}

// Output runs a program of this machine and returns what it prints; an error
// carries what it complained about.
func Output(ctx context.Context, program string, args ...string) (string, error) {
	return output(ctx, "", program, args...)
}

// output is Output in a folder.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
