package profile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// lying answers lists of some resources as empty, or with an error, for a while,
// and ends their watches so that they are listed again.
type lying struct {
	next http.RoundTripper
	mode atomic.Value // "", "empty" or "error"

	mu      sync.Mutex
	watches map[context.Context]context.CancelFunc
	listed  map[string]bool // resources that have been lied about
}

var liedAbout = []string{"pods", "resourcepolicies", "clusterresourcepolicies", "workloadprofiles", "plimsollconfigs", "namespaces", "replicasets"}

func (l *lying) wrap(next http.RoundTripper) http.RoundTripper {
	l.next, l.watches, l.listed = next, map[context.Context]context.CancelFunc{}, map[string]bool{}
	l.mode.Store("")
	return l
}

func (l *lying) RoundTrip(r *http.Request) (*http.Response, error) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	ours := r.Method == http.MethodGet
	if ours {
		ours = false
		for _, name := range liedAbout {
			ours = ours || name == resource
		}
	}
	if !ours || strings.Contains(r.URL.Path, "/namespaces/") {
		return l.next.RoundTrip(r) // no informer's list
	}
	mode := l.mode.Load().(string)
	watch := r.URL.Query().Get("watch") != ""
	switch {
	case watch && mode != "" && r.URL.Query().Get("sendInitialEvents") == "true":
		return answer(r, http.StatusInternalServerError, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`), nil
	case watch && mode != "":
		return answer(r, http.StatusGone, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`), nil
	case watch:
		ctx, cancel := context.WithCancel(r.Context())
		l.mu.Lock()
		l.watches[ctx] = cancel
		l.mu.Unlock()
		return l.next.RoundTrip(r.WithContext(ctx))
	case mode == "error":
		l.note(resource)
		return answer(r, http.StatusInternalServerError, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}`), nil
	case mode == "empty" && !strings.Contains(r.URL.RawQuery, "app.kubernetes.io"):
		return l.empty(r, resource)
	}
	return l.next.RoundTrip(r)
}

func (l *lying) note(resource string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listed[resource] = true
}

// empty asks for nothing that exists, so that the answer is right but for its items.
func (l *lying) empty(r *http.Request, resource string) (*http.Response, error) {
	l.note(resource)
	nothing := r.Clone(r.Context())
	q := nothing.URL.Query()
	q.Set("labelSelector", "there.is/no=such")
	nothing.URL.RawQuery = q.Encode()
	return l.next.RoundTrip(nothing)
}

// lie begins: every watch ends, so that everything is listed again.
func (l *lying) lie(mode string) {
	l.mode.Store(mode)
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.listed)
	for ctx, cancel := range l.watches {
		cancel()
		delete(l.watches, ctx)
	}
}

// believed reports whether every resource has been lied about.
func (l *lying) believed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range liedAbout {
		if !l.listed[name] {
			return fmt.Errorf("%s were not listed yet", name)
		}
	}
	return nil
}

func answer(r *http.Request, code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": []string{"application/json"}}, Body: io.NopCloser(bytes.NewBufferString(body)),
	}
}

// C11: the API server answers lists with an error, or empty, for a moment.
func TestC11ListsFailForAMoment(t *testing.T) {
	for _, mode := range []string{"error", "empty"} {
		t.Run(mode, func(t *testing.T) {
			l := &lying{}
			w := startReplica(t, replica{transport: l.wrap})
			w.cluster("fleet", 0, v1alpha1.Selector{})
			w.create(&v1alpha1.PlimsollConfig{
				ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName},
				Spec:       v1alpha1.PlimsollConfigSpec{IdentityLabels: []string{"app.kubernetes.io/name", "team"}},
			})
			labels := shop(v1alpha1.ModeMeasure)
			labels["team"] = "pay"
			rs := w.replicaSet("web")
			ns := w.newNamespace(map[string]string{v1alpha1.LabelMode: "apply"})
			p := pod(w.namespace, "x", labels)
			p.OwnerReferences = controller("apps/v1", "ReplicaSet", rs)
			copied := pod(ns, "y", labels)
			copied.Labels[v1alpha1.LabelMode], copied.Labels[v1alpha1.LabelModeSource] = "apply", v1alpha1.ModeSourceNamespace
			w.create(p, copied)
			var name string
			w.eventually("both identity labels", func() error {
				if name = w.stamped(p, "ClusterResourcePolicy/fleet"); len(w.profile(name).Spec.Identity.Tuple) != 2 {
					return errors.New(name)
				}
				return nil
			})
			first := w.profileWith(name, 2, v1alpha1.ProfileLearning)
			w.quiet()
			before := api.Requests()
			l.lie(mode)
			w.eventually("the lists to be made again", l.believed)
			w.rebalance()
			w.quiet()
			l.lie("")
			w.rebalance()
			w.quiet()
			writes := api.Requests().Since(before)
			if n := writes.Writes(""); n != 0 {
				t.Errorf("%d writes: %v", n, writes)
			}
			if again := w.profile(name); again.UID != first.UID || again.Status.ActivePods != 2 || again.Status.State != first.Status.State {
				t.Errorf("the profile became %+v", again.Status)
			}
			for _, q := range []*corev1.Pod{p, copied} {
				if ref, profileRef := w.stamps(q); ref != "ClusterResourcePolicy/fleet" || profileRef != name {
					t.Errorf("pod %s is stamped %s, %s", q.Name, ref, profileRef)
				}
			}
			if got := w.purger.done(); len(got) > 0 {
				t.Errorf("removed %v", got)
			}
		})
	}
}

// late holds the lists and watches of owners back for a while.
type late struct {
	next  http.RoundTripper
	until time.Time
	lists atomic.Int32
	reads atomic.Int32
}

func (l *late) wrap(next http.RoundTripper) http.RoundTripper { l.next = next; return l }

func (l *late) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/replicasets") || strings.HasSuffix(r.URL.Path, "/jobs") {
		l.lists.Add(1)
		wait := time.NewTimer(time.Until(l.until))
		defer wait.Stop()
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-wait.C:
		}
	} else if strings.Contains(r.URL.Path, "/replicasets/") {
		l.reads.Add(1)
	}
	return l.next.RoundTrip(r)
}

// With the owners' informer 5 s late, the answer at admission is the one of
// later, and admission does not wait for it.
func TestOwnersInformerIsLate(t *testing.T) {
	l := &late{until: time.Now().Add(6 * time.Second)}
	w := startReplica(t, replica{transport: l.wrap})
	w.cluster("deployments", 0, kinds("Deployment"))
	w.cluster("rest", -1, v1alpha1.Selector{})
	w.eventually("both policies", func() error {
		if n := len(w.resolver.Policies.Get().Policies()); n != 2 {
			return fmt.Errorf("%d policies", n)
		}
		return nil
	})
	p := pod(w.namespace, "web-x", shop(v1alpha1.ModeMeasure))
	p.OwnerReferences = controller("apps/v1", "ReplicaSet", w.replicaSet("web"))
	begin := time.Now()
	admitted := p.DeepCopy()
	admitted.Namespace = ""
	at, err := w.resolver.Resolve(t.Context(), admitted, w.namespace)
	w.must(err)
	if took := time.Since(begin); took > 2*time.Second || time.Now().After(l.until) {
		t.Errorf("admission took %s, %s before the informer starts", took, time.Until(l.until))
	}
	if got := at.Stamps()[v1alpha1.AnnotationPolicyRef]; !at.Known || got != "ClusterResourcePolicy/deployments" {
		t.Errorf("at admission %s governs, known: %v", got, at.Known)
	}
	w.create(p)
	w.stamped(p, "ClusterResourcePolicy/deployments")
	w.eventually("the informer", func() error {
		if left := time.Until(l.until); left > 0 {
			return fmt.Errorf("%s to go", left)
		}
		before := l.reads.Load()
		if _, err := w.resolver.Resolve(t.Context(), p, w.namespace); err != nil {
			return err
		}
		if l.reads.Load() != before {
			return errors.New("still read live")
		}
		return nil
	})
	later, err := w.resolver.Resolve(t.Context(), p, w.namespace)
	w.must(err)
	if later.Key != at.Key {
		t.Errorf("the profile was %s at admission and is %s later", at.Key.Name(), later.Key.Name())
	}
}
