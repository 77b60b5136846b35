package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/env/controlplane"
	"plimsoll.dev/test/node"
)

const (
	// Namespace holds the workloads.
	Namespace = "shop"
	// system is where Plimsoll is installed, as release below.
	system  = "plimsoll-system"
	release = "plimsoll"

	redisAddress  = "127.0.0.1:6379"
	webhookPort   = "9443"
	webhookHealth = "127.0.0.1:8081"
	agentAddress  = "127.0.0.1:9435"
)

// Scenario is a running cluster with Redis, the webhook and the agent.
type Scenario struct {
	Cluster *node.Cluster
	// Client reads and writes objects as the administrator.
	Client client.Client
	// Webhook and Agent are the programs under test.
	Webhook, Agent *node.Process
	// RedisURL is Redis's address from outside the cluster's network.
	RedisURL string

	bin      string // folder of the programs under test
	progress io.Writer
	uses     map[string]use // last reading of each container's CPU clock
}

// Start builds what is not built yet and starts everything up to a ready
// webhook and agent. After an error nothing remains but the logs of all
// programs, in .cache/e2e/logs until the next Start.
func Start(ctx context.Context, progress io.Writer) (_ *Scenario, err error) {
	s := &Scenario{progress: progress, uses: map[string]use{}}
	manifests, err := s.build(ctx)
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(s.bin, "logs")
	if err := os.RemoveAll(logs); err != nil {
		return nil, fmt.Errorf("removing old logs: %w", err)
	}
	binaries, err := node.Build(ctx, progress)
	if err != nil {
		return nil, err
	}
	s.Cluster, err = node.Start(ctx, node.Options{Binaries: binaries, Logs: logs, Progress: progress})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := s.connect(); err != nil {
		return nil, err
	}
	if err := s.install(ctx, manifests); err != nil {
		return nil, err
	}
	return s, s.startPrograms(ctx)
}

// Stop ends and removes everything.
func (s *Scenario) Stop() error { return s.Cluster.Stop() }

// build compiles the programs under test and renders the chart.
func (s *Scenario) build(ctx context.Context) (manifests string, err error) {
	root, err := controlplane.Root()
	if err != nil {
		return "", err
	}
	fmt.Fprintln(s.progress, "plimsoll: building webhook and agent; 1 to 2 minutes the first time")
	s.bin = filepath.Join(root, ".cache", "e2e")
	if err := os.MkdirAll(s.bin, 0o755); err != nil {
		return "", fmt.Errorf("making the folder for the programs under test: %w", err)
	}
	if _, err := output(ctx, root, "go", "build", "-trimpath", "-o", s.bin+"/", "./webhook", "./agent"); err != nil {
		return "", err
	}
	fmt.Fprintln(s.progress, "plimsoll: rendering the chart; building helm for it takes 1 to 2 minutes the first time")
	return output(ctx, root, "go", "tool", "-modfile=test/tools/go.mod", "helm", "template", release, "charts/plimsoll",
		"--namespace", system, "--include-crds",
		// The programs run as processes in the node's network, so nothing of
		// the chart that makes pods is wanted.
		"--set", "webhook.url=https://127.0.0.1:"+webhookPort+",preset=,redis.bundled=false,redis.url=redis://"+redisAddress,
		"--show-only", "templates/rbac.yaml", "--show-only", "templates/config.yaml",
		"--show-only", "templates/webhook-configuration.yaml")
}

// output runs a program of the build and returns what it printed.
func output(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running %s: %w\n%s", strings.Join(argv, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

func (s *Scenario) connect() (err error) {
	log.SetLogger(logr.Discard()) // the client has nothing to say that an error does not
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if s.Client, err = client.New(s.Cluster.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

// install applies the kinds, then the chart's objects.
func (s *Scenario) install(ctx context.Context, manifests string) error {
	root, err := controlplane.Root()
	if err != nil {
		return err
	}
	crds := filepath.Join(root, "charts", "plimsoll", "crds")
	if _, err := s.Cluster.Kubectl(ctx, "apply", "--server-side", "-f", crds); err != nil {
		return err
	}
	if _, err := s.Cluster.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "-f", crds); err != nil {
		return err
	}
	if _, err := s.Cluster.Kubectl(ctx, "create", "namespace", system); err != nil {
		return err
	}
	return s.Apply(ctx, "chart", manifests)
}

// Apply applies YAML documents as the administrator; name is for its file.
func (s *Scenario) Apply(ctx context.Context, name, documents string) error {
	path := filepath.Join(s.Cluster.Dir(), name+".yaml")
	if err := os.WriteFile(path, []byte(documents), 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err := s.Cluster.Kubectl(ctx, "apply", "--server-side", "-f", path)
	return err
}

// ready polls a program's readiness, and gives up when it ends.
func (s *Scenario) ready(ctx context.Context, p *node.Process, url string) error {
	err := node.Poll(ctx, time.Minute, func() error {
		if err := p.Check(); err != nil {
			return node.Final(err)
		}
		resp, err := s.Cluster.HTTP().Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != 200 {
			err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for %s to be ready: %w\n%s", p.Name, err, p.Tail())
	}
	return nil
}
