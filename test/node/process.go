package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a program running inside the cluster's namespaces.
type Process struct {
	// Name is what the caller calls it.
	Name string
	// Log is the file that holds its output.
	Log string

	cmd  *exec.Cmd
	done chan struct{} // closed once it is reaped; err is set before
	err  error
}

// run starts a program in the sandbox with its output appended to
// logs/<name>.log.
func (s *sandbox) run(logs, name string, env []string, argv ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(logs, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer out.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// A session of its own keeps the terminal's Ctrl-C away.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := s.start(p.cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process's id in the host's pid namespace.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Check returns an error with the end of the log if the process has ended.
func (p *Process) Check() error {
	select {
	case <-p.done:
		err := p.err
		if err == nil {
			err = errors.New("exit status 0")
		}
		return fmt.Errorf("%s ended: %w:\n%s", p.Name, err, p.Tail())
	default:
		return nil
	}
}

// Stop asks the process to end, kills it after grace and returns how it ended.
func (p *Process) Stop(grace time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the only failure is that it has ended
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
	return p.err
}

// Kill ends the process as a crash would and waits for it.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the only failure is that it has ended
	<-p.done
}

// Tail returns the last lines of the process's output, at most 4 KiB.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.Log)
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

// Poll calls f, at growing intervals of at most half a second, until it
// returns nil, and returns f's last error after the timeout or when ctx ends.
func Poll(ctx context.Context, timeout time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		if IsFinal(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// finalError says that waiting longer is in vain.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// Final marks an error that Poll returns at once.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &finalError{err}
}

// IsFinal reports whether Final marked the error.
func IsFinal(err error) bool {
	var final *finalError
	return errors.As(err, &final)
}
