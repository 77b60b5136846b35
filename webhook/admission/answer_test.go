package admission_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"plimsoll.dev/webhook/admission"
)

// C55: an answer with a patch reads back as what it says, whatever the UID holds.
func TestAnswerReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		uid := types.UID(rapid.String().Draw(t, "uid"))
		patch := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "patch")
		b, err := admission.EncodeReview(uid, admission.Response{Patch: patch})
		if err != nil {
			t.Fatal(err)
		}
		var got admissionv1.AdmissionReview
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		typ := admissionv1.PatchTypeJSONPatch
		want := &admissionv1.AdmissionResponse{UID: uid, Allowed: true, Patch: patch, PatchType: &typ}
		if diff := cmp.Diff(want, got.Response); diff != "" || got.Kind != "AdmissionReview" {
			t.Fatalf("%s", diff)
		}
	})
}
