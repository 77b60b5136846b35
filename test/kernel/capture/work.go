package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// workArgument makes this program do a job instead, once it reads a line.
const workArgument = "work"

// worker is a process in a cgroup.
type worker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// start starts a job in a cgroup and waits until it says that it is done with
// it, or ends.
func (t *tree) start(path, job string) (*worker, error) {
	cmd := exec.Command("/proc/self/exe", workArgument, job)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a job: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting a job: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a job: %w", err)
	}
	w := &worker{cmd: cmd, stdin: stdin}
	for _, dir := range t.dirs {
		procs := filepath.Join(dir, path, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			return nil, errors.Join(fmt.Errorf("moving a job into its cgroup: %w", err), w.end())
		}
	}
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a job: %w", err), w.end())
	}
	_, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(fmt.Errorf("waiting for a job: %w", err), w.end())
	}
	return w, nil
}

// end lets the job end; that the kernel killed it is no error.
func (w *worker) end() error {
	_ = w.stdin.Close() // the only failure is that it has ended
	err := w.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() < 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("running a job: %w", err)
	}
	return nil
}

func (t *tree) run(path, job string) error {
	w, err := t.start(path, job)
	if err != nil {
		return err
	}
	return w.end()
}

// remove removes the cgroups, the innermost first. The kernel may call one
// busy for a moment after its last process has ended.
func (t *tree) remove() error {
	for _, path := range slices.Backward(t.made) {
		for _, dir := range t.dirs {
			err := os.Remove(filepath.Join(dir, path))
			for deadline := time.Now().Add(5 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); {
				time.Sleep(10 * time.Millisecond)
				err = os.Remove(filepath.Join(dir, path))
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("removing a cgroup: %w", err)
			}
		}
	}
	return nil
}

// work does a job once it reads a line, says when it is done and, with "hold",
// keeps what it has until standard input ends.
func work(job string) int {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return 3
	}
	kind, argument, _ := strings.Cut(job, " ")
	var err error
	switch kind {
	case "loop":
		loop(300 * time.Millisecond)
	case "read":
		err = readFile(argument, -1)
	case "reread":
		err = errors.Join(readFile(argument, 4<<20), readFile(argument, 4<<20))
	case "eat":
		err = fill(200 << 20)
	case "hold":
		err = errors.Join(fill(20<<20), mapFile(argument, 2<<20))
	default:
		err = fmt.Errorf("no job %q", job)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Println("done")
	if kind == "hold" {
		_, _ = in.ReadString('\n') // its end is what is waited for
	}
	return 0
}

func loop(d time.Duration) {
	used := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // fails only for unknown kinds
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for before := used(); used()-before < d; {
		for x := range 100_000 {
			_ = x * x
		}
	}
}

// readFile reads a file's first bytes, or all of it if n is negative.
func readFile(path string, n int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading a file: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for read := 0; n < 0 || read < n; {
		got, err := f.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a file: %w", err)
		}
		read += got
	}
	return nil
}

// mapFile maps the beginning of a file and reads every page.
func mapFile(path string, n int) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("mapping a file: %w", err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping a file: %w", err)
	}
	sum := byte(0)
	for i := 0; i < n; i += 4096 {
		sum += b[i]
	}
	runtime.KeepAlive(sum)
	return nil
}

// fill maps and writes some bytes.
func fill(n int) error {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("mapping memory: %w", err)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return nil
}

// bigFile writes a file of 100 MiB of which no page is cached.
func bigFile() (path string, err error) {
	f, err := os.CreateTemp("", "plimsoll-capture-")
	if err != nil {
		return "", fmt.Errorf("writing a file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	chunk := bytes.Repeat([]byte{7}, 1<<20)
	for range 100 {
		if _, err := f.Write(chunk); err != nil {
			return "", fmt.Errorf("writing a file: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return "", fmt.Errorf("writing a file: %w", err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return "", fmt.Errorf("dropping a file's cache: %w", err)
	}
	return f.Name(), nil
}
