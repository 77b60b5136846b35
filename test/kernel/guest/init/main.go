// Command init is the first process of a guest: it mounts what a system has,
// runs the commands it was given, hands back what they left and ends the
// guest.
package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"plimsoll.dev/test/kernel/guest"
)

func main() {
	if err := serve(); err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // QEMU ends instead; if it fails, the kernel panics and QEMU ends too
}

func serve() error {
	if err := mount(); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := session(); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return err
	}
	b, err := os.ReadFile(guest.Commands)
	if err != nil {
		return fmt.Errorf("reading the commands: %w", err)
	}
	var commands []guest.Command
	if err := json.Unmarshal(b, &commands); err != nil {
		return fmt.Errorf("reading the commands: %w", err)
	}
	failed := ""
	for _, c := range commands {
		start := time.Now()
		if err := command(c); err != nil {
			failed += c.Name + "\n"
			fmt.Printf("FAIL\t%s\t%.1fs\t%v\n", c.Name, time.Since(start).Seconds(), err)
			continue
		}
		fmt.Printf("ok\t%s\t%.1fs\n", c.Name, time.Since(start).Seconds())
	}
	return handBack(failed)
}

func mount() error {
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "/dev", ""},
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"tmpfs", "/run", "mode=755"},
		{"tracefs", "/sys/kernel/tracing", ""},
		{"bpf", "/sys/fs/bpf", ""},
		// As systemd mounts it.
		{"cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"},
		{"tmpfs", "/dev/shm", ""},
		{"devpts", "/dev/pts", "ptmxmode=666"},
	} {
		// Those inside /dev are to be made, the others are there.
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return fmt.Errorf("making a mount point: %w", err)
		}
		if err := syscall.Mount(m.kind, m.at, m.kind, syscall.MS_NOSUID|syscall.MS_NODEV&^devices(m.kind), m.options); err != nil {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	return nil
}

// devices is the mount flag that a file system of device nodes goes without.
func devices(kind string) uintptr {
	if kind == "devtmpfs" || kind == "devpts" {
		return syscall.MS_NODEV
	}
	return 0
}

func loadModules() error {
	modules, err := filepath.Glob("/modules/*.ko") // sorted: their names begin with their places
	if err != nil {
		return fmt.Errorf("listing the modules: %w", err)
	}
	for _, path := range modules {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("loading a module: %w", err)
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("loading the module %s: %w", path, err)
		}
	}
	return nil
}

// session puts this process where a login leaves one on a machine with
// systemd: in a scope of its own, two levels below the root.
func session() error {
	const scope = "/sys/fs/cgroup/user.slice/session-1.scope"
	if err := os.MkdirAll(scope, 0o755); err != nil {
		return fmt.Errorf("making the session's cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(scope, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("entering the session's cgroup: %w", err)
	}
	return nil
}

// loopback brings up the loopback interface.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	return nil
}

// command runs one command while it collects orphans.
func command(c guest.Command) error {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp"}, c.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("waiting for it: %w", err)
		}
		if pid != cmd.Process.Pid {
			continue
		}
		if status.Signaled() {
			return fmt.Errorf("ended by %s", status.Signal())
		}
		if code := status.ExitStatus(); code != 0 {
			return fmt.Errorf("exit status %d", code)
		}
		return nil
	}
}

// handBack writes the status and the files of guest.Out to the second serial
// port, which is a file of the host's.
func handBack(failed string) error {
	port, err := os.OpenFile("/dev/ttyS1", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("opening the second serial port: %w", err)
	}
	defer port.Close()
	if err := makeRaw(int(port.Fd())); err != nil {
		return err
	}
	w := tar.NewWriter(port)
	if err := errors.Join(
		w.AddFS(os.DirFS(guest.Out)),
		w.WriteHeader(&tar.Header{Name: guest.Status, Mode: 0o644, Size: int64(len(failed))}),
	); err != nil {
		return fmt.Errorf("handing back the results: %w", err)
	}
	if _, err := strings.NewReader(failed).WriteTo(w); err != nil {
		return fmt.Errorf("handing back the results: %w", err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("handing back the results: %w", err)
	}
	if err := unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1); err != nil { // tcdrain
		return fmt.Errorf("handing back the results: %w", err)
	}
	return nil
}

// makeRaw keeps the terminal from changing bytes.
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("reading the serial port's settings: %w", err)
	}
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return fmt.Errorf("changing the serial port's settings: %w", err)
	}
	return nil
}
