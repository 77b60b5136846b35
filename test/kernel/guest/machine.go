package guest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Machine is a guest in the making: its disk's files are gathered in a folder
// of this machine.
type Machine struct {
	// MiB is the guest's memory.
	MiB int
	// DiskMiB is the size of its disk; only what is written takes room.
	DiskMiB int
	// Modules are loaded before the first command, in this order: paths below
	// the kernel's lib/modules/RELEASE/kernel, without endings.
	Modules []string

	work, root string
	commands   []Command
}

// New makes a Machine whose first process is the program init, built from
// this package's own. Close it.
func New(init string) (*Machine, error) {
	// Not in /tmp, which may be a small tmpfs.
	work, err := os.MkdirTemp("/var/tmp", "plimsoll-guest-")
	if err != nil {
		return nil, fmt.Errorf("making the guest's folder: %w", err)
	}
	m := &Machine{MiB: 1024, DiskMiB: 2048, work: work, root: filepath.Join(work, "root")}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "out"} {
		if err := m.Mkdir(dir); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	if err := m.Add("/init", init); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Close removes the files of the guest.
func (m *Machine) Close() error {
	if err := os.RemoveAll(m.work); err != nil {
		return fmt.Errorf("removing the guest's folder: %w", err)
	}
	return nil
}

func (m *Machine) path(inGuest string) string { return filepath.Join(m.root, inGuest) }

// Add copies a file, or a folder with all it holds, to a path in the guest.
func (m *Machine) Add(inGuest, file string) error {
	if err := m.Mkdir(filepath.Dir(inGuest)); err != nil {
		return err
	}
	to := m.path(inGuest)
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("copying into the guest: %w", err)
	}
	if info.IsDir() {
		if err := os.CopyFS(to, os.DirFS(file)); err != nil {
			return fmt.Errorf("copying %s into the guest: %w", file, err)
		}
		return nil
	}
	in, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("copying into the guest: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("copying into the guest: %w", err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("copying %s into the guest: %w", file, err)
	}
	return nil
}

// Write makes a file in the guest.
func (m *Machine) Write(inGuest, content string) error {
	if err := m.Mkdir(filepath.Dir(inGuest)); err != nil {
		return err
	}
	if err := os.WriteFile(m.path(inGuest), []byte(content), 0o644); err != nil {
		return fmt.Errorf("writing into the guest: %w", err)
	}
	return nil
}

// Mkdir makes a folder in the guest.
func (m *Machine) Mkdir(inGuest string) error {
	if err := os.MkdirAll(m.path(inGuest), 0o755); err != nil {
		return fmt.Errorf("making the guest's folders: %w", err)
	}
	return nil
}

// Run adds a command to those that the guest runs, one after the other.
func (m *Machine) Run(c Command) { m.commands = append(m.commands, c) }

// Boot starts the guest with a kernel, writes what its console says to console
// and waits for the last command. It returns the names of the commands that
// failed; what they left in Out is in the folder results, if that is not
// empty. An error means that the guest did not get to its end.
func (m *Machine) Boot(ctx context.Context, k Kernel, console io.Writer, results string) (failed []string, err error) {
	b, err := json.Marshal(m.commands)
	if err != nil {
		return nil, fmt.Errorf("encoding the guest's commands: %w", err)
	}
	if err := m.Write(Commands, string(b)); err != nil {
		return nil, err
	}
	if err := m.addModules(ctx, k); err != nil {
		return nil, err
	}
	disk, returned := filepath.Join(m.work, "disk"), filepath.Join(m.work, "returned")
	os.Remove(disk) // of the boot before, if any
	size := fmt.Sprintf("%dM", m.DiskMiB)
	if _, err := output(ctx, "", "/sbin/mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", m.root, disk, size); err != nil {
		return nil, err
	}
	const qemu = "qemu-system-x86_64"
	if _, err := exec.LookPath(qemu); err != nil {
		return nil, errors.New(qemu + " is missing: install Debian's package qemu-system-x86")
	}
	cmd := exec.CommandContext(ctx, qemu,
		// One processor: with several, the emulation crashes on BPF programs now and then.
		// Emulated, the string instructions for bytes take a step for every byte;
		// without them the kernel clears and copies pages by words.
		"-accel", "tcg", "-cpu", "max,erms=off,fsrm=off", "-M", "q35", "-smp", "1", "-m", fmt.Sprint(m.MiB),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "stdio", "-serial", "file:"+returned,
		"-drive", "file="+disk+",if=none,id=disk,format=raw,cache=unsafe", "-device", "nvme,drive=disk,serial=disk",
		"-kernel", filepath.Join(k.dir, "boot", "vmlinuz-"+k.Release),
		"-append", "console=ttyS0 quiet panic=-1 nokaslr mitigations=off root=/dev/nvme0n1 rw init=/init")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaint strings.Builder
	cmd.Stdout, cmd.Stderr = console, &complaint
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("running a guest with kernel %s: %w %s", k.Release, err, complaint.String())
	}
	return collect(returned, results)
}

// addModules replaces the modules of another kernel by this one's.
func (m *Machine) addModules(ctx context.Context, k Kernel) error {
	if err := os.RemoveAll(m.path("modules")); err != nil {
		return fmt.Errorf("removing another kernel's modules: %w", err)
	}
	for i, name := range m.Modules {
		// Debian compresses modules in some releases and not in others.
		from := filepath.Join(k.dir, "lib", "modules", k.Release, "kernel", name+".ko")
		to := m.path(fmt.Sprintf("modules/%02d-%s.ko", i, filepath.Base(name)))
		if _, err := os.Stat(from); err == nil {
			if err := m.Add(strings.TrimPrefix(to, m.root), from); err != nil {
				return err
			}
			continue
		}
		module, err := output(ctx, "", "xz", "-dc", from+".xz")
		if err != nil {
			return err
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(module), 0o644)); err != nil {
			return fmt.Errorf("writing a kernel module: %w", err)
		}
	}
	return nil
}

// collect reads the archive that the guest wrote before it ended.
func collect(archive, results string) (failed []string, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("reading what the guest returned: %w", err)
	}
	defer f.Close()
	seen := false
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) && seen {
			return failed, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the guest ended before its commands did; see its console's last lines")
		}
		if err != nil {
			return nil, fmt.Errorf("reading what the guest returned: %w", err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("reading what the guest returned: %w", err)
		}
		if h.Name == Status {
			seen = true
			failed = strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
			if len(content) == 0 {
				failed = nil
			}
			continue
		}
		if results == "" || h.Typeflag != tar.TypeReg {
			continue
		}
		if !filepath.IsLocal(h.Name) {
			return nil, fmt.Errorf("the guest returned a file named %q", h.Name)
		}
		to := filepath.Join(results, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, content, 0o644)); err != nil {
			return nil, fmt.Errorf("keeping what the guest returned: %w", err)
		}
	}
}
