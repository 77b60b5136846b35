package admission_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/admission"
)

var errNotYet = errors.New("not yet")

func mustJSON(t interface{ Fatal(...any) }, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// review returns the AdmissionReview of a pod's creation.
func review(t testing.TB, ns string, object any) []byte {
	t.Helper()
	return mustJSON(t, admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "u", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Namespace: ns,
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: mustJSON(t, object)},
		},
	})
}

// call sends a review to a webhook and returns its answer.
func call(t testing.TB, h http.Handler, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/?timeout=2s", bytes.NewReader(body)))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	if out.Kind != "AdmissionReview" || out.APIVersion != "admission.k8s.io/v1" || out.Response == nil || out.Response.UID != "u" {
		t.Fatalf("the answer is %s", w.Body)
	}
	return out.Response
}

func podServer() *admission.Server {
	return admission.NewServer("pods", pods().Admit, admission.NewMetrics(prometheus.NewRegistry()), logr.Discard())
}

// admit returns what admission makes of a pod.
func admit(t testing.TB, ns string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	r := call(t, podServer(), review(t, ns, pod))
	if !r.Allowed {
		t.Fatalf("refused: %s", r.Result.Message)
	}
	if r.Patch == nil {
		return pod.DeepCopy()
	}
	patch, err := jsonpatch.DecodePatch(r.Patch)
	if err != nil {
		t.Fatal(err)
	}
	b, err := patch.Apply(mustJSON(t, pod))
	if err != nil {
		t.Fatalf("applying %s: %v", r.Patch, err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// C55: whatever arrives, there is a clear answer and no crash.
func TestC55MalformedReviews(t *testing.T) {
	tests := map[string]struct {
		method, body string
		code         int
		want         string
	}{
		"not a review":   {body: `{"kind":"Pod","apiVersion":"v1"}`, code: 400, want: "send an AdmissionReview"},
		"old version":    {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}`, code: 400, want: "admission.k8s.io/v1"},
		"no request":     {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`, code: 400, want: "no request"},
		"no uid":         {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}`, code: 400, want: "uid"},
		"not JSON":       {body: `kind: AdmissionReview`, code: 400, want: "parsing"},
		"empty":          {code: 400, want: "parsing"},
		"truncated":      {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u"`, code: 400, want: "parsing"},
		"too large":      {body: `{"kind":"` + strings.Repeat("x", 9<<20), code: 413, want: "at most"},
		"GET":            {method: http.MethodGet, code: 405, want: "POST"},
		"nested deeply":  {body: strings.Repeat("[", 1<<20), code: 400, want: "parsing"},
		"no object":      {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE","kind":{"kind":"Pod"}}}`, code: 200, want: `"allowed":false`},
		"object no pod":  {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE","kind":{"kind":"Pod"},"object":[]}}`, code: 200, want: "parsing the pod"},
		"another object": {body: `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE","kind":{"kind":"Node"},"object":{}}}`, code: 200, want: `"allowed":true`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			w := httptest.NewRecorder()
			podServer().ServeHTTP(w, httptest.NewRequest(tc.method, "/", strings.NewReader(tc.body)))
			if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("got %d %.200s, want %d and %q", w.Code, w.Body, tc.code, tc.want)
			}
		})
	}
}

// C55: a pod of 3 MiB, and one of 200 containers.
func TestC55LargePods(t *testing.T) {
	ref := govern(t, v1alpha1.ResourcePolicySpec{Resources: rules()})
	pod := newPod("large", mode("apply"))
	pod.Annotations = map[string]string{"note": strings.Repeat("n", 200<<10)}
	pod.Spec.Containers[0].Args = []string{strings.Repeat("<", 1<<20)} // six bytes each in JSON
	learned := []v1alpha1.ContainerStatus{recommended("app", "100m", "200m", "64Mi", "128Mi")}
	for i := range 199 {
		name := fmt.Sprintf("c%d", i)
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "i"})
		if i < 63 {
			learned = append(learned, recommended(name, "100m", "200m", "64Mi", "128Mi"))
		}
	}
	learn(t, pod, ref, learned...)
	got := admit(t, "default", pod)
	for _, c := range got.Spec.Containers[:64] {
		if v := values(c.Resources); v != "100m/200m 64Mi/128Mi" {
			t.Fatalf("container %s has %s", c.Name, v)
		}
	}
	if n := len(got.Annotations[v1alpha1.AnnotationApplied]); n == 0 || n > 32<<10 {
		t.Errorf("the annotation has %d bytes", n)
	}
}

// A panic is caught and counted, and the API server gets an error to follow its failure policy.
func TestPanicIsCaughtAndCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := admission.NewServer("pods", func(context.Context, admission.Request) (admission.Response, error) { panic("a bug") },
		admission.NewMetrics(registry), logr.Discard())
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(review(t, "default", newPod("p", nil)))))
	if w.Code != http.StatusInternalServerError {
		t.Errorf("status %d", w.Code)
	}
	want := `# HELP plimsoll_admission_requests_total Admission requests by webhook (pods, policies) and outcome.
# TYPE plimsoll_admission_requests_total counter
plimsoll_admission_requests_total{outcome="panic",webhook="pods"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "plimsoll_admission_requests_total"); err != nil {
		t.Error(err)
	}
}

// The handler gives up before the API server does.
// A caller that sends half a review and then nothing is answered within its own patience.
func TestHalfSentReviewIsGivenUp(t *testing.T) {
	server := httptest.NewServer(podServer())
	defer server.Close()
	body, rest := io.Pipe()
	defer rest.Close()
	go func() { _, _ = rest.Write([]byte(`{"request":`)) }()
	resp, err := http.Post(server.URL+"/?timeout=400ms", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %s, want 400", resp.Status)
	}
}

func TestDeadlineLiesWithinTheCallersPatience(t *testing.T) {
	tests := map[string]struct {
		query string
		most  time.Duration
	}{
		"said":      {"?timeout=1s", 750 * time.Millisecond},
		"long":      {"?timeout=30s", 1500 * time.Millisecond},
		"not said":  {"", 1500 * time.Millisecond},
		"malformed": {"?timeout=soon", 1500 * time.Millisecond},
		"negative":  {"?timeout=-1s", 1500 * time.Millisecond},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var left time.Duration
			s := admission.NewServer("pods", func(ctx context.Context, _ admission.Request) (admission.Response, error) {
				at, _ := ctx.Deadline()
				left = time.Until(at)
				return admission.Response{Outcome: admission.OutcomeValid}, nil
			}, admission.NewMetrics(prometheus.NewRegistry()), logr.Discard())
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+tc.query, bytes.NewReader(review(t, "default", newPod("p", nil)))))
			if left <= 0 || left > tc.most {
				t.Errorf("%s are left, want at most %s", left, tc.most)
			}
		})
	}
}

func FuzzDecodeReview(f *testing.F) {
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE","namespace":"n","kind":{"version":"v1","kind":"Pod"},"object":{"metadata":{"labels":{"plimsoll.dev/mode":"apply"}}}}}`))
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","object":null}}`))
	f.Add([]byte(`{"request":[]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := admission.DecodeReview(body)
		if err != nil {
			return
		}
		// What decodes as a whole decodes to the same; the object is not looked into.
		var want admissionv1.AdmissionReview
		if json.Unmarshal(body, &want) == nil && want.Request != nil && canonical(body) {
			if r.UID != want.Request.UID || r.Namespace != want.Request.Namespace || !bytes.Equal(r.Object, want.Request.Object.Raw) && string(r.Object) != "null" {
				t.Fatalf("%q decodes to %+v, want %+v", body, r, want.Request)
			}
		}
		if r.UID == "" {
			t.Fatalf("accepted %q", body)
		}
		out, err := admission.EncodeReview(r.UID, admission.Response{Denied: string(r.Object) + "x"})
		if err != nil || !json.Valid(out) {
			t.Fatalf("answered %q, %v", out, err)
		}
	})
}

// canonical reports whether every key stands once, so that decoders that differ
// in folding case or merging repeated keys agree.
func canonical(body []byte) bool {
	var top, request map[string]json.RawMessage
	if json.Unmarshal(body, &top) != nil || json.Unmarshal(top["request"], &request) != nil {
		return false
	}
	lower := bytes.ToLower(body)
	for _, key := range []string{"request", "uid", "namespace", "object", "kind", "apiversion"} {
		if n := bytes.Count(lower, []byte(`"`+key+`"`)); n > 2 || key != "kind" && n > 1 {
			return false
		}
	}
	return !bytes.Contains(body, []byte(`\u`)) && utf8.Valid(body) && len(request["uid"]) > 0
}

func FuzzParseApplied(f *testing.F) {
	f.Add(`{"profile":"p","changes":[{"c":"app","f":"cpu request","from":"1","to":"100m"}]}`, "100m")
	f.Add(`{"changes":[{"c":"app","f":"cpu limit","to":"-1","from":"-5"}],"defaults":"LimitRanger plugin set: cpu"}`, "-1")
	f.Fuzz(func(t *testing.T, text, have string) {
		a, err := admission.ParseApplied(text)
		if err != nil {
			return
		}
		pod := newPod("p", nil)
		a.Undo(pod)
		if again, err := admission.ParseApplied(a.String()); err != nil || again.String() != a.String() {
			t.Fatalf("%q reads back as %q, %v", a.String(), again.String(), err)
		}
	})
}
