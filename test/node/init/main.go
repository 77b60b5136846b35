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
	if err := cover(state); err != nil {
		return err
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

// tunables are what the kubelet sets for the whole machine, with the values it
// wants (kubelet/pkg/cm, setupKernelTunables); it writes none that is so already.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// cover shows the kubelet kernel tunables as it wants them, so that it leaves
// those of the machine alone.
func cover(state string) error {
	dir := filepath.Join(state, "private", "sysctl")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the kernel tunables: %w", err)
	}
	for name, value := range tunables {
		file := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return fmt.Errorf("making the kernel tunables: %w", err)
		}
		if err := syscall.Mount(file, "/proc/sys/"+name, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("covering the kernel tunable %s: %w", name, err)
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
