package env_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"plimsoll.dev/test/env"
)

const shipCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.test.plimsoll.dev}
spec:
  group: test.plimsoll.dev
  scope: Cluster
  names: {plural: ships, singular: ship, kind: Ship, listKind: ShipList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

func TestWebhooksAndCRDs(t *testing.T) {
	crds := t.TempDir()
	if err := os.WriteFile(filepath.Join(crds, "ships.yaml"), []byte(shipCRD), 0o600); err != nil {
		t.Fatal(err)
	}
	none, fail, path := registrationv1.SideEffectClassNone, registrationv1.Fail, "/deny"
	a := env.StartAPI(t, env.Options{
		CRDs: []string{crds},
		Webhooks: envtest.WebhookInstallOptions{ValidatingWebhooks: []*registrationv1.ValidatingWebhookConfiguration{{
			ObjectMeta: metav1.ObjectMeta{Name: "deny"},
			Webhooks: []registrationv1.ValidatingWebhook{{
				Name: "deny.test.plimsoll.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
				ClientConfig: registrationv1.WebhookClientConfig{Service: &registrationv1.ServiceReference{Name: "s", Namespace: "default", Path: &path}},
				Rules: []registrationv1.RuleWithOperations{{
					Operations: []registrationv1.OperationType{registrationv1.Create},
					Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}},
			}},
		}}},
	})
	serveDenial(t, a.Webhooks)

	cs, err := kubernetes.NewForConfig(a.Config)
	if err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "denied"}}
	if _, err := cs.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("creating what the webhook denies gives %v, want its message", err)
	}
	dyn, err := dynamic.NewForConfig(a.Config)
	if err != nil {
		t.Fatal(err)
	}
	ships := dyn.Resource(schema.GroupVersionResource{Group: "test.plimsoll.dev", Version: "v1", Resource: "ships"})
	if _, err := ships.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the CRD is not served: %v", err)
	}
}

// serveDenial runs a webhook where the control plane calls it.
func serveDenial(t *testing.T, o envtest.WebhookInstallOptions) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(o.LocalServingHost, strconv.Itoa(o.LocalServingPort)))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "not today"}}
		_ = json.NewEncoder(w).Encode(review) // a broken connection shows as the caller's error
	})}
	t.Cleanup(func() { server.Close() })
	go func() {
		err := server.ServeTLS(l, filepath.Join(o.LocalServingCertDir, "tls.crt"), filepath.Join(o.LocalServingCertDir, "tls.key"))
		if !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
}
