// Command init is the first process of a test cluster's namespaces: it makes
// the mounts private, reaps orphans, and ends, and with it everything in the
// pid namespace, when the program that started it goes away.
//
// Usage: init STATE-FOLDER SHARED-FOLDER...
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	if err := isolate(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	go reap()
	// Standard input is a pipe held open by the starter alone. Its end means
	// the starter is gone, unless it said before that the cluster shall stay.
	said, _ := bufio.NewReader(os.Stdin).ReadString('\n') // an end of file is the answer looked for
	if said == "keep\n" {
		select {}
	}
}

// isolate gives this mount namespace its own /proc and /run, and its own
// content for folders whose paths kubelet, containerd and CNI have built in,
// so that neither a real node on this machine nor the machine itself sees them.
func isolate(state string, shared []string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making the mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting /proc of the pid namespace: %w", err)
	}
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mounting a private /run: %w", err)
	}
	for _, dir := range shared {
		private := filepath.Join(state, "private", strings.ReplaceAll(dir, "/", "_"))
		if err := os.MkdirAll(private, 0o755); err != nil {
			return fmt.Errorf("making a private %s: %w", dir, err)
		}
		if err := syscall.Mount(private, dir, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting a private %s: %w", dir, err)
		}
	}
	return nil
}

// reap collects the children whose parents have ended; the kernel hands them
// to a namespace's first process.
func reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}
