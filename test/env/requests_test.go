package env_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/test/env"
)

func TestRequestsSinceAndWrites(t *testing.T) {
	resize := env.Request{Verb: "APPLY", Resource: "pods", Subresource: "resize", Code: "200"}
	refused := env.Request{Verb: "APPLY", Resource: "pods", Subresource: "resize", Code: "409"}
	patch := env.Request{Verb: "PATCH", Resource: "pods", Code: "200"}
	get := env.Request{Verb: "GET", Resource: "pods", Code: "200"}
	lease := env.Request{Verb: "PUT", Group: "coordination.k8s.io", Resource: "leases", Code: "200"}
	before := env.Requests{resize: 2, get: 5, patch: 1}
	after := env.Requests{resize: 5, get: 9, patch: 1, refused: 4, lease: 7}

	since := after.Since(before)
	if diff := cmp.Diff(env.Requests{resize: 3, get: 4, refused: 4, lease: 7}, since); diff != "" {
		t.Fatalf("since (-want +got):\n%s", diff)
	}
	for resource, want := range map[string]int{"pods/resize": 3, "pods": 0, "leases": 7, "": 3} {
		if got := since.Writes(resource); got != want {
			t.Errorf("writes to %q = %d, want %d", resource, got, want)
		}
	}
}
