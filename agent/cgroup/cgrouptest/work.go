package cgrouptest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// work does a job and returns the exit code. Jobs, each after a line on standard input:
//
//	hog DURATION           runs one thread for that much wall time
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
			held := eat(n)
			hold()
			_ = held[len(held)-1]
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
	for end := time.Now().Add(d); time.Now().Before(end); {
		for x := range 100_000 {
			_ = x * x
		}
	}
}

func eat(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	return b
}

func readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading a file: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{f}, make([]byte, 1<<20))
	return err
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
