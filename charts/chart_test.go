// Package charts_test holds the chart against a real API server.
package charts_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/test/env"
)

const namespace = "plimsoll-system"

var (
	api *env.API
	// rendered holds what the chart renders by name of the values.
	rendered = map[string][]*unstructured.Unstructured{}
)

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) {
		api = env.StartAPI(t, env.Options{})
		for name, set := range values {
			rendered[name] = render(t, set...)
		}
	})
}

// values are the main ways to install the chart.
var values = map[string][]string{
	"default":           nil,
	"without preset":    {"preset="},
	"cost":              {"preset=cost"},
	"safe":              {"preset=safe"},
	"own Redis":         {"redis.bundled=false", "redis.url=rediss://redis.example:6379"},
	"own Redis, secret": {"redis.bundled=false", "redis.urlSecret=redis"},
	"out of cluster":    {"webhook.url=https://127.0.0.1:9443"},
	"every list and map": {
		"imagePullSecrets[0].name=pull", "webhook.excludedNamespaces[0]=db", "webhook.extraArgs[0]=--log-level=debug",
		"agent.extraArgs[0]=--log-level=debug", "webhook.nodeSelector.disk=ssd", "webhook.tolerations[0].operator=Exists",
		"redis.storage.className=fast", "webhook.configurationAnnotations.a=b", "fullnameOverride=load-line",
	},
}

// TestEveryObjectIsAccepted sends all that the chart renders to the API server.
func TestEveryObjectIsAccepted(t *testing.T) {
	c, err := client.New(api.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	for name, objects := range rendered {
		t.Run(name, func(t *testing.T) {
			if len(objects) < 10 {
				t.Errorf("only %d objects", len(objects))
			}
			for _, o := range objects {
				// Validation is strict: a field that does not exist is refused.
				err := c.Create(t.Context(), o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
				if err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
		})
	}
}

// TestC87NothingDangerousIsGranted reads every rule of every role.
func TestC87NothingDangerousIsGranted(t *testing.T) {
	for name, objects := range rendered {
		t.Run(name, func(t *testing.T) {
			roles := 0
			for _, o := range objects {
				if o.GetKind() != "ClusterRole" && o.GetKind() != "Role" {
					continue
				}
				roles++
				var role rbacv1.ClusterRole // a Role has the same rules
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
					t.Fatal(err)
				}
				for _, rule := range role.Rules {
					if why := dangerous(o.GetKind(), rule); why != "" {
						t.Errorf("%s %s grants %s: %v", o.GetKind(), o.GetName(), why, rule)
					}
				}
			}
			if roles < 3 {
				t.Errorf("only %d roles are rendered", roles)
			}
		})
	}
}

func dangerous(kind string, r rbacv1.PolicyRule) string {
	for _, resource := range r.Resources {
		switch resource {
		case "*", "nodes/proxy", "pods/exec", "pods/attach", "pods/ephemeralcontainers", "serviceaccounts/token":
			return resource
		case "secrets":
			switch {
			case kind == "ClusterRole":
				return "secrets cluster-wide"
			case len(r.ResourceNames) == 0 && !slices.Equal(r.Verbs, []string{"create"}):
				return "secrets of any name"
			}
		}
	}
	for _, list := range [][]string{r.Verbs, r.APIGroups} {
		if slices.Contains(list, "*") {
			return "*"
		}
	}
	for _, verb := range []string{"escalate", "bind", "impersonate"} {
		if slices.Contains(r.Verbs, verb) {
			return verb
		}
	}
	return ""
}

// TestTyposAreRefused gives values that do not exist or cannot be.
func TestTyposAreRefused(t *testing.T) {
	for set, want := range map[string]string{
		"webhook.replica=3":             "replica",
		"agents.port=1":                 "agents",
		"preset=cheap":                  "preset",
		"webhook.replicas=0":            "replicas",
		"webhook.url=http://plain:9443": "url",
		"redis.bundled=false":           "redis.url or redis.urlSecret is required",
		"config.identityLabels=null":    "",
	} {
		t.Run(set, func(t *testing.T) {
			_, err := helm(t, set)
			switch {
			case want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("got %v, want a refusal that names %q", err, want)
			}
		})
	}
}

// render returns the objects of a release.
func render(t env.TB, set ...string) []*unstructured.Unstructured {
	t.Helper()
	out, err := helm(t, set...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("reading what was rendered: %v", err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

func helm(t env.TB, set ...string) ([]byte, error) {
	args := []string{"tool", "-modfile=test/tools/go.mod", "helm", "template", "plimsoll", "charts/plimsoll", "--namespace", namespace}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = ".." // the module's root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("rendering the chart: %w\n%s", err, stderr.String())
	}
	return out, nil
}
