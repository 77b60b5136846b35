package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/admission/admissiontest"
)

var world struct {
	binary  string
	api     *env.API
	redis   *env.Redis
	clients *kubernetes.Clientset
	client  client.Client
}

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) {
		dir, err := os.MkdirTemp("", "webhook-")
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		world.binary = filepath.Join(dir, "webhook")
		build := exec.Command("go", "build", "-trimpath", "-o", world.binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building the webhook: %v\n%s", err, out)
		}
		world.api = env.StartAPI(t, env.Options{})
		world.redis = env.StartRedis(t, env.RedisOptions{})
		scheme := runtime.NewScheme()
		utilruntime.Must(clientgoscheme.AddToScheme(scheme))
		utilruntime.Must(v1alpha1.AddToScheme(scheme))
		if world.clients, err = kubernetes.NewForConfig(world.api.Config); err != nil {
			t.Fatalf("%v", err)
		}
		if world.client, err = client.New(world.api.Config, client.Options{Scheme: scheme}); err != nil {
			t.Fatalf("%v", err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: admissiontest.Namespace}}
		if err := world.client.Create(t.Context(), ns); err != nil {
			t.Fatalf("%v", err)
		}
	})
}

// process is a running webhook.
type process struct {
	cmd             *exec.Cmd
	port            int
	health, metrics string
	mu              sync.Mutex
	log             bytes.Buffer
	done            chan struct{}
	err             error
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start runs the webhook with flags on ports of its own.
func start(t *testing.T, flags ...string) *process {
	t.Helper()
	p := &process{port: port(t), done: make(chan struct{})}
	p.health, p.metrics = fmt.Sprintf("127.0.0.1:%d", port(t)), fmt.Sprintf("127.0.0.1:%d", port(t))
	args := append([]string{
		"--kubeconfig", world.api.Kubeconfig, "--bind-address", "127.0.0.1", "--port", fmt.Sprint(p.port),
		"--health-addr", p.health, "--metrics-addr", p.metrics, "--log-format", "text", "--shutdown-delay", "0s",
	}, flags...)
	p.cmd = exec.Command(world.binary, args...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	// Whatever ends the test ends the webhook.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the webhook said:\n%s", p.output())
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) ended(t *testing.T) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(30 * time.Second):
		t.Fatal("the webhook did not end")
		return nil
	}
}

func (p *process) get(url string) (int, string) {
	r, err := http.Get("http://" + url)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(b)
}

func (p *process) ready(t *testing.T) {
	t.Helper()
	admissiontest.Wait(t, "the webhook to be ready", func() error {
		select {
		case <-p.done:
			t.Fatalf("the webhook ended: %v\n%s", p.err, p.output())
		default:
		}
		if code, body := p.get(p.health + "/readyz?verbose"); code != http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
}

func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// certDir returns a folder with a certificate for 127.0.0.1, and its authority.
func certDir(t *testing.T) (string, []byte) {
	t.Helper()
	leaf, ca := admissiontest.Certificate(t)
	dir := t.TempDir()
	for name, b := range map[string][]byte{"tls.crt": leaf.Cert, "tls.key": leaf.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, ca
}

func pod(name string, labels ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app.kubernetes.io/name": "web"}}}
	for i := 0; i+1 < len(labels); i += 2 {
		p.Labels[labels[i]] = labels[i+1]
	}
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "app"}}
	return p
}

func create(t *testing.T, p *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	err := world.client.Create(t.Context(), p)
	if err == nil {
		t.Cleanup(func() { _ = world.client.Delete(context.WithoutCancel(t.Context()), p, client.GracePeriodSeconds(0)) })
	}
	return p, err
}

func policyAll(t *testing.T) {
	t.Helper()
	p := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
	if err := world.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.client.Delete(context.WithoutCancel(t.Context()), p) })
}
