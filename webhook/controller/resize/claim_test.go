package resize_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/webhook/controller/resize"
)

// intercepted lets a test see and change what a replica sends to pods/resize.
func intercepted(t testing.TB, patch func(ctx context.Context, pod client.Object, send func() error) error) func(*resize.Options) {
	return func(o *resize.Options) {
		inner, err := client.NewWithWatch(api.Config, client.Options{Scheme: scheme()})
		if err != nil {
			t.Fatal(err)
		}
		cached := o.Client
		o.Client = interceptor.NewClient(inner, interceptor.Funcs{
			Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				return cached.Get(ctx, key, obj, opts...)
			},
			List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				return cached.List(ctx, list, opts...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
				return patch(ctx, obj, func() error { return c.SubResource(sub).Patch(ctx, obj, p, opts...) })
			},
		})
	}
}

func once(t *testing.T, b *bench) {
	t.Helper()
	for name, n := range b.changed() {
		if n != 1 {
			t.Errorf("pod %s was changed %d times", name, n)
		}
	}
}

func TestAPodMadeByKubectl(t *testing.T) {
	b := newBench(t)
	b.byHand(1, "kubectl-client-side-apply")
	b.actuate()
	b.recommend("cpu request", "50m", "memory limit", "128Mi")
	b.start("a", nil, nil)
	b.every("resized", 20*time.Second, in(t, plan.StateResized))
	b.every("values", time.Second, has("cpu 50m/100m memory 16Mi/128Mi"))
	once(t, b)
}

// C70: an autoscaler that resizes through the same subresource is left alone.
func TestC70FieldOwnedByOther(t *testing.T) {
	b := newBench(t)
	b.byHand(2, "kube-controller-manager")
	b.actuate()
	body := []byte(`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"20m"}}}]}}`)
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "web-0"}}
	if err := b.client.SubResource("resize").Patch(t.Context(), other, client.RawPatch(types.StrategicMergePatchType, body), client.FieldOwner("vpa-updater")); err != nil {
		t.Fatal(err)
	}
	b.recommend("cpu request", "50m")
	b.start("a", nil, nil)
	b.eventually("the outcome", 20*time.Second, func() error {
		for _, p := range b.pods() {
			r := record(t, &p)
			want := map[string]plan.State{"web-0": plan.StateLeft, "web-1": plan.StateResized}[p.Name]
			if r.State != want {
				return fmt.Errorf("pod %s is %q: %s", p.Name, r.State, r.Message)
			}
			if p.Name == "web-0" && (r.Reason != plan.ReasonFieldOwnedByOther || !strings.Contains(r.Message, "vpa-updater")) {
				return fmt.Errorf("record %s", r)
			}
		}
		return nil
	})
	for _, p := range b.pods() {
		if want := map[string]string{"web-0": "20m", "web-1": "50m"}[p.Name]; p.Spec.Containers[0].Resources.Requests.Cpu().String() != want {
			t.Errorf("pod %s requests %s, want %s", p.Name, p.Spec.Containers[0].Resources.Requests.Cpu(), want)
		}
	}
	b.eventually("the event", 10*time.Second, func() error {
		if e := b.events(string(plan.ReasonFieldOwnedByOther)); len(e) != 1 {
			return fmt.Errorf("events %v", e)
		}
		return nil
	})
}

// A conflict that comes back though the table saw none is handled by the same table.
func TestRecoveryFromAConflict(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	tests := map[string]error{
		"over a field": &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Field: ".spec"}},
		}}},
		"over the version": apierrors.NewConflict(gr, "web-0", errors.New("the object has been modified")),
	}
	for name, conflict := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.byHand(1, "kube-controller-manager")
			b.actuate()
			b.recommend("cpu request", "50m")
			var calls atomic.Int32
			b.start("a", nil, intercepted(t, func(_ context.Context, _ client.Object, send func() error) error {
				if calls.Add(1) == 1 {
					return conflict
				}
				return send()
			}))
			b.every("resized", 20*time.Second, in(t, plan.StateResized))
			if n := calls.Load(); n != 2 {
				t.Errorf("%d calls, want 2", n)
			}
			once(t, b)
		})
	}
}

// What the API server refuses of one pod keeps no other from its turn.
func TestARefusalMovesOn(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	tests := map[string]error{
		"invalid":   apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-0", nil),
		"forbidden": apierrors.NewForbidden(gr, "web-0", errors.New("exceeded quota")),
		"not found": apierrors.NewNotFound(gr, "web-0"),
		"failed":    errors.New("connection reset"),
		"unknown":   apierrors.NewGenericServerResponse(404, "PATCH", schema.GroupResource{}, "", "", 0, true),
	}
	for name, refusal := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.byHand(3, "kube-controller-manager")
			b.actuate()
			b.recommend("cpu request", "50m")
			var refused atomic.Int32
			b.start("a", nil, intercepted(t, func(_ context.Context, pod client.Object, send func() error) error {
				if pod.GetName() == "web-0" {
					refused.Add(1)
					return refusal
				}
				return send()
			}))
			b.eventually("the others", 20*time.Second, func() error {
				for _, p := range b.pods() {
					if r := record(t, &p); p.Name != "web-0" && r.State != plan.StateResized {
						return fmt.Errorf("pod %s is %q", p.Name, r.State)
					}
				}
				return nil
			})
			if name == "unknown" {
				b.eventually("it is said", 10*time.Second, func() error {
					if e := b.events(string(plan.ReasonUnsupported)); len(e) != 1 {
						return fmt.Errorf("events %v", e)
					}
					return nil
				})
			}
			if apierrors.IsInvalid(refusal) && refused.Load() != 1 {
				t.Errorf("%d tries of what was refused", refused.Load())
			}
		})
	}
}

// C68 and the reservations: ten goroutines and ten pods, each resized once.
func TestReservations(t *testing.T) {
	b := newBench(t)
	b.byHand(10, "kube-controller-manager")
	b.recommend("cpu request", "50m")
	b.suspend(true) // the controller's own cycles do nothing
	t.Cleanup(func() { b.suspend(false) })
	b.govern(withAll)
	var calls, now, most atomic.Int32
	r := b.start("a", nil, intercepted(t, func(_ context.Context, _ client.Object, send func() error) error {
		calls.Add(1)
		for n := now.Add(1); n > most.Load(); {
			most.Store(n)
		}
		defer now.Add(-1)
		return send()
	}))
	b.suspend(false)
	start := make(chan struct{})
	results := make(chan error, 10)
	for range 10 {
		go func() {
			<-start
			_, err := r.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName{Name: b.profile}})
			results <- err
		}()
	}
	close(start)
	for range 10 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	b.eventually("all are changed", 20*time.Second, func() error {
		for name, n := range b.changed() {
			if n != 1 {
				return fmt.Errorf("pod %s was changed %d times", name, n)
			}
		}
		return nil
	})
	if n := calls.Load(); n != 10 {
		t.Errorf("%d calls for 10 pods", n)
	}
	t.Logf("at most %d calls at once", most.Load())
}
