package env

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Request is one kind of API request as the API server counts it.
type Request struct {
	Verb        string // GET, LIST, WATCH, POST, PUT, PATCH, APPLY, DELETE, DELETECOLLECTION
	Group       string // API group, empty for core
	Resource    string // plural
	Subresource string
	Code        string // HTTP status
}

// Write reports whether the request is one that changes objects.
func (r Request) Write() bool {
	switch r.Verb {
	case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
		return true
	}
	return false
}

// Requests counts API requests by kind.
type Requests map[Request]int

// Since returns what came on top of an earlier reading.
func (r Requests) Since(earlier Requests) Requests {
	d := Requests{}
	for k, n := range r {
		if n -= earlier[k]; n != 0 {
			d[k] = n
		}
	}
	return d
}

// Writes counts the successful writes to a resource, written as "pods" or with
// its subresource as "pods/resize"; an empty resource means all but Leases and
// Events.
func (r Requests) Writes(resource string) int {
	n := 0
	for k, count := range r {
		name := k.Resource
		if k.Subresource != "" {
			name += "/" + k.Subresource
		}
		if resource == "" && (name == "leases" || name == "events") || resource != "" && name != resource {
			continue
		}
		if k.Write() && strings.HasPrefix(k.Code, "2") {
			n += count
		}
	}
	return n
}

// settled is how long the count of writes holds still before it is believed.
const settled = 50 * time.Millisecond

// Requests reads how many requests the API server has answered, from whoever
// they came (apiserver_request_total). A request is counted just after its
// answer is sent, so the writes of others are waited for, for a second at most.
func (a *API) Requests() Requests {
	a.t.Helper()
	r := a.readRequests()
	for range time.Second / settled {
		time.Sleep(settled)
		again := a.readRequests()
		if again.writes() == r.writes() {
			return again
		}
		r = again
	}
	return r
}

func (r Requests) writes() (n int) {
	for k, count := range r {
		if k.Write() {
			n += count
		}
	}
	return n
}

func (a *API) readRequests() Requests {
	a.t.Helper()
	cs, err := a.client()
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	text, err := cs.RESTClient().Get().AbsPath("/metrics").DoRaw(a.t.Context())
	if err != nil {
		a.t.Fatalf("reading the API server's metrics: %v", err)
	}
	r, err := parseRequests(text)
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	return r
}

func parseRequests(text []byte) (Requests, error) {
	const name = "apiserver_request_total"
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("parsing the API server's metrics: %w", err)
	}
	r := Requests{}
	for _, m := range families[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		r[Request{
			Verb: labels["verb"], Group: labels["group"], Resource: labels["resource"],
			Subresource: labels["subresource"], Code: labels["code"],
		}] += int(m.GetCounter().GetValue())
	}
	return r, nil
}
