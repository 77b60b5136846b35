package env

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// SentinelMaster is the name under which Sentinels know their primary.
const SentinelMaster = "plimsoll"

// Sentinel is one Redis Sentinel on 127.0.0.1.
type Sentinel struct {
	port int
	proc *process
}

// StartSentinel starts a Sentinel that alone decides when primary has failed
// (after one second) and promotes one of its replicas, and waits until it knows
// of that many replicas. It needs no password itself.
func StartSentinel(t TB, primary *Redis, replicas int) *Sentinel {
	t.Helper()
	dir, remove, err := tempDir("sentinel")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(remove)
	// A Sentinel keeps what it learns in its configuration file.
	config := filepath.Join(dir, "sentinel.conf")
	lines := []string{
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 1", SentinelMaster, primary.port),
		fmt.Sprintf("sentinel down-after-milliseconds %s 1000", SentinelMaster),
		fmt.Sprintf("sentinel failover-timeout %s 5000", SentinelMaster),
	}
	if primary.opts.Password != "" {
		lines = append(lines, fmt.Sprintf("sentinel auth-pass %s %s", SentinelMaster, primary.opts.Password))
	}
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatalf("configuring a Sentinel: %v", err)
	}
	s := &Sentinel{port: freePort()}
	s.proc, err = startProcess(dir, primary.bin, config, "--sentinel", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(s.proc.kill)
	err = poll(30*time.Second, func() error {
		text, err := redisDo(s.Addr(), "", "SENTINEL", "REPLICAS", SentinelMaster)
		if n := strings.Count(text, "\nrunid\n"); err == nil && n < replicas {
			err = fmt.Errorf("it knows of %d replicas", n)
		}
		return err
	}, s.proc)
	if err != nil {
		t.Fatalf("starting a Sentinel: %v", err)
	}
	return s
}

// Addr returns the Sentinel's address, "127.0.0.1:port".
func (s *Sentinel) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Primary returns the address of the primary as the Sentinel sees it.
func (s *Sentinel) Primary() (string, error) {
	text, err := redisDo(s.Addr(), "", "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
	if err != nil {
		return "", fmt.Errorf("asking a Sentinel for the primary: %w", err)
	}
	host, port, _ := strings.Cut(text, "\n")
	return net.JoinHostPort(host, port), nil
}
