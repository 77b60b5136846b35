package recommend_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// defaults are a policy that sets all four fields of cpu and memory with the documented defaults.
func defaults() policy.Settings {
	rule := func(r corev1.ResourceName, f v1alpha1.ResourceField) policy.Rule {
		p := policy.Rule{Resource: r, Field: f, Aggregation: policy.Percentile, Quantile: 0.95, Headroom: 1.15, Min: 0.01}
		if f == v1alpha1.FieldLimit {
			p.Aggregation, p.Quantile = policy.Peak, 0
		}
		if r != corev1.ResourceCPU {
			p.Min = 16 * mi
		}
		return p
	}
	return policy.Settings{
		Rules: []policy.Rule{
			rule(corev1.ResourceCPU, v1alpha1.FieldLimit), rule(corev1.ResourceCPU, v1alpha1.FieldRequest),
			rule(corev1.ResourceMemory, v1alpha1.FieldLimit), rule(corev1.ResourceMemory, v1alpha1.FieldRequest),
		},
		OOM: policy.OOM{Bump: 1.2, MinBump: 100 * mi, HalfLife: 24 * time.Hour},
		Readiness: policy.Readiness{
			MinSamples: 250, MinTimeSpan: 24 * time.Hour, MaxCV: 1.5,
			CVMeanFloor: map[sample.Resource]sample.Amount{sample.CPU: 0.025, sample.Memory: 25 * mi},
		},
		Retention: policy.Retention{Window: 192 * time.Hour, HalfLife: 24 * time.Hour},
	}
}

// with changes one rule of the settings.
func with(s policy.Settings, r corev1.ResourceName, f v1alpha1.ResourceField, change func(*policy.Rule)) policy.Settings {
	s.Rules = append([]policy.Rule(nil), s.Rules...)
	for i := range s.Rules {
		if s.Rules[i].Resource == r && s.Rules[i].Field == f {
			change(&s.Rules[i])
		}
	}
	return s
}

// flat is n samples of one value, a second each.
func flat(value float64, n int) *sketch.Sketch {
	s := &sketch.Sketch{}
	for range n {
		s.Add(value, 1000)
	}
	return s
}

// container has a day of steady use.
func container(name string, cores, bytes float64) recommend.Container {
	return recommend.Container{
		Name: name, Running: true, CoveredHours: 24, CoveredMinutes: 24 * 60,
		Series: recommend.Series{
			sample.CPU: flat(cores, 1000), sample.CPUBurst: flat(cores, 1000),
			sample.Memory: flat(bytes, 1000), sample.MemoryPeak: flat(bytes, 1000),
		},
	}
}

func input(s policy.Settings, cs ...recommend.Container) recommend.Input {
	return recommend.Input{Settings: s, Containers: cs, Now: now}
}

// find returns one recommendation of the first container, or nil.
func find(r recommend.Result, name corev1.ResourceName, f v1alpha1.ResourceField) *recommend.Recommendation {
	for i, rec := range r.Containers[0].Recommendations {
		if rec.Resource == name && rec.Field == f {
			return &r.Containers[0].Recommendations[i]
		}
	}
	return nil
}

func need(t *testing.T, r recommend.Result, name corev1.ResourceName, f v1alpha1.ResourceField) *recommend.Recommendation {
	t.Helper()
	rec := find(r, name, f)
	if rec == nil {
		t.Fatalf("no recommendation for %s %s", name, f)
	}
	return rec
}

func near(got, want sample.Amount) bool {
	return got >= want*0.989 && got <= want*1.011+sample.Amount(1)
}
