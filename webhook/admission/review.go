package admission

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

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

// DecodeReview reads an admission.k8s.io/v1 AdmissionReview that holds a
// request. Its Object is part of body and not checked: it is most of a review,
// and whoever decodes it finds out.
func DecodeReview(body []byte) (Request, error) {
	var apiVersion, kind string
	var request []byte
	s := scanner{data: body}
	err := s.object(func(key string, value []byte) error {
		switch key {
		case "apiVersion":
			return json.Unmarshal(value, &apiVersion)
		case "kind":
			return json.Unmarshal(value, &kind)
		case "request":
			request = value
		}
		return nil
	})
	if s.space(); err == nil && s.at < len(body) {
		err = fmt.Errorf("invalid character %q after the end", body[s.at])
	}
	if err != nil {
		return Request{}, fmt.Errorf("parsing the AdmissionReview: %w", err)
	}
	if kind != "AdmissionReview" || apiVersion != admissionv1.SchemeGroupVersion.String() {
		return Request{}, fmt.Errorf("apiVersion %q, kind %q: send an AdmissionReview of admission.k8s.io/v1", clip(apiVersion), clip(kind))
	}
	if len(request) == 0 || string(request) == "null" {
		return Request{}, errors.New("the AdmissionReview has no request")
	}
	r, err := decodeRequest(request)
	if err != nil {
		return Request{}, fmt.Errorf("parsing the AdmissionReview: request: %w", err)
	}
	if r.UID == "" {
		return Request{}, errors.New("request.uid is missing")
	}
	return r, nil
}

func decodeRequest(request []byte) (Request, error) {
	var r Request
	s := scanner{data: request}
	err := s.object(func(key string, value []byte) error {
		switch key {
		case "uid":
			return json.Unmarshal(value, &r.UID)
		case "kind":
			return utiljson.Unmarshal(value, &r.Kind)
		case "namespace":
			return json.Unmarshal(value, &r.Namespace)
		case "operation":
			return json.Unmarshal(value, &r.Operation)
		case "object":
			r.Object = value
		}
		return nil
	})
	return r, err
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
	if r.Denied == "" && len(r.Warnings) == 0 && len(r.Patch) > 0 {
		return encodePatch(uid, r.Patch), nil
	}
	out := response{UID: uid, Allowed: r.Denied == "", Warnings: r.Warnings}
	switch {
	case r.Denied != "":
		out.Status = &metav1.Status{
			Status: metav1.StatusFailure, Message: r.Denied, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		}
	case len(r.Patch) > 0:
		out.PatchType, out.Patch = admissionv1.PatchTypeJSONPatch, r.Patch
	}
	inner, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encoding the AdmissionReview: %w", err)
	}
	b := make([]byte, 0, len(inner)+len(answerHead)+1)
	b = append(b, answerHead...)
	b = append(b, inner...)
	return append(b, '}'), nil
}

// encodePatch writes the answer that nearly all requests get, into one piece of memory.
func encodePatch(uid types.UID, patch []byte) []byte {
	const most = 128 // what the names and a usual UID take
	b := make([]byte, 0, len(answerHead)+base64.StdEncoding.EncodedLen(len(patch))+most)
	b = append(b, answerHead...)
	b = appendText(append(b, `{"uid":`...), string(uid))
	b = base64.StdEncoding.AppendEncode(append(b, `,"allowed":true,"patch":"`...), patch)
	return append(b, `","patchType":"JSONPatch"}}`...)
}

const answerHead = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":`

// response is an AdmissionResponse with the fields used here.
type response struct {
	UID       types.UID             `json:"uid"`
	Allowed   bool                  `json:"allowed"`
	Status    *metav1.Status        `json:"status,omitempty"`
	Patch     []byte                `json:"patch,omitempty"`
	PatchType admissionv1.PatchType `json:"patchType,omitempty"`
	Warnings  []string              `json:"warnings,omitempty"`
}
