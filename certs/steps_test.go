package certs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A bundle that somebody took out of the configuration while it was waited for
// is published again, and waited for anew.
func TestPublishingAgainStartsTheWaitAgain(t *testing.T) {
	in := install(t, "127.0.0.1:1")
	r := in.replica(t)
	ready(t, r)
	wait(t, "the first authority to be published", func() error {
		if !bytes.Equal(in.bundle(t), in.secret(t).Data["ca.crt"]) {
			return errors.New("not published")
		}
		return nil
	})
	first := in.bundle(t)
	in.begin(t)
	wait(t, "the next authority to be published", func() error {
		if s := in.secret(t); len(s.Data["next-ca.crt"]) == 0 || s.Annotations[stepSince] == "" {
			return errors.New("not published")
		}
		return nil
	})
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": first}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), in.o.Configuration, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	reset := time.Now()
	wait(t, "the next authority to sign", func() error {
		s := in.secret(t)
		if bytes.Equal(s.Data["active-ca.crt"], first) {
			return errors.New("not promoted")
		}
		since, err := time.Parse(time.RFC3339Nano, s.Annotations[stepSince])
		if err != nil {
			t.Fatal(err)
		}
		if waited := since.Sub(reset); waited < in.o.Propagation {
			t.Errorf("it signs %s after the configuration was reset, want at least %s", waited, in.o.Propagation)
		}
		return nil
	})
}

// stepSince is the Secret's annotation that says when waiting began.
const stepSince = "plimsoll.dev/step-since"

// refusing refuses to store a promotion.
type refusing struct {
	client.Client
	refused func()
}

func (c refusing) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if s, ok := o.(*corev1.Secret); ok && len(s.Data["previous-ca.crt"]) > 0 {
		c.refused()
		return errors.New("refused")
	}
	return c.Client.Update(ctx, o, opts...)
}

// What a step would change is not served before it is stored, nor is what a
// handshake may be reading changed under it.
func TestStepThatIsNotStoredIsNotServed(t *testing.T) {
	in := install(t, "127.0.0.1:1")
	refused := make(chan struct{})
	goOn := make(chan struct{})
	once := sync.OnceFunc(func() { close(refused); <-goOn })
	r := in.replicaWith(t, refusing{newClient(t), once})
	ready(t, r)
	in.begin(t)
	select {
	case <-refused:
	case <-time.After(30 * time.Second):
		close(goOn)
		t.Fatal("nothing was promoted")
	}
	served, err := r.GetCertificate(nil)
	close(goOn)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pemOf(served), in.secret(t).Data["tls.crt"]) {
		t.Error("it serves a certificate that is not in the Secret")
	}
}
