package env

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// StopServer ends the API server as a crash would: connections break, then are
// refused. etcd, kubelets and controllers go on.
func (a *API) StopServer() {
	a.t.Helper()
	if err := a.killProgram("kube-apiserver"); err != nil {
		a.t.Fatalf("%v", err)
	}
}

// StartServer starts the API server after StopServer, with the address,
// certificates, users and objects it had.
func (a *API) StartServer() {
	a.t.Helper()
	if err := a.env.ControlPlane.GetAPIServer().Start(); err != nil {
		a.t.Fatalf("starting the API server again: %v\n%s", err, a.Log("kube-apiserver"))
	}
}

// killProgram ends a program that envtest started, which gives no hold on the
// process, and waits until it is reaped.
func (a *API) killProgram(name string) error {
	pids, err := a.pidsOf(name)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("killing %s: %w", name, err)
		}
		err := poll(10*time.Second, func() error {
			if syscall.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d is still there", pid)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("ending %s: %w", name, err)
		}
	}
	return nil
}

// pidsOf finds the processes of one of this control plane's programs by the
// folder in their arguments.
func (a *API) pidsOf(name string) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, file := range files {
		cmdline, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		program, _, _ := bytes.Cut(cmdline, []byte{0})
		if filepath.Base(string(program)) != name || !bytes.Contains(cmdline, []byte("="+a.dir+"/")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, fmt.Errorf("reading a process id: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
