package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plimsoll.dev/test/kernel/guest"
	"plimsoll.dev/test/node"
)

// cluster runs test/node's main test in the guest: a whole Kubernetes whose
// pods live in the cgroup v2 tree of a machine that is not ours.
func (w workshop) cluster(ctx context.Context) error {
	binaries, err := node.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	return w.boot(ctx, filepath.Join(w.root, ".cache", "kernels", "logs"), func(m *guest.Machine, built string) error {
		m.MiB, m.DiskMiB = 4096, 4096
		m.Modules = []string{"net/llc/llc", "net/802/stp", "net/bridge/bridge", "drivers/net/veth"}
		test := filepath.Join(built, "test")
		if err := w.build(ctx, "test", "-c", "-o", test, "./test/node"); err != nil {
			return err
		}
		for inGuest, file := range map[string]string{
			"/cluster/test":         test,
			"/cluster/controlplane": binaries.ControlPlane,
			"/cluster/init":         binaries.Init,
			"/cluster/workload":     binaries.Workload,
		} {
			if err := m.Add(inGuest, file); err != nil {
				return err
			}
		}
		if err := addPrograms(ctx, m, binaries); err != nil {
			return err
		}
		if err := addSystem(m); err != nil {
			return err
		}
		m.Run(guest.Command{
			Name: "test/node", Dir: "/cluster",
			Argv: []string{
				"/cluster/test", "-test.v", "-test.timeout=50m", "-test.run=^TestResizeInPlace$/^first$",
				"-test.artifacts", "-test.outputdir=" + guest.Out,
			},
			Env: []string{"PLIMSOLL_NODE_BINARIES=/cluster", fmt.Sprint("PLIMSOLL_NODE_PATIENCE=", patience)},
		})
		return nil
	})
}

// patience is how many times longer than usual a guest may take: a processor
// that is emulated on a busy machine is some twenty times slower.
const patience = 30

// addPrograms adds the programs that need libraries, with those.
func addPrograms(ctx context.Context, m *guest.Machine, b node.Binaries) error {
	programs := map[string]string{}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc"} {
		programs["/cluster/runtime/"+name] = filepath.Join(b.Runtime, name)
	}
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		programs["/cluster/cni/"+name] = filepath.Join(b.CNI, name)
	}
	for _, name := range []string{"ip", "mount", "umount", "sh"} {
		programs["/bin/"+name] = filepath.Join("/bin", name)
	}
	libraries := map[string]bool{}
	for inGuest, file := range programs {
		if err := m.Add(inGuest, file); err != nil {
			return err
		}
		needed, err := librariesOf(ctx, file)
		if err != nil {
			return err
		}
		for _, library := range needed {
			libraries[library] = true
		}
	}
	for library := range libraries {
		if err := m.Add(library, library); err != nil {
			return err
		}
	}
	return nil
}

// librariesOf returns the paths of the shared libraries that a program loads.
func librariesOf(ctx context.Context, program string) ([]string, error) {
	out, err := guest.Output(ctx, "ldd", program)
	if err != nil {
		if strings.Contains(err.Error(), "not a dynamic executable") {
			return nil, nil
		}
		return nil, err
	}
	// libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f16a80c6000)
	return slices.DeleteFunc(strings.Fields(out), func(s string) bool { return !filepath.IsAbs(s) }), nil
}

// addSystem adds the files and folders of a Debian that programs look for.
func addSystem(m *guest.Machine) error {
	files := map[string]string{
		"/etc/hosts":      "127.0.0.1 localhost\n",
		"/etc/passwd":     "root:x:0:0:root:/root:/bin/sh\n",
		"/etc/group":      "root:x:0:\n",
		"/etc/os-release": "ID=debian\n",
		"/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
		// Where systemd-resolved runs, this is a link into /run, which the cluster has its own of.
		"/etc/resolv.conf": "",
	}
	var err error
	for path, content := range files {
		err = errors.Join(err, m.Write(path, content))
	}
	for _, dir := range []string{"/root", "/var/lib", "/var/log", "/var/tmp"} {
		err = errors.Join(err, m.Mkdir(dir))
	}
	return err
}
