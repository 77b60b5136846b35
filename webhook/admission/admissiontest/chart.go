// Package admissiontest installs the chart's own webhook configurations in a
// test's API server, so that tests run against what is shipped.
package admissiontest

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"plimsoll.dev/certs"
)

// Namespace is the release's namespace in rendered charts.
const Namespace = "plimsoll-system"

// Configurations are the chart's two webhook configurations.
type Configurations struct {
	Mutating   *admissionregistrationv1.MutatingWebhookConfiguration
	Validating *admissionregistrationv1.ValidatingWebhookConfiguration
}

// Render renders the chart's webhook configurations under the name of a
// release, with helm's --set arguments.
func Render(t testing.TB, release string, set ...string) Configurations {
	t.Helper()
	out := Template(t, release, "webhook-configuration.yaml", set...)
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	var c Configurations
	if err := d.Decode(&c.Mutating); err != nil {
		t.Fatalf("reading the rendered chart: %v", err)
	}
	if err := d.Decode(&c.Validating); err != nil {
		t.Fatalf("reading the rendered chart: %v", err)
	}
	return c
}

// Template renders one template of the chart.
func Template(t testing.TB, release, template string, set ...string) []byte {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"tool", "-modfile=test/tools/go.mod", "helm", "template", release, "charts/plimsoll",
		"--namespace", Namespace, "--show-only", "templates/" + template}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("rendering the chart: %v\n%s", err, stderr.String())
	}
	return out
}

// moduleRoot finds the module that the test's folder belongs to.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "charts", "plimsoll", "Chart.yaml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("charts/plimsoll is in no folder above the test's")
		}
	}
	return "", fmt.Errorf("finding the module: %w", err)
}

// URL are the --set arguments for a webhook outside the cluster; an empty ca is
// left for the webhook to publish.
func URL(url string, ca []byte) []string {
	set := []string{"webhook.url=" + url}
	if len(ca) > 0 {
		set = append(set, "webhook.caBundle="+string(ca))
	}
	return set
}

// Install creates the configurations; they are removed with the test.
func (c Configurations) Install(t testing.TB, cs kubernetes.Interface) {
	t.Helper()
	api := cs.AdmissionregistrationV1()
	if _, err := api.MutatingWebhookConfigurations().Create(t.Context(), c.Mutating, metav1.CreateOptions{}); err != nil {
		t.Fatalf("installing the mutating webhooks: %v", err)
	}
	if _, err := api.ValidatingWebhookConfigurations().Create(t.Context(), c.Validating, metav1.CreateOptions{}); err != nil {
		t.Fatalf("installing the validating webhook: %v", err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = api.MutatingWebhookConfigurations().Delete(ctx, c.Mutating.Name, metav1.DeleteOptions{})
		_ = api.ValidatingWebhookConfigurations().Delete(ctx, c.Validating.Name, metav1.DeleteOptions{})
	})
}

// Certificate returns a serving certificate for 127.0.0.1 and the authority to
// trust, valid for an hour.
func Certificate(t testing.TB) (leaf certs.Pair, ca []byte) {
	t.Helper()
	now := time.Now()
	authority, err := certs.NewAuthority(now.Add(-time.Minute), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err = authority.Issue([]string{"127.0.0.1"}, now.Add(-time.Minute), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return leaf, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Cert.Raw})
}

// Wait polls until f returns nil, or fails the test with its last error.
func Wait(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	err := f()
	for ; err != nil && time.Now().Before(deadline); err = f() {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("waiting for %s: %w", what, err))
	}
}
