package env

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child that the kernel kills when this process dies.
type process struct {
	cmd  *exec.Cmd
	log  string        // file holding its output
	done chan struct{} // closed once it is reaped
}

// startProcess runs a program with its output appended to dir/<name>.log.
func startProcess(dir, path string, args ...string) (*process, error) {
	p := &process{
		cmd:  exec.Command(path, args...),
		log:  filepath.Join(dir, filepath.Base(path)+".log"),
		done: make(chan struct{}),
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", filepath.Base(path), err)
	}
	defer out.Close()
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A group of its own keeps the terminal's Ctrl-C for the test process,
	// which then ends its children in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that forks, so that thread
		// stays with the child until it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := p.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		_ = p.cmd.Wait() // ended tells how it ended
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	return p, nil
}

// exited reports whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ended returns nil while the process runs, then an error that says how it
// ended and shows the end of its output.
func (p *process) ended() error {
	if !p.exited() {
		return nil
	}
	return fmt.Errorf("%s ended (%s):\n%s", filepath.Base(p.cmd.Path), p.cmd.ProcessState, tailOf(p.log))
}

func (p *process) signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // the only failure is that it has ended
	<-p.done
}

// stop asks the process to end and kills it after grace.
func (p *process) stop(grace time.Duration) {
	_ = p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.kill()
	}
}

// tailOf returns the end of a log file, whole lines of at most 4 KiB.
func tailOf(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	const most = 4096
	text := string(b)
	if len(text) > most {
		text = text[len(text)-most:]
		_, text, _ = strings.Cut(text, "\n")
	}
	return strings.TrimSpace(text)
}

// poll calls f every few milliseconds until it returns nil; after the timeout,
// or at once if one of the processes it depends on has ended, it returns an
// error that says why.
func poll(timeout time.Duration, f func() error, needs ...*process) error {
	deadline := time.Now().Add(timeout)
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		for _, p := range needs {
			if err := p.ended(); err != nil {
				return err
			}
		}
		err := f()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", timeout, err)
		}
		time.Sleep(wait)
	}
}
