package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NodeName is the name of the cluster's only node.
const NodeName = "node-1"

// WorkloadImage is the image of test/workload, present in every cluster.
const WorkloadImage = "localhost/plimsoll/workload:v1"

// stateRoot holds one folder for each cluster. Not in /tmp, which may be a
// small tmpfs; and short, for the names of sockets are.
const stateRoot = "/var/lib/plimsoll-node"

// Options says what a cluster has beyond the defaults.
type Options struct {
	// Binaries are what Build returned.
	Binaries Binaries
	// Images are imported besides WorkloadImage.
	Images []Image
	// Logs is a folder for the logs of all processes; it outlives the cluster.
	// Empty means a folder that goes with it.
	Logs string
	// Progress is told what is being waited for; nil means nobody is.
	Progress io.Writer
	// Patience is how many times longer than on an ordinary machine Start
	// waits for each step; 0 means 1.
	Patience int
}

// Cluster is a running one-node Kubernetes. Its methods may be called by
// several goroutines.
type Cluster struct {
	id, dir, logs string
	cgroup        string // the name of its top cgroup in every hierarchy
	unified       bool
	patience      time.Duration // a factor
	bin           Binaries
	lock          *os.File
	sandbox       *sandbox
	pki           *authority
	config        *rest.Config
	client        *kubernetes.Clientset

	mu       sync.Mutex
	daemons  []*Process // the cluster's own
	guests   []*Process // started by Run
	forwards []net.Listener
}

// Start removes what killed clusters left behind and starts a new one. After
// an error, or when ctx ends before it is up, nothing of it remains.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	c, err := claim(o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	start := time.Now()
	step := func(what string) {
		fmt.Fprintf(o.Progress, "cluster %s: %4.1f s  %s\n", c.id, time.Since(start).Seconds(), what)
	}
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	step("starting etcd, the API server and containerd")
	if err := both(
		func() error { return c.startAPIServer(ctx) },
		func() error {
			workload := Image{Name: WorkloadImage, Program: c.bin.Workload, Args: []string{"pause"}}
			return c.startContainerd(ctx, append([]Image{workload}, o.Images...))
		},
	); err != nil {
		return nil, err
	}
	step("starting the controller manager, the scheduler and the kubelet")
	if err := c.startControllers(); err != nil {
		return nil, err
	}
	if err := c.startKubelet(ctx); err != nil {
		return nil, err
	}
	step("the node takes pods")
	return c, nil
}

// both runs two functions at once and returns their errors.
func both(f, g func() error) error {
	result := make(chan error)
	go func() { result <- f() }()
	err := g()
	return errors.Join(err, <-result)
}

// claim sweeps and then makes the new cluster's folder and lock.
func claim(o Options) (*Cluster, error) {
	hs, err := hierarchies()
	if err != nil {
		return nil, err
	}
	id := make([]byte, 3)
	_, _ = rand.Read(id) // never fails
	c := &Cluster{id: hex.EncodeToString(id), bin: o.Binaries, unified: unified(hs), patience: time.Duration(max(o.Patience, 1))}
	c.dir = filepath.Join(stateRoot, c.id)
	c.cgroup = "plimsoll-" + c.id
	c.logs = o.Logs
	if c.logs == "" {
		c.logs = c.path("logs")
	}
	err = exclusively(func() error {
		if err := sweep(); err != nil {
			return err
		}
		for _, dir := range []string{c.path("pki"), c.logs} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("making the cluster's folder: %w", err)
			}
		}
		if c.lock, err = lockFile(c.path("lock"), false); err != nil {
			return err
		}
		return makeShared()
	})
	return c, err
}

// prepare makes what the programs run in and need.
func (c *Cluster) prepare(ctx context.Context) (err error) {
	if err := makeCgroups(c.cgroup); err != nil {
		return err
	}
	if c.sandbox, err = openSandbox(c.bin.Init, c.dir, c.lock); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("pid"), []byte(strconv.Itoa(c.sandbox.pid())), 0o644); err != nil {
		return fmt.Errorf("writing the cluster's pid file: %w", err)
	}
	if err := c.network(ctx); err != nil {
		return err
	}
	if err := c.credentials(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	return c.writeKubectl()
}

// connect makes the administrator's client.
func (c *Cluster) connect() (err error) {
	c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig(admin))
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	c.config.Dial = c.sandbox.dial
	c.config.QPS, c.config.Burst = -1, -1 // tests poll
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

// Stop ends every process of the cluster, those of Run in order and first, and
// removes its cgroups and files. It may be called again.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	guests := c.guests
	for _, l := range c.forwards {
		l.Close()
	}
	c.guests, c.daemons, c.forwards = nil, nil, nil
	c.mu.Unlock()
	for _, p := range slices.Backward(guests) {
		_ = p.Stop(5 * time.Second) // how it ended is in its log
	}
	if c.client != nil {
		if t, ok := c.client.Discovery().RESTClient().(*rest.RESTClient); ok && t.Client != nil {
			t.Client.CloseIdleConnections()
		}
	}
	if c.sandbox != nil {
		c.sandbox.close()
		c.sandbox = nil
	}
	if c.lock != nil {
		c.lock.Close()
		c.lock = nil
	}
	return exclusively(func() error { return errors.Join(remove(c.id), removeShared()) })
}

// Keep lets the cluster and the processes of Run outlive this program; Stop
// ends them all the same, and so does StopKept.
func (c *Cluster) Keep() error {
	if err := os.WriteFile(c.path("kept"), nil, 0o644); err != nil {
		return fmt.Errorf("marking the cluster as kept: %w", err)
	}
	return c.sandbox.keep()
}

// path returns a path below the cluster's folder.
func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

// Check returns an error, with the end of its log, if one of the cluster's own
// programs has ended.
func (c *Cluster) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.daemons {
		if err := p.Check(); err != nil {
			return err
		}
	}
	return nil
}

// HTTP returns a client that connects from inside the cluster's network
// namespace, so that 127.0.0.1 is the node's.
func (c *Cluster) HTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DialContext: c.sandbox.dial, DisableKeepAlives: true},
		Timeout:   10 * time.Second,
	}
}
