package cgrouptest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// work does a job and returns the exit code. Jobs, each after a line on standard input:
//
//	hog DURATION           runs one thread until it has used that much CPU time, however long that takes
//	eat BYTES              touches that much memory, says so, and holds it until the next line
//	read FILE              reads a file twice over, says so, and waits
//	walk DIR               reads every file below a directory, says so, and waits
//	child JOB…             runs a job in a process of its own, says how it ended, and waits
func work(job []string) int {
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return 3
	}
	hold := func() {
		fmt.Println("reached")
		_, _ = in.ReadString('\n')
	}
	var err error
	switch job[0] {
	case "hog":
		var d time.Duration
		if d, err = time.ParseDuration(job[1]); err == nil {
			hog(d)
			hold()
		}
	case "eat":
		var n int
		if n, err = strconv.Atoi(job[1]); err == nil {
			if _, err = eat(n); err == nil {
				hold()
			}
		}
	case "read":
		for range 2 {
			err = readFile(job[1])
		}
		hold()
	case "walk":
		err = filepath.WalkDir(job[1], func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			return readFile(path)
		})
		hold()
	case "child":
		child(job[1:])
		hold()
	default:
		err = fmt.Errorf("no job %q", job[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

func hog(d time.Duration) {
	runtime.LockOSThread()
	// What the thread used before it came here is not in the cgroup's account.
	for before := threadTime(); threadTime()-before < d; {
		for x := range 100_000 {
			_ = x * x
		}
	}
}

func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // fails only for unknown kinds
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// eat maps memory itself: what Go's heap, or the race detector's shadow of it, would add is none of the job's. The
// kernel fills it in one go, since a fault for every page takes seconds where the processor is emulated.
func eat(n int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping memory: %w", err)
	}
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	return b, nil
}

func readFile(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("reading a file: %w", err)
	}
	defer unix.Close(fd)
	buf, err := eat(256 << 10)
	if err != nil {
		return err
	}
	defer unix.Munmap(buf) //nolint:errcheck // it was mapped just now
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return fmt.Errorf("reading a file: %w", err)
		}
		if n == 0 {
			return nil
		}
	}
}

// child runs a job in a process of its own, in the same cgroup.
func child(job []string) {
	cmd := exec.Command("/proc/self/exe")
	line := job[0]
	for _, a := range job[1:] {
		line += " " + a
	}
	cmd.Env = append(os.Environ(), workVariable+"="+line)
	stdin, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	_, _ = io.WriteString(stdin, "\n\n")
	_ = cmd.Wait()
}
