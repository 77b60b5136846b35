package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/pkg/store"
)

// Variables that flags fall back to.
const (
	envNode  = "NODE_NAME"
	envRedis = "PLIMSOLL_REDIS_URL"
	envSpace = "POD_NAMESPACE"
)

// options are what the command line says.
type options struct {
	kubeconfig string
	node       string
	namespace  string
	redis      string
	cgroupRoot string
	checkpoint string
	listen     string
	flush      time.Duration
	interval   time.Duration
	cpuBudget  string
	logLevel   slog.Level
	logFormat  string

	// budget is cpuBudget as a share of one core.
	budget float64
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file; in a pod leave it empty to use the service account")
	f.StringVar(&o.node, "node-name", os.Getenv(envNode), "name of the Node this agent runs on, whose pods it measures; in a pod set "+envNode+" from spec.nodeName")
	f.StringVar(&o.namespace, "namespace", os.Getenv(envSpace), "Plimsoll's own namespace, where this agent keeps its AgentStatus; in a pod set "+envSpace+" from metadata.namespace. Empty: it keeps none")
	f.StringVar(&o.redis, "redis", os.Getenv(envRedis), "Redis to write measurements to: redis://host:6379, rediss:// for TLS, several hosts for a cluster, "+
		"?master=NAME for Sentinels; better given in "+envRedis+" if it holds a password")
	f.StringVar(&o.cgroupRoot, "cgroup-root", "/sys/fs/cgroup", "where the host's cgroup file system is mounted; pods are found below it whatever the kubelet's cgroupRoot is")
	f.StringVar(&o.checkpoint, "checkpoint", "/var/lib/plimsoll/checkpoint", "file that carries what Redis does not have yet over a restart; empty: none")
	f.StringVar(&o.listen, "listen", "127.0.0.1:9435", "address and port to serve /metrics, /healthz, /readyz and /debug/containers on; 0 serves none")
	f.DurationVar(&o.flush, "flush", 15*time.Second, "time between two writes of a profile to Redis where its policy does not say, from 1s to 5m")
	f.DurationVar(&o.interval, "interval", time.Second, "time between two samples of a container where its policy does not say, from 200ms to 1m")
	f.StringVar(&o.cpuBudget, "cpu-budget", "2%", "share of one core the agent may use before it samples less often; 0% is no limit")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
}

// complete fills in what follows from the flags and refuses what makes no sense, naming the flag.
func (o *options) complete() error {
	switch {
	case o.node == "":
		return fmt.Errorf("--node-name is not set: give it, or %s, the name of the Node this runs on", envNode)
	case o.redis == "":
		return fmt.Errorf("--redis is not set: give it, or %s, such as redis://127.0.0.1:6379", envRedis)
	case o.flush < time.Second || o.flush > 5*time.Minute:
		return fmt.Errorf("--flush=%s: use 1s to 5m", o.flush)
	case o.interval < 200*time.Millisecond || o.interval > time.Minute:
		return fmt.Errorf("--interval=%s: use 200ms to 1m", o.interval)
	case o.logFormat != "json" && o.logFormat != "text":
		return fmt.Errorf("--log-format=%s: use json or text", o.logFormat)
	}
	if o.listen != "0" {
		if _, _, err := net.SplitHostPort(o.listen); err != nil {
			return fmt.Errorf("--listen=%s: use address:port, such as 127.0.0.1:9435, or 0 to serve nothing", o.listen)
		}
	}
	percent, ok := strings.CutSuffix(o.cpuBudget, "%")
	share, err := strconv.ParseFloat(percent, 64)
	if !ok || err != nil || !(share >= 0 && share <= 100) {
		return fmt.Errorf("--cpu-budget=%s: use a share of one core from 0%% to 100%%, such as 2%%", o.cpuBudget)
	}
	o.budget = share / 100
	if o.checkpoint != "" {
		if st, err := os.Stat(filepath.Dir(o.checkpoint)); err != nil || !st.IsDir() {
			return fmt.Errorf("--checkpoint=%s: its folder does not exist: make it, or give an empty value to do without", o.checkpoint)
		}
	}
	return nil
}

// openStore opens the store without connecting: Redis may be away.
func (o *options) openStore() (*store.Store, error) {
	s, err := store.Open(store.Config{URL: o.redis})
	if err != nil {
		return nil, fmt.Errorf("--redis (or %s): %w", envRedis, err)
	}
	return s, nil
}

func (o *options) openCgroups() (cgroup.FS, error) {
	f, err := cgroup.NewFS(o.cgroupRoot)
	if err != nil {
		return cgroup.FS{}, fmt.Errorf("--cgroup-root=%s: %w: give the directory where the host's /sys/fs/cgroup is mounted, readable for the agent", o.cgroupRoot, err)
	}
	return f, nil
}

func (o *options) logger() *slog.Logger {
	h := &slog.HandlerOptions{Level: o.logLevel}
	if o.logFormat == "text" {
		return slog.New(slog.NewTextHandler(os.Stderr, h))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, h))
}
