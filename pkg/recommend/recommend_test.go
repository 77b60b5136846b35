package recommend_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

func TestChain(t *testing.T) {
	bursty := container("app", 0.1, 100*mi)
	for range 1000 {
		bursty.Series[sample.CPUBurst].Add(0.8, 1000)
	}
	bursty.Series[sample.MemoryPeak].Add(180*mi, 1000)
	starting := container("app", 0.1, 100*mi)
	starting.Startup = recommend.Series{sample.CPU: flat(2, 60), sample.Memory: flat(300*mi, 60), sample.MemoryPeak: flat(310*mi, 60)}
	cpuCap := func(r *policy.Rule) { r.Max = 0.05 }
	node := map[corev1.ResourceName]sample.Amount{corev1.ResourceCPU: 0.06, corev1.ResourceMemory: 90 * mi}

	tests := map[string]struct {
		in       recommend.Input
		resource corev1.ResourceName
		field    v1alpha1.ResourceField
		want     sample.Amount
		reason   recommend.Reason
	}{
		"a request is the percentile with headroom":     {input(defaults(), container("app", 0.1, 100*mi)), corev1.ResourceCPU, v1alpha1.FieldRequest, 0.115, recommend.Estimated},
		"memory likewise, in whole mebibytes":           {input(defaults(), container("app", 0.1, 100*mi)), corev1.ResourceMemory, v1alpha1.FieldRequest, 115 * mi, recommend.Estimated},
		"peak sees what happens between samples (cpu)":  {input(defaults(), bursty), corev1.ResourceCPU, v1alpha1.FieldLimit, 0.92, recommend.Estimated},
		"peak sees what happens between samples":        {input(defaults(), bursty), corev1.ResourceMemory, v1alpha1.FieldLimit, 207 * mi, recommend.Estimated},
		"C44 start-up is a floor for the limit":         {input(defaults(), starting), corev1.ResourceMemory, v1alpha1.FieldLimit, 357 * mi, recommend.RaisedByStartup},
		"C44 start-up leaves the request alone":         {input(defaults(), starting), corev1.ResourceMemory, v1alpha1.FieldRequest, 115 * mi, recommend.Estimated},
		"C40 an idle container gets the policy's floor": {input(defaults(), container("app", 0, 0)), corev1.ResourceCPU, v1alpha1.FieldRequest, 0.01, recommend.FlooredByPolicy},
		"C40 idle memory likewise":                      {input(defaults(), container("app", 0, 0)), corev1.ResourceMemory, v1alpha1.FieldLimit, 16 * mi, recommend.FlooredByPolicy},
		"a cap holds": {
			input(with(defaults(), corev1.ResourceCPU, v1alpha1.FieldRequest, cpuCap), container("app", 0.1, 100*mi)),
			corev1.ResourceCPU, v1alpha1.FieldRequest, 0.05, recommend.CappedByPolicy,
		},
		"a request is not above its limit": {
			input(with(defaults(), corev1.ResourceCPU, v1alpha1.FieldLimit, cpuCap), container("app", 0.1, 100*mi)),
			corev1.ResourceCPU, v1alpha1.FieldRequest, 0.05, recommend.LoweredToLimit,
		},
		"no node is larger": {
			recommend.Input{Settings: defaults(), Containers: []recommend.Container{container("app", 0.1, 100*mi)}, Allocatable: node, Now: now},
			corev1.ResourceMemory, v1alpha1.FieldLimit, 90 * mi, recommend.CappedByNode,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := need(t, recommend.Compute(tt.in), tt.resource, tt.field)
			if !near(got.Value, tt.want) || got.Reason != tt.reason {
				t.Errorf("got %s (%s), want %s (%s): %s", recommend.Format(got.Value, tt.resource), got.Reason,
					recommend.Format(tt.want, tt.resource), tt.reason, got.Short())
			}
		})
	}
}

func TestFieldsThatAreNotListedGetNoRecommendation(t *testing.T) {
	s := defaults()
	s.Rules = s.Rules[:1]
	got := recommend.Compute(input(s, container("app", 0.1, 100*mi)))
	if n := len(got.Containers[0].Recommendations); n != 1 {
		t.Errorf("%d recommendations, want the one rule's", n)
	}
}

func TestNothingMeasuredNothingRecommended(t *testing.T) {
	got := recommend.Compute(input(defaults(), recommend.Container{Name: "app", Running: true}))
	if len(got.Containers[0].Recommendations) != 0 || got.Reason != recommend.NoSamples {
		t.Errorf("got %+v", got)
	}
}

func TestRequestUnderTheLimitThePodHas(t *testing.T) {
	s := defaults()
	s.Rules = s.Rules[1:2] // the cpu request alone
	c := container("app", 0.5, 100*mi)
	c.Limits = map[corev1.ResourceName]sample.Amount{corev1.ResourceCPU: 0.5}
	if got := need(t, recommend.Compute(input(s, c)), corev1.ResourceCPU, v1alpha1.FieldRequest); got.Value != 0.5 || got.Reason != recommend.LoweredToLimit {
		t.Errorf("got %v %s", got.Value, got.Reason)
	}
}

func TestC40FloorIsNamedInTheExplanation(t *testing.T) {
	got := need(t, recommend.Compute(input(defaults(), container("app", 0, 0))), corev1.ResourceMemory, v1alpha1.FieldRequest)
	if !strings.Contains(got.Short(), "policy's min 16Mi") {
		t.Errorf("the floor is not named: %s", got.Short())
	}
	s := with(defaults(), corev1.ResourceMemory, v1alpha1.FieldRequest, func(r *policy.Rule) { r.Min = 0 })
	if got := need(t, recommend.Compute(input(s, container("app", 0, 0))), corev1.ResourceMemory, v1alpha1.FieldRequest); got.Value != mi {
		t.Errorf("without a floor: %v bytes, want one unit", got.Value)
	}
}

func TestC27EverySampleCounts(t *testing.T) {
	c := container("app", 0.1, 100*mi)
	c.Series[sample.CPU] = flat(0.1, 10000)
	for _, u := range recommend.Compute(input(defaults(), c)).Containers[0].Usage {
		if u.Resource == sample.CPU && u.Samples != 10000 {
			t.Errorf("%d samples, want 10000", u.Samples)
		}
	}
}

func TestC48WeightIsTimeNotNumber(t *testing.T) {
	// A minute sampled every 10 ms at 2 cores, and 99 minutes sampled every second at 0.1.
	s := flat(0.1, 99*60)
	for range 6000 {
		s.Add(2, 10)
	}
	c := container("app", 0.1, 100*mi)
	c.Series[sample.CPU] = s
	got := need(t, recommend.Compute(input(defaults(), c)), corev1.ResourceCPU, v1alpha1.FieldRequest)
	if !near(got.Value, 0.115) {
		t.Errorf("request %v, want 115m: the burst is one percent of the time", got.Value)
	}
}

func TestShareAboveALimit(t *testing.T) {
	burst := &sketch.Sketch{}
	burst.Add(0, 900_000)  // idle windows count for nothing
	burst.Add(0.2, 75_000) // three quarters of the busy time
	burst.Add(0.8, 25_000)
	limit := func(most sample.Amount) policy.Settings {
		return with(defaults(), corev1.ResourceCPU, v1alpha1.FieldLimit, func(r *policy.Rule) { r.Max = most })
	}
	tests := map[string]struct {
		max, quota sample.Amount
		want       float64
		censored   bool
	}{
		"a limit between the bursts":              {0.5, 0, 0.25, false},
		"a limit above all use":                   {1, 0, 0, false},
		"a limit below all use":                   {0.1, 0, 1, false},
		"below the quota it ran with":             {0.5, 0.8, 0.25, false},
		"above the quota it ran against":          {0.9, 0.8, 0, true},
		"above a quota it never came near":        {0.9, 0.88, 0, false},
		"at the quota the use is no longer above": {0.8, 0.8, 0, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := container("app", 0.1, 100*mi)
			c.Series[sample.CPUBurst] = burst
			c.Limits = map[corev1.ResourceName]sample.Amount{corev1.ResourceCPU: tt.quota}
			got := need(t, recommend.Compute(input(limit(tt.max), c)), corev1.ResourceCPU, v1alpha1.FieldLimit).Share
			if !got.Known || got.Above < tt.want-0.01 || got.Above > tt.want+0.01 || got.Censored != tt.censored {
				t.Errorf("got %+v, want %v, censored %v", got, tt.want, tt.censored)
			}
		})
	}

	// A throttled window's use is the quota's; it is recorded just above it, and so counts for every limit up to it.
	throttled := container("app", 0.1, 100*mi)
	throttled.Series[sample.CPUBurst] = &sketch.Sketch{}
	throttled.Series[sample.CPUBurst].Add(0.2, 75_000)
	throttled.Series[sample.CPUBurst].Add(0.8*(1+2*sketch.RelativeError), 25_000)
	throttled.Limits = map[corev1.ResourceName]sample.Amount{corev1.ResourceCPU: 0.8}
	for most, want := range map[sample.Amount]float64{0.4: 0.25, 0.8: 0.25, 0.85: 0} {
		got := need(t, recommend.Compute(input(limit(most), throttled)), corev1.ResourceCPU, v1alpha1.FieldLimit).Share
		if got.Above < want-0.01 || got.Above > want+0.01 || got.Censored != (most > 0.8) {
			t.Errorf("limit %v: got %+v, want %v", most, got, want)
		}
	}

	c := container("app", 0.1, 100*mi)
	for range 111 {
		c.Series[sample.Memory].Add(200*mi, 1000)
	}
	s := with(defaults(), corev1.ResourceMemory, v1alpha1.FieldLimit, func(r *policy.Rule) { r.Max = 150 * mi })
	if got := need(t, recommend.Compute(input(s, c)), corev1.ResourceMemory, v1alpha1.FieldLimit).Share; got.Above < 0.09 || got.Above > 0.11 {
		t.Errorf("memory: share above %v, want 0.1", got.Above)
	}
}

func FuzzParseShort(f *testing.F) {
	f.Add("p95 of 500 samples covering 24 h = 200m; × headroom 1.15 = 230m; use above the present limit does not show")
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		for _, s := range recommend.ParseShort(text) {
			n += len(s.Input) + len(s.Value)
		}
		if n > len(text) {
			t.Errorf("%d bytes out of %d", n, len(text))
		}
	})
}

func TestSummary(t *testing.T) {
	r := recommend.Compute(input(defaults(), container("a", 0.1, 100*mi), container("b", 0.2, 100*mi)))
	if got := r.Summary(corev1.ResourceMemory); got != "230Mi/230Mi" {
		t.Errorf("memory: %q", got)
	}
	s := defaults()
	s.Rules = s.Rules[1:2]
	if got := recommend.Compute(input(s, container("a", 0.1, 100*mi))).Summary(corev1.ResourceCPU); !strings.HasSuffix(got, "m/-") {
		t.Errorf("cpu request alone: %q", got)
	}
	if got := (recommend.Result{}).Summary(corev1.ResourceCPU); got != "" {
		t.Errorf("nothing: %q", got)
	}
}

func TestExplainNamesEveryStep(t *testing.T) {
	c := container("app", 0.1, 100*mi)
	c.Kills = []recommend.Kill{{Time: now.Add(-10 * time.Minute), Limit: 128 * mi}}
	s := with(defaults(), corev1.ResourceMemory, v1alpha1.FieldLimit, func(r *policy.Rule) { r.Max = 200 * mi })
	e := recommend.Compute(input(s, c)).Explain()
	var ops []recommend.Operation
	for _, d := range e.Containers[0].Recommendations {
		if d.Resource == corev1.ResourceMemory && d.Field == v1alpha1.FieldLimit {
			for _, st := range d.Steps {
				ops = append(ops, st.Operation)
				if st.Input == "" || st.Value == "" {
					t.Errorf("step %s says nothing", st.Operation)
				}
			}
		}
	}
	want := []recommend.Operation{recommend.OpAggregate, recommend.OpHeadroom, recommend.OpOOM, recommend.OpCap, recommend.OpRound}
	if len(ops) != len(want) {
		t.Fatalf("steps %v, want %v", ops, want)
	}
	for i := range want {
		if ops[i] != want[i] {
			t.Errorf("step %d is %s, want %s", i, ops[i], want[i])
		}
	}
}
