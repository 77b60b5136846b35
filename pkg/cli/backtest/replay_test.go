package backtest_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/cli/backtest"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

const (
	day = 24 * time.Hour
	mi  = 1 << 20
)

// steps is a series of five-minute steps.
func steps(n int, use func(i int) (cpu, memory float64)) backtest.Series {
	s := backtest.Series{Name: "made", Step: 5 * time.Minute}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		cpu, memory := use(i)
		s.Samples = append(s.Samples, backtest.Sample{At: start.Add(time.Duration(i) * s.Step), CPU: cpu, Memory: memory})
	}
	return s
}

// fixed sets the same sizes always and counts the OOM kills it is told of.
type fixed struct {
	sizes backtest.Sizes
	kills int
	seen  float64 // largest cpu
}

func (f *fixed) Name() string { return "fixed" }
func (f *fixed) Observe(_ time.Time, _ time.Duration, cpu, _ float64) {
	f.seen = max(f.seen, cpu)
}
func (f *fixed) OOM(time.Time, sample.Amount)           { f.kills++ }
func (f *fixed) Sizes(time.Time) (backtest.Sizes, bool) { return f.sizes, true }

func same(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestReplayCounts(t *testing.T) {
	// Every fourth sample is twice as large.
	s := steps(2*288, func(i int) (float64, float64) {
		if i%4 == 0 {
			return 2, 200 * mi
		}
		return 1, 100 * mi
	})
	f := &fixed{sizes: backtest.Sizes{CPURequest: 1.5, CPULimit: 1.8, MemoryRequest: 150 * mi, MemoryLimit: 180 * mi}}
	got := backtest.Replay(s, day, backtest.Contender{Rule: f, Interval: time.Hour, Threshold: 0.1})[0]
	for name, pair := range map[string][2]float64{
		"cpu over":     {got.CPUOver, 0.25},
		"memory over":  {got.MemoryOver, 0.25},
		"oom severe":   {got.OOMSevere, 0.25},
		"throttled":    {got.Throttled, 0.25},
		"cpu slack":    {got.CPUSlack, 1 - (0.75*1+0.25*1.5)/1.5},
		"memory slack": {got.MemorySlack, 1 - (0.75*100+0.25*150)/150},
		"cpu request":  {got.CPU, 1.5},
		"changes":      {got.Changes, 0},
		"unsized":      {got.Unsized, 0},
	} {
		if !same(pair[0], pair[1]) {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	if f.seen != 2 && f.seen != 1.8 {
		t.Errorf("largest cpu seen %v", f.seen)
	}
	if f.kills < 140 {
		t.Errorf("%d kills told", f.kills)
	}
}

func settings(t *testing.T, change func(*v1alpha1.ResourcePolicySpec)) policy.Settings {
	t.Helper()
	spec := v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{
		{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldRequest},
		{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldRequest},
		{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldLimit},
	}}
	if change != nil {
		change(&spec)
	}
	s, err := policy.SettingsOf(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSteadyUseIsSizedWithItsHeadroomAlone(t *testing.T) {
	s := steps(3*288, func(int) (float64, float64) { return 1, 400 * mi })
	scores := backtest.Run([]backtest.Series{s}, backtest.NamedPolicy{Name: "policy", Settings: settings(t, nil)})
	want := 1 - 1/1.15
	for _, i := range []int{0, 1} { // the policy and VPA
		if got := scores[i]; math.Abs(got.CPUSlack-want) > 0.01 || math.Abs(got.MemorySlack-want) > 0.01 || got.CPUOver != 0 || got.OOMSevere != 0 {
			t.Errorf("%s: %+v", got.Rule, got)
		}
	}
	if got := scores[3]; math.Abs(got.CPUSlack-0.3) > 0.01 { // Kubecost
		t.Errorf("%s: %+v", got.Rule, got)
	}
}

func TestMemoryThatDoublesIsCaughtUpWith(t *testing.T) {
	s := steps(6*288, func(i int) (float64, float64) {
		if i > 3*288 {
			return 1, 1000 * mi
		}
		return 1, 400 * mi
	})
	scores := backtest.Run([]backtest.Series{s}, backtest.NamedPolicy{Name: "policy", Settings: settings(t, nil)})
	// 460 → 560 → 672 → 806 → 967 → 1160 MiB: five kills in 5 days of 288 samples.
	if got := scores[0].OOMSevere; got > 5.5/(5*288) || got == 0 {
		t.Errorf("%v of the samples are above the limit", got)
	}
	if got := scores[0].Changes; got > 3 {
		t.Errorf("%v changes a day", got)
	}
}

func TestNotEnoughHistorySetsNothing(t *testing.T) {
	s := steps(2*288, func(i int) (float64, float64) { return 1, 400 * mi })
	p := settings(t, func(s *v1alpha1.ResourcePolicySpec) {
		least := int32(100_000)
		s.Readiness = &v1alpha1.Readiness{MinSamples: &least}
	})
	got := backtest.Run([]backtest.Series{s}, backtest.NamedPolicy{Name: "policy", Settings: p})[0]
	if got.Unsized != 1 || !math.IsNaN(got.CPUSlack) {
		t.Errorf("%+v", got)
	}
}

func TestWrite(t *testing.T) {
	s := steps(3*288, func(int) (float64, float64) { return 1, math.NaN() })
	scores := backtest.Run([]backtest.Series{s}, backtest.NamedPolicy{Name: "mine", Settings: settings(t, nil)})
	for format, want := range map[backtest.Format]string{
		backtest.Table: "mine ", backtest.Markdown: "| mine | 13.", backtest.JSON: `"rule": "mine"`,
	} {
		var out bytes.Buffer
		if err := backtest.Write(&out, scores, format); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %s", format, err, out.String())
		}
		if format == backtest.JSON && !json.Valid(out.Bytes()) {
			t.Error("not JSON")
		}
	}
	if err := backtest.Write(&bytes.Buffer{}, scores, "xml"); err == nil {
		t.Error("no error for an unknown format")
	}
}

func traces(t *testing.T) []backtest.Series {
	t.Helper()
	files, err := filepath.Glob("../../../test/testdata/traces/*.csv")
	if err != nil || len(files) != 3 {
		t.Fatalf("the traces under test/testdata/traces: %v, %v", files, err)
	}
	var all []backtest.Series
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := backtest.ReadTrace(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, s...)
	}
	return all
}

// TestPresets holds the shipped presets to what their comments promise, on the vendored traces.
func TestPresets(t *testing.T) {
	var policies []backtest.NamedPolicy
	for _, name := range []string{"cost", "balanced", "safe"} {
		text, err := os.ReadFile("../../../charts/plimsoll/files/presets/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var p v1alpha1.ClusterResourcePolicy
		if err := yaml.UnmarshalStrict(text, &p); err != nil {
			t.Fatal(err)
		}
		s, err := policy.SettingsOf(p.Spec)
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, backtest.NamedPolicy{Name: p.Name, Settings: s})
	}
	scores := backtest.Run(traces(t), policies...)
	cost, balanced, safe, vpa := scores[0], scores[1], scores[2], scores[3]
	t.Logf("cost %+v\nbalanced %+v\nsafe %+v\nVPA %+v", cost, balanced, safe, vpa)
	for _, promise := range []struct {
		what string
		kept bool
	}{
		{"cost: cpu above its request in about two per cent of the time", cost.CPUOver < 0.025 && cost.MemoryOver < 0.025},
		{"balanced: above its requests in less than one per cent", balanced.CPUOver < 0.01 && balanced.MemoryOver < 0.01},
		{"safe: cpu above its request in less than half a per cent, memory nearly never", safe.CPUOver < 0.005 && safe.MemoryOver < 0.0005},
		{"nearly nothing above a memory limit", max(cost.OOMSevere, balanced.OOMSevere, safe.OOMSevere) < 0.0005},
		{"cost reserves least, safe most", cost.CPUSlack < balanced.CPUSlack && balanced.CPUSlack < safe.CPUSlack && cost.MemorySlack < balanced.MemorySlack && balanced.MemorySlack < safe.MemorySlack},
		{"balanced leaves no more slack than VPA, by a point, and is exceeded less often", balanced.CPUSlack <= vpa.CPUSlack+0.01 && balanced.CPUOver < vpa.CPUOver && balanced.MemorySlack < vpa.MemorySlack},
		{"sizes change less than once a day", max(cost.Changes, balanced.Changes, safe.Changes) < 1},
	} {
		if !promise.kept {
			t.Errorf("not kept: %s", promise.what)
		}
	}
}
