package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharedFolders are paths that kubelet, containerd's CNI library and the
// kubelet's log links have built in; the sandbox mounts private ones there.
var sharedFolders = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers"}

// sandbox is a network, mount and pid namespace held by one init process.
type sandbox struct {
	init   *exec.Cmd
	pidfd  int
	signal io.WriteCloser // its closing ends init
	done   chan struct{}  // closed once init, and so every process, has ended
}

// openSandbox starts the init program for the state folder. The lock is
// inherited, so that it is held as long as anything of the cluster runs.
func openSandbox(initProgram, state string, lock *os.File) (*sandbox, error) {
	cmd := exec.Command(initProgram, append([]string{state}, sharedFolders...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
	}
	cmd.ExtraFiles = []*os.File{lock}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("making init's pipe: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("making init's pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting init in new network, mount and pid namespaces (this needs root): %w", err)
	}
	s := &sandbox{init: cmd, signal: stdin, done: make(chan struct{}), pidfd: -1}
	said, readErr := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		_ = cmd.Wait() // init has no exit code of interest
		close(s.done)
	}()
	if said != "ready\n" {
		s.close()
		if readErr == nil {
			readErr = errors.New(strings.TrimSpace(said))
		}
		return nil, fmt.Errorf("preparing the namespaces: %w", readErr)
	}
	if s.pidfd, err = unix.PidfdOpen(cmd.Process.Pid, 0); err != nil {
		s.close()
		return nil, fmt.Errorf("opening init's pidfd: %w", err)
	}
	return s, nil
}

func (s *sandbox) pid() int { return s.init.Process.Pid }

// close ends every process of the sandbox and waits until the last is gone.
func (s *sandbox) close() {
	_ = s.init.Process.Kill() // the only failure is that it has ended
	<-s.done
	_ = s.signal.Close()
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd)
	}
}

// keep lets the sandbox outlive this process.
func (s *sandbox) keep() error {
	if _, err := io.WriteString(s.signal, "keep\n"); err != nil {
		return fmt.Errorf("telling init to stay: %w", err)
	}
	return nil
}

// within calls f on a thread that is inside the given kinds of namespaces.
// The thread ends with the call: it is never used for anything else.
func (s *sandbox) within(kinds int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread never ends and would stay inside; hold it while
			// another one does the work.
			defer runtime.UnlockOSThread()
			result <- s.within(kinds, f)
			return
		}
		result <- func() error {
			if kinds&unix.CLONE_NEWNS != 0 {
				// Threads share their root and working folder; a thread in
				// another mount namespace needs its own.
				if err := unix.Unshare(unix.CLONE_FS); err != nil {
					return fmt.Errorf("unsharing the file system state: %w", err)
				}
			}
			if err := unix.Setns(s.pidfd, kinds); err != nil {
				return fmt.Errorf("entering the cluster's namespaces: %w", err)
			}
			return f()
		}()
	}()
	return <-result
}

// start starts a command inside all namespaces of the sandbox.
func (s *sandbox) start(cmd *exec.Cmd) error {
	return s.within(unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID, cmd.Start)
}

// dial connects from inside the network namespace; the address must be an IP.
func (s *sandbox) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = s.within(unix.CLONE_NEWNET, func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}
