// Command kernel runs tests on Debian's kernels with the cgroup v2 tree alone,
// in a guest, and captures the cgroup files that the readers' tests read.
//
//	kernel [-on 6.1,6.12] PACKAGE...         the tests of every real_test.go in the packages
//	kernel [-on 6.1,6.12] -capture FOLDER    the cgroup files, in FOLDER/RELEASE
//	kernel -on 6.12 -cluster                 a whole Kubernetes in the guest, with a pod resized in place; needs root
//
// By rule a test that needs a kernel's cgroups or BPF stands in a file called
// real_test.go; the tests of other files have nothing to gain from a guest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"plimsoll.dev/test/env/controlplane"
	"plimsoll.dev/test/kernel/guest"
)

// timeout bounds one guest's life, on a machine that is busy with other things.
const timeout = time.Hour

func main() {
	on := flag.String("on", "6.1,6.12", "the kernel `series`, separated by commas")
	capture := flag.String("capture", "", "capture cgroup files into the `folder`")
	cluster := flag.Bool("cluster", false, "run test/node's cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root, err := controlplane.Root()
	if err == nil {
		w := workshop{root: root, series: strings.Split(*on, ",")}
		switch {
		case *capture != "":
			err = w.capture(ctx, *capture)
		case *cluster:
			err = w.cluster(ctx)
		default:
			err = w.test(ctx, flag.Args())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// workshop builds what guests run, and runs them.
type workshop struct {
	root   string   // the repository
	series []string // of kernels
}

// test runs the packages' tests on every kernel.
func (w workshop) test(ctx context.Context, patterns []string) error {
	packages, err := list(ctx, w.root, patterns)
	if err != nil {
		return err
	}
	return w.boot(ctx, "", func(m *guest.Machine, built string) error {
		for i, p := range packages {
			binary := filepath.Join(built, "test")
			if err := w.build(ctx, "test", "-c", "-o", binary, p.path); err != nil {
				return err
			}
			dir := fmt.Sprintf("/tests/%d", i)
			if err := m.Add(dir+"/test", binary); err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Join(p.dir, "testdata")); err == nil {
				if err := m.Add(dir+"/testdata", filepath.Join(p.dir, "testdata")); err != nil {
					return err
				}
			}
			m.Run(guest.Command{
				Name: p.path, Dir: dir,
				Argv: []string{dir + "/test", "-test.timeout=15m", "-test.run=^(" + strings.Join(p.tests, "|") + ")$"},
			})
		}
		return nil
	})
}

// capture brings back the cgroup files of every kernel.
func (w workshop) capture(ctx context.Context, folder string) error {
	return w.boot(ctx, folder, func(m *guest.Machine, built string) error {
		program := filepath.Join(built, "capture")
		if err := w.build(ctx, "build", "-o", program, "./test/kernel/capture"); err != nil {
			return err
		}
		if err := m.Add("/capture", program); err != nil {
			return err
		}
		m.Run(guest.Command{Name: "capture", Dir: "/", Argv: []string{"/capture", guest.Out}})
		return nil
	})
}

// boot makes a guest, lets fill put into it what it is to run, and boots it
// with each kernel; what comes back is in results/RELEASE.
func (w workshop) boot(ctx context.Context, results string, fill func(*guest.Machine, string) error) (err error) {
	built, err := os.MkdirTemp("", "plimsoll-kernel-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer os.RemoveAll(built)
	first := filepath.Join(built, "init")
	if err := w.build(ctx, "build", "-o", first, "./test/kernel/guest/init"); err != nil {
		return err
	}
	m, err := guest.New(first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := fill(m, built); err != nil {
		return err
	}
	for _, series := range w.series {
		k, fetchErr := guest.Fetch(ctx, filepath.Join(w.root, ".cache", "kernels"), series)
		if fetchErr != nil {
			return errors.Join(err, fetchErr)
		}
		err = errors.Join(err, bootOne(ctx, m, k, results))
	}
	return err
}

func bootOne(ctx context.Context, m *guest.Machine, k guest.Kernel, results string) error {
	fmt.Printf("=== kernel %s\n", k.Release)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if results != "" {
		results = filepath.Join(results, k.Release)
	}
	failed, err := m.Boot(ctx, k, os.Stdout, results)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("failed on kernel %s: %s", k.Release, strings.Join(failed, ", "))
	}
	return err
}

// build runs the go command for the guest: static, and for its processor.
func (w workshop) build(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{args[0], "-trimpath"}, args[1:]...)...)
	cmd.Dir = w.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", args[len(args)-1], err, out)
	}
	return nil
}
