package main_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Wrong values end the agent with a message that names the flag and says what to do.
func TestBadFlags(t *testing.T) {
	good := []string{"--node-name", "n", "--redis", "redis://127.0.0.1:1", "--checkpoint", "", "--listen", "0", "--kubeconfig", api.Kubeconfig}
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tests := map[string]struct {
		args []string
		want []string
	}{
		"no node":             {[]string{"--node-name", ""}, []string{"--node-name", "NODE_NAME"}},
		"no redis":            {[]string{"--redis", ""}, []string{"--redis", "PLIMSOLL_REDIS_URL"}},
		"redis without host":  {[]string{"--redis", "127.0.0.1:6379"}, []string{"--redis", "redis://"}},
		"no kubeconfig":       {[]string{"--kubeconfig", filepath.Join(dir, "none")}, []string{"--kubeconfig", "none"}},
		"no cgroups":          {[]string{"--cgroup-root", dir}, []string{"--cgroup-root", "no cpu and memory controller", "/sys/fs/cgroup"}},
		"no cgroup root":      {[]string{"--cgroup-root", filepath.Join(dir, "none")}, []string{"--cgroup-root", "no such file"}},
		"checkpoint nowhere":  {[]string{"--checkpoint", filepath.Join(dir, "none", "file")}, []string{"--checkpoint", "folder does not exist"}},
		"interval":            {[]string{"--interval", "1ms"}, []string{"--interval", "200ms"}},
		"flush":               {[]string{"--flush", "1h"}, []string{"--flush", "5m"}},
		"budget no percent":   {[]string{"--cpu-budget", "0.02"}, []string{"--cpu-budget", "2%"}},
		"budget not a number": {[]string{"--cpu-budget", "NaN%"}, []string{"--cpu-budget", "2%"}},
		"listen without port": {[]string{"--listen", "localhost"}, []string{"--listen", "127.0.0.1:9435"}},
		"listen taken":        {[]string{"--listen", l.Addr().String()}, []string{"--listen", "in use", "another port"}},
		"log format":          {[]string{"--log-format", "xml"}, []string{"--log-format", "json or text"}},
		"unknown flag":        {[]string{"--verbose"}, []string{"--verbose"}},
		"an argument":         {[]string{"now"}, []string{"now"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), binary, append(append([]string{}, good...), tc.args...)...)
			cmd.Env = append(os.Environ(), "NODE_NAME=", "PLIMSOLL_REDIS_URL=")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("ended with %v:\n%s", err, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q does not say %q", out, want)
				}
			}
			if lines := strings.Count(strings.TrimSpace(string(out)), "\n"); lines > 0 {
				t.Errorf("more than one line:\n%s", out)
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{
		"--kubeconfig", "--node-name", "--redis", "--cgroup-root", "--checkpoint", "--listen", "--flush", "--interval", "--cpu-budget", "--version",
	} {
		if !strings.Contains(string(out), flag+" ") && !strings.Contains(string(out), flag+"[") {
			t.Errorf("--help does not explain %s", flag)
		}
	}
	out, err = exec.CommandContext(t.Context(), binary, "--version").Output()
	if err != nil || !strings.Contains(string(out), "agent version") {
		t.Errorf("--version says %q, %v", out, err)
	}
}
