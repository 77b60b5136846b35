package admission

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// AdmitPolicy refuses a policy of either kind that does not compile, naming
// every field that is wrong.
func AdmitPolicy(_ context.Context, r Request) (Response, error) {
	if r.Operation != admissionv1.Create && r.Operation != admissionv1.Update {
		return Response{Outcome: OutcomeValid}, nil
	}
	if r.Kind.Kind != v1alpha1.KindResourcePolicy && r.Kind.Kind != v1alpha1.KindClusterResourcePolicy {
		return Response{Outcome: OutcomeValid}, nil
	}
	// Both kinds are a spec under the same key.
	var p struct {
		Spec v1alpha1.ResourcePolicySpec `json:"spec"`
	}
	if err := utiljson.Unmarshal(r.Object, &p); err != nil {
		return Response{Denied: fmt.Sprintf("parsing the %s: %v", r.Kind.Kind, err), Outcome: OutcomeDenied}, nil
	}
	errs := policy.Validate(p.Spec)
	if len(errs) > 0 {
		return Response{Denied: errs.ToAggregate().Error(), Outcome: OutcomeDenied}, nil
	}
	return Response{Outcome: OutcomeValid}, nil
}
