package resize_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"plimsoll.dev/webhook/controller/resize"
)

// series reads "name{label=value,…}" → value of everything in a registry.
func series(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			reason := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "reason" {
					reason = " " + l.GetValue()
				}
			}
			out[f.GetName()+reason] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	b := newBench(t)
	b.govern(withAll)
	b.byHand(3, "kube-controller-manager")
	b.actuate()
	b.recommend("cpu request", "50m")
	r := prometheus.NewRegistry()
	b.start("a", nil, func(o *resize.Options) { o.Metrics = resize.NewMetrics(r) })
	want := map[string]float64{
		"plimsoll_resize_applies_total": 3, "plimsoll_resize_outcomes_total Change": 3, "plimsoll_resize_outcomes_total Resized": 3,
		"plimsoll_resize_pods Watching": 3,
	}
	b.eventually("the series", 20*time.Second, func() error {
		if diff := cmp.Diff(want, series(t, r)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
	wp := b.profileObject()
	if err := b.client.Delete(context.Background(), wp); err != nil {
		t.Fatal(err)
	}
	b.eventually("they go with the profile", 20*time.Second, func() error {
		if diff := cmp.Diff(map[string]float64{"plimsoll_resize_applies_total": 3}, series(t, r)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}
