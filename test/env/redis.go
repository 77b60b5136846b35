package env

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// RedisOptions says how a Redis server runs; the zero value is an empty server
// that needs no password, saves nothing and evicts nothing.
type RedisOptions struct {
	// MaxMemory is Redis's maxmemory, as "8mb"; empty means no limit. The
	// eviction policy is noeviction: a full server refuses writes.
	MaxMemory string
	// Password is required of every client if not empty.
	Password string
	// Persist keeps the data in an append-only file, so that it outlives
	// Restart and Kill.
	Persist bool
	// Args are more arguments of redis-server, such as "--hz", "100".
	Args []string
}

// Redis is one redis-server on 127.0.0.1; its methods are not for use by two
// goroutines at once.
type Redis struct {
	t    TB
	port int
	dir  string
	opts RedisOptions
	args []string // cluster or replica settings
	bin  string
	proc *process
}

// StartRedis starts a redis-server on a free port and stops it at the end of
// the test. It fails the test if redis-server is not installed.
func StartRedis(t TB, o RedisOptions) *Redis {
	t.Helper()
	return startRedis(t, o)
}

// StartRedisReplica starts a server that copies primary, and waits until it
// has caught up.
func StartRedisReplica(t TB, primary *Redis) *Redis {
	t.Helper()
	o := primary.opts
	args := []string{"--replicaof", "127.0.0.1 " + strconv.Itoa(primary.port)}
	if o.Password != "" {
		args = append(args, "--masterauth", o.Password)
	}
	r := startRedis(t, o, args...)
	r.waitFor("the first copy from "+primary.Addr(), "master_link_status:up", "INFO", "replication")
	return r
}

func startRedis(t TB, o RedisOptions, args ...string) *Redis {
	t.Helper()
	bin, err := redisServer()
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir, remove, err := tempDir("redis")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(remove)
	r := &Redis{t: t, dir: dir, opts: o, args: args, bin: bin}
	t.Cleanup(r.Kill)
	// The port is only known to be free once the server has bound it.
	for range 5 {
		r.port = freePort()
		if err = r.start(); err == nil {
			return r
		}
		r.Kill()
	}
	t.Fatalf("starting Redis: %v", err)
	return nil
}

// redisServer returns the path of redis-server or of Valkey's valkey-server.
func redisServer() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("redis-server is missing: apt-get install redis-server")
}

// freePort returns a port nobody listens on, below the range the kernel takes
// outgoing ports from, so that a stopped server can have it again.
func freePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
}

func (r *Redis) start() error {
	args := []string{
		"--port", strconv.Itoa(r.port), "--bind", "127.0.0.1", "--dir", r.dir,
		"--save", "", "--daemonize", "no", "--maxmemory-policy", "noeviction",
		// A primary would wait five seconds for more replicas.
		"--repl-diskless-sync-delay", "0",
	}
	if r.opts.Persist {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	if r.opts.MaxMemory != "" {
		args = append(args, "--maxmemory", r.opts.MaxMemory)
	}
	if r.opts.Password != "" {
		args = append(args, "--requirepass", r.opts.Password)
	}
	args = append(append(args, r.args...), r.opts.Args...)
	p, err := startProcess(r.dir, r.bin, args...)
	if err != nil {
		return err
	}
	r.proc = p
	return poll(20*time.Second, func() error {
		_, err := r.Do("PING")
		return err
	}, p)
}

// Addr returns the server's address, "127.0.0.1:port"; it stays the same over
// Stop and Start.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// Password returns the password clients must give, or the empty string.
func (r *Redis) Password() string { return r.opts.Password }

// Do runs one command over a connection of its own and returns the reply as
// text, an array one element a line and nil as the empty string.
func (r *Redis) Do(args ...string) (string, error) {
	return redisDo(r.Addr(), r.opts.Password, args...)
}

// Start starts a stopped server on its old port, with what it persisted.
func (r *Redis) Start() {
	r.t.Helper()
	if r.proc != nil && !r.proc.exited() {
		return
	}
	if err := r.start(); err != nil {
		r.t.Fatalf("starting Redis again on %s: %v", r.Addr(), err)
	}
}

// Stop ends the server in order; clients see connection refused.
func (r *Redis) Stop() {
	if r.proc != nil {
		_ = r.proc.signal(syscall.SIGCONT) // a paused server would not hear the request
		r.proc.stop(5 * time.Second)
	}
}

// Kill ends the server as a crash would.
func (r *Redis) Kill() {
	if r.proc != nil {
		r.proc.kill()
	}
}

// Restart stops and starts the server; without Persist it comes back empty.
func (r *Redis) Restart() {
	r.t.Helper()
	r.Stop()
	r.Start()
}

// RestartEmpty stops the server, removes what it persisted and starts it.
func (r *Redis) RestartEmpty() {
	r.t.Helper()
	r.Stop()
	for _, name := range []string{"appendonlydir", "appendonly.aof", "dump.rdb"} {
		if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
			r.t.Fatalf("emptying Redis: %v", err)
		}
	}
	r.Start()
}

// Pause freezes the server: connections stay open, nothing is answered.
func (r *Redis) Pause() {
	r.t.Helper()
	if err := r.proc.signal(syscall.SIGSTOP); err != nil {
		r.t.Fatalf("pausing Redis: %v", err)
	}
}

// Resume lets a paused server go on.
func (r *Redis) Resume() {
	r.t.Helper()
	if err := r.proc.signal(syscall.SIGCONT); err != nil {
		r.t.Fatalf("resuming Redis: %v", err)
	}
}

// Promote makes a replica a primary with the data it has, as a failover does.
func (r *Redis) Promote() {
	r.t.Helper()
	if _, err := r.Do("REPLICAOF", "NO", "ONE"); err != nil {
		r.t.Fatalf("promoting Redis %s: %v", r.Addr(), err)
	}
}

// waitFor polls a command until its reply contains want.
func (r *Redis) waitFor(what, want string, args ...string) {
	r.t.Helper()
	err := poll(30*time.Second, func() error {
		got, err := r.Do(args...)
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("%s says:\n%s", strings.Join(args, " "), got)
		}
		return err
	})
	if err != nil {
		r.t.Fatalf("waiting for %s at Redis %s: %v", what, r.Addr(), err)
	}
}
