package recommend

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	decide "plimsoll.dev/pkg/recommend"
)

// Explanation is a profile's derivation from the measurements as they are now.
type Explanation struct {
	Profile          string                    `json:"profile"`
	PolicyRef        *v1alpha1.PolicyReference `json:"policyRef,omitempty"`
	PolicyGeneration int64                     `json:"policyGeneration,omitempty"`
	decide.Explanation
}

// Explain computes a profile anew and derives every value; nothing is written. The error is the API's NotFound for a
// profile that does not exist.
func (c *Controller) Explain(ctx context.Context, name string) (Explanation, error) {
	profile := &v1alpha1.WorkloadProfile{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, profile); err != nil {
		return Explanation{}, fmt.Errorf("reading profile %s: %w", name, err)
	}
	v, err := c.evaluate(ctx, profile)
	if err != nil {
		return Explanation{}, err
	}
	return Explanation{
		Profile: name, PolicyRef: profile.Spec.Identity.PolicyRef, PolicyGeneration: v.generation,
		Explanation: v.result.Explain(),
	}, nil
}
