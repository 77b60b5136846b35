package certs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// configuration is one webhook configuration, of either kind.
type configuration struct {
	object  client.Object
	clients []admissionregistrationv1.WebhookClientConfig
}

// hold reports whether every webhook of every configuration holds the bundle.
func hold(all []configuration, bundle []byte) bool {
	for _, c := range all {
		for _, cc := range c.clients {
			if !bytes.Equal(cc.CABundle, bundle) {
				return false
			}
		}
	}
	return true
}

// configurations reads those webhook configurations that exist.
func (r *Rotator) configurations(ctx context.Context) ([]configuration, error) {
	var all []configuration
	key := types.NamespacedName{Name: r.o.Configuration}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, o := range []client.Object{mutating, validating} {
		if err := r.client.Get(ctx, key, o); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("reading webhook configuration %s: %w", key.Name, err)
		}
		all = append(all, configuration{object: o})
	}
	for i := range all {
		switch o := all[i].object.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for _, w := range o.Webhooks {
				all[i].clients = append(all[i].clients, w.ClientConfig)
			}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for _, w := range o.Webhooks {
				all[i].clients = append(all[i].clients, w.ClientConfig)
			}
		}
	}
	return all, nil
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// publish writes the bundle into every webhook of a configuration that does not
// hold it yet, unless the configuration has changed since it was read.
func (r *Rotator) publish(ctx context.Context, c configuration, bundle []byte) error {
	var ops []operation
	for i, cc := range c.clients {
		if !bytes.Equal(cc.CABundle, bundle) {
			ops = append(ops, operation{"add", "/webhooks/" + strconv.Itoa(i) + "/clientConfig/caBundle", bundle})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	ops = append(ops, operation{"replace", "/metadata/resourceVersion", c.object.GetResourceVersion()})
	patch, err := json.Marshal(ops)
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	if err := r.client.Patch(ctx, c.object, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return fmt.Errorf("publishing the certificate authority in webhook configuration %s: %w", c.object.GetName(), err)
	}
	return nil
}
