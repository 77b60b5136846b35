package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-logr/logr"
)

// maxBody bounds a review, in bytes: the API server takes objects of up to
// 3 MiB, and JSON may escape them to twice that.
const maxBody = 8 << 20

// patience is how long a request may take when the API server does not say
// what its own is; see deadline.
const patience = 1500 * time.Millisecond

// Admitter decides about one request. An error lets the API server follow its
// failure policy.
type Admitter func(ctx context.Context, r Request) (Response, error)

// Server serves one webhook over HTTP.
type Server struct {
	name    string
	admit   Admitter
	metrics *Metrics
	log     logr.Logger
}

// NewServer makes the server of a webhook; name is its metrics' label.
func NewServer(name string, admit Admitter, m *Metrics, log logr.Logger) *Server {
	return &Server{name: name, admit: admit, metrics: m, log: log.WithValues("webhook", name)}
}

// ServeHTTP answers an AdmissionReview. Whatever goes wrong ends in an HTTP
// status and a message, never in a crash.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	outcome := OutcomePanic
	defer func() {
		if v := recover(); v != nil {
			s.log.Error(fmt.Errorf("%v", v), "a panic was caught; the object passes as the failure policy says", "stack", string(debug.Stack()))
			http.Error(w, "internal error", http.StatusInternalServerError)
		}
		s.metrics.observe(s.name, outcome, time.Since(start))
	}()
	outcome = s.serve(w, r)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) Outcome {
	if r.Method != http.MethodPost {
		http.Error(w, "send an AdmissionReview with POST", http.StatusMethodNotAllowed)
		return OutcomeMalformed
	}
	body, err := read(w, r, deadline(r))
	if err != nil {
		code := http.StatusBadRequest
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			code = http.StatusRequestEntityTooLarge
		}
		http.Error(w, fmt.Sprintf("reading the AdmissionReview (at most %d bytes): %v", maxBody, err), code)
		return OutcomeMalformed
	}
	req, err := DecodeReview(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return OutcomeMalformed
	}
	ctx, cancel := context.WithTimeout(logr.NewContext(r.Context(), s.log), deadline(r))
	defer cancel()
	resp, err := s.admit(ctx, req)
	if err != nil {
		s.log.Error(err, "a request could not be decided", "namespace", req.Namespace, "uid", req.UID)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return OutcomeFailed
	}
	out, err := EncodeReview(req.UID, resp)
	if err != nil {
		s.log.Error(err, "an answer could not be encoded", "namespace", req.Namespace, "uid", req.UID)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return OutcomeFailed
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	// An error here means that nobody waits for the answer any more.
	_, _ = w.Write(out)
	return resp.Outcome
}

// read reads the body, into as much memory as it is said to need. One that is
// sent too slowly for an answer in time is given up.
func read(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(within)); err == nil {
		defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	}
	size := r.ContentLength
	if size < 0 || size > maxBody {
		size = 0
	}
	b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	_, err := b.ReadFrom(http.MaxBytesReader(w, r.Body, maxBody))
	return b.Bytes(), err
}

// deadline is three quarters of the API server's patience, which it sends as
// parameter timeout, so that there is always time left to say "undecided".
func deadline(r *http.Request) time.Duration {
	t, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || t <= 0 {
		return patience
	}
	return min(t*3/4, patience)
}
