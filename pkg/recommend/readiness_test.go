package recommend_test

import (
	"math"
	"testing"
	"time"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

// uneven has the given mean and coefficient of variation: two equally frequent values, or one rare peak above 1.
func uneven(mean, cv float64) *sketch.Sketch {
	s := &sketch.Sketch{}
	share := 1 / (1 + cv*cv)
	for range 1000 {
		s.Add(0, (1-share)*1000)
		s.Add(mean/share, share*1000)
	}
	return s
}

func TestReadiness(t *testing.T) {
	hours := func(h, m int) func(*recommend.Container) {
		return func(c *recommend.Container) { c.CoveredHours, c.CoveredMinutes = h, m }
	}
	minutes := func(s *policy.Settings) { s.Readiness.MinTimeSpan = 3 * time.Minute }
	tests := map[string]struct {
		settings  func(*policy.Settings)
		container func(*recommend.Container)
		want      recommend.Reason
		message   string
	}{
		"a day of steady use": {want: recommend.EnoughHistory, message: "samples, covered time and variation are as the policy asks"},
		"C47 a minute with 10,000 samples": {
			container: func(c *recommend.Container) {
				c.Series[sample.CPU], c.Series[sample.Memory] = flat(1, 10000), flat(gi, 10000)
				c.CoveredHours, c.CoveredMinutes = 1, 1
			},
			want: recommend.NotEnoughTime, message: `container "app": samples cover at least 0 of 24 hours`,
		},
		"C47 a day old with two samples": {
			container: func(c *recommend.Container) {
				c.Series[sample.CPU], c.Series[sample.Memory] = flat(1, 2), flat(gi, 2)
				c.CoveredHours, c.CoveredMinutes = 2, 2
			},
			want: recommend.NotEnoughSamples, message: `container "app": at least 0 of 250 samples`,
		},
		"hours covered, not age": {
			container: hours(23, 23*60), want: recommend.NotEnoughTime, message: `container "app": samples cover at least 22 of 24 hours`,
		},
		"minutes where the policy asks for less than two hours": {
			settings: minutes, container: hours(1, 2), want: recommend.NotEnoughTime, message: `container "app": samples cover at least 2 of 3 minutes`,
		},
		"minutes reached": {settings: minutes, container: hours(1, 3), want: recommend.EnoughHistory, message: "samples, covered time and variation are as the policy asks"},
		"too variable": {
			container: func(c *recommend.Container) { c.Series[sample.CPU] = uneven(0.5, 2) },
			want:      recommend.TooVariable, message: `container "app": cpu varies by more than 1.5 times its mean`,
		},
		"C45 a near-idle resource may vary": {
			container: func(c *recommend.Container) { c.Series[sample.CPU] = uneven(0.02, 6) },
			want:      recommend.EnoughHistory, message: "samples, covered time and variation are as the policy asks",
		},
		"a resource the policy does not set may vary": {
			settings:  func(s *policy.Settings) { s.Rules = s.Rules[2:] },
			container: func(c *recommend.Container) { c.Series[sample.CPU] = uneven(0.5, 2) },
			want:      recommend.EnoughHistory, message: "samples, covered time and variation are as the policy asks",
		},
		"C48 a CronJob's short runs, hour after hour": {
			container: func(c *recommend.Container) {
				c.Running, c.CoveredHours, c.CoveredMinutes = false, 24, 24
				c.Series = recommend.Series{sample.CPU: flat(0.5, 24*40), sample.Memory: flat(gi, 24*40)}
			},
			want: recommend.EnoughHistory, message: "samples, covered time and variation are as the policy asks",
		},
		"no samples": {
			container: func(c *recommend.Container) { c.Series = recommend.Series{} },
			want:      recommend.NoSamples, message: `container "app": nothing was measured yet`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, c := defaults(), container("app", 0.1, 100*mi)
			if tt.settings != nil {
				tt.settings(&s)
			}
			if tt.container != nil {
				tt.container(&c)
			}
			got := recommend.Compute(input(s, c))
			if got.Reason != tt.want || got.Message != tt.message || got.Sufficient != (tt.want == recommend.EnoughHistory) {
				t.Errorf("got %v %s %q, want %s %q", got.Sufficient, got.Reason, got.Message, tt.want, tt.message)
			}
		})
	}
}

func TestC12ARenamedContainerLeavesReadiness(t *testing.T) {
	old := container("old", 0.1, 100*mi)
	old.Running, old.CoveredHours = false, 1
	if got := recommend.Compute(input(defaults(), old, container("new", 0.1, 100*mi))); !got.Sufficient {
		t.Errorf("the old name holds the profile back: %s", got.Message)
	}
	if got := recommend.Compute(input(defaults(), old)); got.Reason != recommend.NotEnoughTime {
		t.Errorf("with no pod at all every series counts: got %s", got.Reason)
	}
}

func TestVariationAtTheEdgeDoesNotFlap(t *testing.T) {
	c := container("app", 0.1, 100*mi)
	c.Series[sample.CPU] = uneven(0.5, 1.55)
	in := input(defaults(), c)
	if got := recommend.Compute(in); got.Reason != recommend.TooVariable {
		t.Errorf("a variation of 1.55 where 1.5 is allowed: %s", got.Reason)
	}
	in.WasSufficient = true
	if got := recommend.Compute(in); !got.Sufficient {
		t.Errorf("taken back for a variation of 1.55 where 1.5 is allowed: %s", got.Reason)
	}
	in.Containers[0].Series[sample.CPU] = uneven(0.5, 1.7)
	if got := recommend.Compute(in); got.Sufficient {
		t.Error("still Sufficient at a variation of 1.7")
	}
}

func TestNoContainers(t *testing.T) {
	if got := recommend.Compute(input(defaults())); got.Sufficient || got.Reason != recommend.NoSamples {
		t.Errorf("got %+v", got)
	}
}

func TestUnevenHelper(t *testing.T) {
	s := uneven(0.5, 2)
	if cv := math.Sqrt(s.Variance()) / s.Mean(); math.Abs(cv-2) > 0.01 || math.Abs(s.Mean()-0.5) > 0.001 {
		t.Fatalf("mean %v, variation %v", s.Mean(), cv)
	}
}
