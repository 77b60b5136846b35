package recommend_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/controller/recommend"
)

// TestWatches runs the controller with a manager whose interval is far away: only events trigger it.
func TestWatches(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	mgr, err := ctrl.NewManager(api.Config, ctrl.Options{Scheme: scheme(t), Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	b.options.Client, b.options.Metrics, b.options.Interval = mgr.GetClient(), recommend.NewMetrics(registry), time.Hour
	if err := recommend.New(b.options).SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	b.eventually("a new profile is computed", func() bool {
		return b.value(corev1.ResourceCPU, v1alpha1.FieldRequest) == "230m"
	})
	b.edit(func(s *v1alpha1.ResourcePolicySpec) { s.Resources[0].Headroom, s.Resources[1].Headroom = "2", "2" })
	b.index()
	b.eventually("a policy's edit is used", func() bool {
		return b.value(corev1.ResourceCPU, v1alpha1.FieldRequest) == "400m"
	})
	if n := counter(t, registry, "plimsoll_recommend_status_writes_total"); n != 2 {
		t.Errorf("%v status writes, want one for the profile and one for the edit", n)
	}
	if n := counter(t, registry, "plimsoll_recommend_total"); n > 3 {
		t.Errorf("%v computations: status writes trigger more", n)
	}
}

func (b *bench) eventually(what string, met func() bool) {
	b.t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			b.t.Fatalf("%s: not within 20 s; status %+v", what, b.get().Status)
		}
	}
}

// counter sums a counter over its labels.
func counter(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name && f.GetType() == dto.MetricType_COUNTER {
			for _, m := range f.Metric {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
