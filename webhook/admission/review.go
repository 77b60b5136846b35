package admission

import (
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Request is what is read of an AdmissionReview.
type Request struct {
	UID       types.UID
	Kind      metav1.GroupVersionKind
	Namespace string
	Operation admissionv1.Operation
	// Object is the object's JSON, as it would be stored.
	Object json.RawMessage
}

// Response is the answer to a Request.
type Response struct {
	// Denied refuses the object and says why; empty lets it pass.
	Denied string
	// Patch is a JSON patch, nil when nothing changes.
	Patch []byte
	// Warnings are shown to the client.
	Warnings []string
	// Outcome is the value of the metrics' label, from this package's closed set.
	Outcome Outcome
}

type review struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Request    *reviewRequest `json:"request"`
}

type reviewRequest struct {
	UID       types.UID               `json:"uid"`
	Kind      metav1.GroupVersionKind `json:"kind"`
	Namespace string                  `json:"namespace"`
	Operation admissionv1.Operation   `json:"operation"`
	Object    json.RawMessage         `json:"object"`
}

// DecodeReview reads an admission.k8s.io/v1 AdmissionReview that holds a request.
func DecodeReview(body []byte) (Request, error) {
	var r review
	if err := utiljson.Unmarshal(body, &r); err != nil {
		return Request{}, fmt.Errorf("parsing the AdmissionReview: %w", err)
	}
	if r.Kind != "AdmissionReview" || r.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return Request{}, fmt.Errorf("apiVersion %q, kind %q: send an AdmissionReview of admission.k8s.io/v1", clip(r.APIVersion), clip(r.Kind))
	}
	if r.Request == nil {
		return Request{}, errors.New("the AdmissionReview has no request")
	}
	if r.Request.UID == "" {
		return Request{}, errors.New("request.uid is missing")
	}
	return Request{
		UID: r.Request.UID, Kind: r.Request.Kind, Namespace: r.Request.Namespace,
		Operation: r.Request.Operation, Object: r.Request.Object,
	}, nil
}

// clip keeps what a message repeats of foreign text short.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// EncodeReview writes the answer to the request of the given UID.
func EncodeReview(uid types.UID, r Response) ([]byte, error) {
	out := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{UID: uid, Allowed: r.Denied == "", Warnings: r.Warnings},
	}
	switch {
	case r.Denied != "":
		out.Response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Message: r.Denied, Reason: metav1.StatusReasonInvalid, Code: 422,
		}
	case len(r.Patch) > 0:
		kind := admissionv1.PatchTypeJSONPatch
		out.Response.Patch, out.Response.PatchType = r.Patch, &kind
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encoding the AdmissionReview: %w", err)
	}
	return b, nil
}
