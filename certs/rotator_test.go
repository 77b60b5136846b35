package certs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/certs"
	"plimsoll.dev/test/env"
)

var (
	api     *env.API
	clients *kubernetes.Clientset
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	env.Main(m, func(t env.TB) {
		api = env.StartAPI(t, env.Options{})
		var err error
		if clients, err = kubernetes.NewForConfig(api.Config); err != nil {
			t.Fatalf("%v", err)
		}
	})
}

func ptr[T any](v T) *T { return &v }

// installation is one Secret and one mutating configuration, in a namespace of its own.
type installation struct {
	o    certs.Options
	addr string // where the API server calls
}

// install makes the configuration; it must not fail open, so that a call that
// is not trusted shows.
func install(t *testing.T, addr string) installation {
	t.Helper()
	ns, err := clients.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	in := installation{addr: addr, o: certs.Options{
		Secret:        types.NamespacedName{Namespace: ns.Name, Name: "webhook-certs"},
		Configuration: ns.Name,
		Hosts:         []string{"127.0.0.1"},
		// Well beyond the longest call and the longest pause of a replica that
		// a busy machine causes, as the defaults are by far.
		Propagation: 2 * time.Second,
		Overlap:     2 * time.Second,
		Poll:        100 * time.Millisecond,
	}}
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: ns.Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "pods.plimsoll.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:     ptr(admissionregistrationv1.Fail),
			ClientConfig:      admissionregistrationv1.WebhookClientConfig{URL: ptr("https://" + addr)},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns.Name}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	if _, err := clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(context.WithoutCancel(t.Context()), ns.Name, metav1.DeleteOptions{})
	})
	return in
}

// replica is one rotator and the server that uses its certificate.
type replica struct {
	*certs.Rotator
	addr  string
	stop  func()
	drain func() // lets calls in flight end
}

func (in installation) replica(t *testing.T) *replica {
	t.Helper()
	return in.replicaWith(t, newClient(t))
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(api.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (in installation) replicaWith(t *testing.T, c client.Client) *replica {
	t.Helper()
	r := certs.NewRotator(c, in.o, certs.NewMetrics(prometheus.NewRegistry()))
	// HTTP/1.1, as API servers speak to Services. Over HTTP/2 a call that meets
	// the end of its connection is tried again after pauses of 1 s, 2 s and so
	// on, still with the trust it began with.
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: r.GetCertificate, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(allow), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = srv.Close()
	})
	t.Cleanup(stop)
	drain := func() {
		_ = srv.Shutdown(ctx)
		stop()
	}
	return &replica{Rotator: r, addr: l.Addr().String(), stop: stop, drain: drain}
}

func allow(w http.ResponseWriter, r *http.Request) {
	var in admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	in.Response = &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}
	in.Request = nil
	// Every call is a new connection, and so a new handshake.
	w.Header().Set("Connection", "close")
	_ = json.NewEncoder(w).Encode(in)
}

func (in installation) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	s, err := clients.CoreV1().Secrets(in.o.Secret.Namespace).Get(t.Context(), in.o.Secret.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (in installation) bundle(t *testing.T) []byte {
	t.Helper()
	c, err := clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), in.o.Configuration, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Webhooks[0].ClientConfig.CABundle
}

// call makes the API server call the webhook.
func (in installation) call(ctx context.Context) error {
	_, err := clients.CoreV1().ConfigMaps(in.o.Secret.Namespace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (in installation) working(t *testing.T) {
	t.Helper()
	wait(t, "a trusted call", func() error { return in.call(t.Context()) })
}

func ready(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		wait(t, "a certificate", func() error { return r.Loaded(nil) })
	}
}

// Several replicas that start at once agree on one authority.
func TestReplicasShareOneAuthority(t *testing.T) {
	in := install(t, "127.0.0.1:1")
	replicas := []*replica{in.replica(t), in.replica(t), in.replica(t)}
	ready(t, replicas...)
	wait(t, "one certificate", func() error {
		want := in.secret(t).Data["tls.crt"]
		for _, r := range replicas {
			c, err := r.GetCertificate(nil)
			if err != nil {
				return err
			}
			if !bytes.Contains(want, pemOf(c)) {
				return errors.New("a replica serves another certificate")
			}
		}
		if !bytes.Equal(in.bundle(t), in.secret(t).Data["ca.crt"]) {
			return errors.New("not published")
		}
		return nil
	})
}

// A Secret that is deleted or damaged is written anew from what is served, and
// a configuration that is reset gets its authority back.
func TestDamageIsRepaired(t *testing.T) {
	service := balance(t)
	in := install(t, service.addr)
	r := in.replica(t)
	ready(t, r)
	service.use(r.addr)
	in.working(t)
	want := in.secret(t).Data["tls.crt"]
	repaired := func(what string) {
		t.Helper()
		wait(t, what, func() error {
			s, err := clients.CoreV1().Secrets(in.o.Secret.Namespace).Get(t.Context(), in.o.Secret.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !bytes.Equal(s.Data["tls.crt"], want) || !bytes.Equal(s.Data["ca.crt"], in.bundle(t)) {
				return errors.New("not the certificate of before")
			}
			return nil
		})
		if err := in.call(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := clients.CoreV1().Secrets(in.o.Secret.Namespace).Delete(t.Context(), in.o.Secret.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	repaired("a deleted Secret")
	damaged := in.secret(t)
	damaged.Data["active-ca.crt"] = []byte("damaged")
	if _, err := clients.CoreV1().Secrets(in.o.Secret.Namespace).Update(t.Context(), damaged, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	repaired("a damaged Secret")
	reset := []byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	if _, err := clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), in.o.Configuration, types.JSONPatchType, reset, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, "the authority to be published again", in.trusted(t))
}

func (in installation) trusted(t *testing.T) func() error {
	return func() error {
		if !bytes.Equal(in.bundle(t), in.secret(t).Data["ca.crt"]) {
			return errors.New("not published")
		}
		return in.call(t.Context())
	}
}

// A certificate that comes of age is renewed by itself, and so is its authority.
func TestRenewalFallsDueByItself(t *testing.T) {
	service := balance(t)
	in := install(t, service.addr)
	// Backdated by five minutes, two thirds of these validities lie seconds ahead.
	in.o.AuthorityValidity, in.o.LeafValidity = 155*time.Second, 152*time.Second
	r := in.replica(t)
	ready(t, r)
	service.use(r.addr)
	in.working(t)
	first := in.secret(t)
	wait(t, "a new authority", func() error {
		if err := in.call(t.Context()); err != nil {
			t.Fatalf("a call failed during the renewal: %v", err)
		}
		s := in.secret(t)
		if bytes.Equal(s.Data["active-ca.crt"], first.Data["active-ca.crt"]) || bytes.Equal(s.Data["tls.crt"], first.Data["tls.crt"]) {
			return errors.New("still the first one")
		}
		return nil
	})
}

// A replica that cannot read the Secret for half the overlap is not ready: the
// others may have gone on to an authority that its certificate is not signed by.
func TestReplicaThatCannotReadTheSecretIsNotReady(t *testing.T) {
	in := install(t, "127.0.0.1:1")
	r := in.replica(t)
	ready(t, r)
	r.stop()
	wait(t, "the replica to stop being ready", func() error {
		if err := r.Loaded(nil); err != nil && strings.Contains(err.Error(), "could not be read") {
			return nil
		}
		return errors.New("still ready")
	})
}

func pemOf(c *tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}
