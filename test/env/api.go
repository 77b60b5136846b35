package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"plimsoll.dev/test/env/controlplane"
)

// Options says what runs beside the API server and etcd; RBAC is always on.
// The ServiceAccount admission plugin is off, so pods need no token.
type Options struct {
	// ControllerManager runs kube-controller-manager: Deployments make pods,
	// garbage is collected, new nodes lose their not-ready taint.
	ControllerManager bool
	// Scheduler runs kube-scheduler; without it a pod runs where its
	// spec.nodeName says.
	Scheduler bool
	// Kubelets is the number of nodes, named node-0, node-1 and so on. Each is
	// the real kubelet over a container runtime kept in memory.
	Kubelets int
	// Node is what each of those nodes offers.
	Node Node
	// CRDs are files or folders of CustomResourceDefinitions to install beside
	// the chart's own, which are installed if the chart has any.
	CRDs []string
	// Webhooks are installed with certificates made for them; API.Webhooks
	// then says where to serve them from.
	Webhooks envtest.WebhookInstallOptions
	// APIServerFlags are more flags of kube-apiserver by name, without dashes.
	APIServerFlags map[string]string
	// Audit records who sent which request, for API.Audited.
	Audit bool
}

// Node is the size of a node; a zero field has its default.
type Node struct {
	CPUs    int // cores, default 8
	Memory  int // GiB, default 16
	MaxPods int // default 110
}

// API is a running Kubernetes control plane.
type API struct {
	// Config is a cluster administrator's, without a client-side rate limit.
	// Copy it before changing it.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig file for the same user.
	Kubeconfig string
	// Assets is the folder of the Kubernetes programs, kubectl among them.
	Assets string
	// Webhooks says where installed webhooks have to be served.
	Webhooks envtest.WebhookInstallOptions

	t     TB
	opts  Options
	dir   string // kubeconfigs, logs, kubelet state
	env   *envtest.Environment
	procs []*process
	nodes int // kubelets started so far
	logs  []*os.File
}

// StartAPI starts a control plane, building its programs first if they are
// missing, and waits until everything asked for is ready: an API server in
// about 5 s, nodes in a few more. It is stopped at the end of the test.
func StartAPI(t TB, o Options) *API {
	t.Helper()
	assets, err := controlplane.Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir, remove, err := tempDir("api")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(remove)
	a := &API{t: t, opts: o, dir: dir, Assets: assets}
	t.Cleanup(a.Stop)
	if err := a.startServer(); err != nil {
		t.Fatalf("%v", err)
	}
	if err := a.startControllers(); err != nil {
		t.Fatalf("%v", err)
	}
	if o.Kubelets > 0 {
		a.StartKubelets(o.Kubelets)
	}
	return a
}

// Stop ends the control plane as a crash of everything would, since none of it
// is kept. It runs at the end of the test by itself, and a second call does
// nothing.
func (a *API) Stop() {
	for _, p := range a.procs {
		p.kill()
	}
	a.procs = nil
	if a.env != nil {
		// In order, the API server would wait for its clients' watches.
		if err := errors.Join(a.killProgram("kube-apiserver"), a.killProgram("etcd")); err != nil {
			a.t.Logf("%v", err)
		}
		if err := a.env.Stop(); err != nil {
			a.t.Logf("stopping the API server: %v", err)
		}
		a.env = nil
	}
	for _, f := range a.logs {
		f.Close()
	}
	a.logs = nil
}

func (a *API) startServer() error {
	crds, err := a.crds()
	if err != nil {
		return err
	}
	// The programs end by themselves when the process named here is gone;
	// envtest gives no hold on how it starts them.
	if err := os.Setenv("CONTROLPLANE_PARENT", strconv.Itoa(os.Getpid())); err != nil {
		return fmt.Errorf("setting CONTROLPLANE_PARENT: %w", err)
	}
	existing := false
	a.env = &envtest.Environment{
		UseExistingCluster:       &existing, // whatever the environment says
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true},
		WebhookInstallOptions:    a.opts.Webhooks,
		ControlPlaneStartTimeout: 60 * time.Second,
		ControlPlaneStopTimeout:  20 * time.Second,
	}
	server := a.env.ControlPlane.GetAPIServer()
	// Paths set here win over those of KUBEBUILDER_ASSETS.
	a.env.ControlPlane.KubectlPath = filepath.Join(a.Assets, "kubectl")
	a.env.ControlPlane.Etcd = &envtest.Etcd{Path: filepath.Join(a.Assets, "etcd"), DataDir: filepath.Join(a.dir, "etcd")}
	server.Path = filepath.Join(a.Assets, "kube-apiserver")
	server.CertDir = filepath.Join(a.dir, "kube-apiserver")
	for _, dir := range []string{a.env.ControlPlane.Etcd.DataDir, server.CertDir} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("making a folder for the control plane: %w", err)
		}
	}
	flags := server.Configure().
		// Without these two it needs a default route, and keeps a
		// kubernetes Service nobody here uses up to date.
		Set("advertise-address", "127.0.0.1").
		Set("endpoint-reconciler-type", "none")
	for name, value := range a.opts.APIServerFlags {
		flags.Set(name, value)
	}
	if a.opts.Audit {
		if err := a.configureAudit(flags); err != nil {
			return err
		}
	}
	if server.Err, err = a.openLog("kube-apiserver"); err != nil {
		return err
	}
	if a.env.ControlPlane.Etcd.Err, err = a.openLog("etcd"); err != nil {
		return err
	}
	if _, err := a.env.Start(); err != nil {
		return fmt.Errorf("starting the API server: %w\nkube-apiserver:\n%s\netcd:\n%s", err, a.Log("kube-apiserver"), a.Log("etcd"))
	}
	a.Webhooks = a.env.WebhookInstallOptions
	a.Config = rest.CopyConfig(a.env.Config)
	a.Config.QPS = -1
	a.Kubeconfig, err = a.writeKubeconfig("admin", a.env.KubeConfig)
	return err
}

// crds returns the paths to install: the chart's, if it has any, and the
// caller's.
func (a *API) crds() ([]string, error) {
	root, err := controlplane.Root()
	if err != nil {
		return nil, err
	}
	chart := filepath.Join(root, "charts", "plimsoll", "crds")
	switch _, err := os.Stat(chart); {
	case err == nil:
		return append([]string{chart}, a.opts.CRDs...), nil
	case errors.Is(err, fs.ErrNotExist):
		return a.opts.CRDs, nil
	default:
		return nil, fmt.Errorf("looking for the chart's CRDs: %w", err)
	}
}

func (a *API) openLog(name string) (*os.File, error) {
	f, err := os.Create(filepath.Join(a.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("making a log: %w", err)
	}
	a.logs = append(a.logs, f)
	return f, nil
}

// Log returns the end of what one of the programs printed, by its name.
func (a *API) Log(program string) string {
	return tailOf(filepath.Join(a.dir, program+".log"))
}

func (a *API) client() (*kubernetes.Clientset, error) {
	cs, err := kubernetes.NewForConfig(a.Config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return cs, nil
}
