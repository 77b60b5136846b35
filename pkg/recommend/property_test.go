package recommend_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

var resources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceEphemeralStorage, corev1.ResourceMemory}

func scale(r corev1.ResourceName) float64 {
	if r == corev1.ResourceCPU {
		return 1
	}
	return 1 << 30
}

func drawRule(t *rapid.T, r corev1.ResourceName, f v1alpha1.ResourceField) policy.Rule {
	rule := policy.Rule{Resource: r, Field: f, Headroom: rapid.Float64Range(1, 10).Draw(t, "headroom")}
	rule.Aggregation = rapid.SampledFrom([]policy.Aggregation{policy.Average, policy.Percentile, policy.Max, policy.Peak}).Draw(t, "aggregation")
	if rule.Aggregation == policy.Percentile {
		rule.Quantile = rapid.Float64Range(0.5, 0.999).Draw(t, "quantile")
	}
	rule.Min = sample.Amount(rapid.Float64Range(0, 2).Draw(t, "min") * scale(r))
	if rapid.Bool().Draw(t, "capped") {
		rule.Max = max(rule.Min, sample.Amount(rapid.Float64Range(0.002, 8).Draw(t, "max")*scale(r)))
	}
	return rule
}

func drawSeries(t *rapid.T) recommend.Series {
	var s recommend.Series
	for _, r := range sample.Resources {
		if rapid.IntRange(0, 3).Draw(t, "measured") == 0 {
			continue
		}
		s[r] = &sketch.Sketch{}
		for range rapid.IntRange(0, 8).Draw(t, "samples") {
			s[r].Add(rapid.Float64Range(0, 4).Draw(t, "value")*scale(r.KubeName()), rapid.Float64Range(1, 1e6).Draw(t, "weight"))
		}
	}
	return s
}

func drawInput(t *rapid.T) recommend.Input {
	s := defaults()
	s.Rules = nil
	for _, r := range resources {
		for _, f := range []v1alpha1.ResourceField{v1alpha1.FieldLimit, v1alpha1.FieldRequest} {
			if rapid.IntRange(0, 3).Draw(t, "set") > 0 {
				s.Rules = append(s.Rules, drawRule(t, r, f))
			}
		}
	}
	in := recommend.Input{Settings: s, Now: now, Allocatable: map[corev1.ResourceName]sample.Amount{}}
	for _, r := range resources {
		if rapid.Bool().Draw(t, "nodes known") {
			in.Allocatable[r] = sample.Amount(rapid.Float64Range(0.5, 16).Draw(t, "allocatable") * scale(r))
		}
	}
	c := recommend.Container{Name: "app", Series: drawSeries(t), Startup: drawSeries(t), Limits: map[corev1.ResourceName]sample.Amount{}}
	for range rapid.IntRange(0, 5).Draw(t, "kills") {
		c.Kills = append(c.Kills, recommend.Kill{
			Time:  now.Add(-time.Duration(rapid.Int64Range(-60, 200*3600).Draw(t, "age")) * time.Second),
			Limit: sample.Amount(rapid.Float64Range(0, 8*gi).Draw(t, "limit")),
			Usage: sample.Amount(rapid.Float64Range(0, 8*gi).Draw(t, "usage")),
			Node:  rapid.IntRange(0, 4).Draw(t, "node") == 0,
		})
	}
	in.Containers = []recommend.Container{c}
	return in
}

func TestPropertyBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		r := recommend.Compute(in)
		rules := map[policy.RuleKey]policy.Rule{}
		for _, rule := range in.Settings.Rules {
			rules[policy.RuleKey{Resource: rule.Resource, Field: rule.Field}] = rule
		}
		values := map[policy.RuleKey]sample.Amount{}
		for _, rec := range r.Containers[0].Recommendations {
			key := policy.RuleKey{Resource: rec.Resource, Field: rec.Field}
			rule := rules[key]
			values[key] = rec.Value
			if !(rec.Value > 0) {
				t.Fatalf("%v is %v", key, rec.Value)
			}
			if rule.Max > 0 && rec.Value > rule.Max {
				t.Fatalf("%v: %v is above the policy's max %v", key, rec.Value, rule.Max)
			}
			if a := in.Allocatable[rec.Resource]; a > 0 && rec.Value > a {
				t.Fatalf("%v: %v is above the node's %v", key, rec.Value, a)
			}
			lowered := rec.Reason == recommend.LoweredToLimit || rec.Reason == recommend.CappedByNode
			if rec.Value < rule.Min && !lowered {
				t.Fatalf("%v: %v is below the policy's min %v (%s)", key, rec.Value, rule.Min, rec.Reason)
			}
			if last := rec.Steps[len(rec.Steps)-1]; last.Value != rec.Value {
				t.Fatalf("%v: the last step says %v, the value is %v", key, last.Value, rec.Value)
			}
			if s := rec.Short(); len(s) > 512 || s == "" || !utf8.ValidString(s) {
				t.Fatalf("%v: the short form has %d bytes: %q", key, len(s), s)
			}
			steps := recommend.ParseShort(rec.Short())
			if last := steps[len(steps)-1]; !strings.HasSuffix(rec.Short(), "…") && !rec.Share.Censored && last.Value != recommend.Format(rec.Value, rec.Resource) {
				t.Fatalf("%v: the short form ends with %+v, the value is %v", key, last, rec.Value)
			}
			if rec.Share.Above < 0 || rec.Share.Above > 1 {
				t.Fatalf("%v: share %v", key, rec.Share.Above)
			}
		}
		for _, name := range resources {
			request := values[policy.RuleKey{Resource: name, Field: v1alpha1.FieldRequest}]
			limit, ok := values[policy.RuleKey{Resource: name, Field: v1alpha1.FieldLimit}]
			if ok && request > limit {
				t.Fatalf("%s: request %v above limit %v", name, request, limit)
			}
		}
	})
}

func TestPropertyOrderOfKillsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want := recommend.Compute(in).Explain()
		in.Containers[0].Kills = rapid.Permutation(in.Containers[0].Kills).Draw(t, "order")
		if diff := cmp.Diff(want, recommend.Compute(in).Explain(), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("another order gives another answer:\n%s", diff)
		}
	})
}

func TestPropertyKillsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		in.Containers[0].Series, in.Containers[0].Startup = recommend.Series{}, recommend.Series{}
		var most sample.Amount
		for _, k := range in.Containers[0].Kills {
			limit := k.Limit
			if limit == 0 {
				limit = k.Usage
			}
			most = max(most, limit*1.2, limit+100*mi)
		}
		for _, rec := range recommend.Compute(in).Containers[0].Recommendations {
			if rec.Estimate > most+mi {
				t.Fatalf("estimate %v after kills that ask for at most %v", rec.Estimate, most)
			}
		}
	})
}

func TestPropertyMonotoneInHeadroom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		less := recommend.Compute(in)
		more := in
		more.Settings.Rules = append([]policy.Rule(nil), in.Settings.Rules...)
		for i := range more.Settings.Rules {
			more.Settings.Rules[i].Headroom *= rapid.Float64Range(1, 3).Draw(t, "factor")
		}
		for i, rec := range recommend.Compute(more).Containers[0].Recommendations {
			if before := less.Containers[0].Recommendations[i]; rec.Value < before.Value {
				t.Fatalf("%s %s falls from %v to %v with more headroom", rec.Resource, rec.Field, before.Value, rec.Value)
			}
		}
	})
}

func TestPropertyStatusFitsTheAPI(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, c := range recommend.Compute(drawInput(t)).Statuses() {
			for _, rec := range c.Recommendations {
				if rec.Value.Sign() <= 0 || len(rec.Explanation) > 512 || len(rec.Reason) > 64 {
					t.Fatalf("%+v", rec)
				}
				if p := string(rec.ShareAbove); p != "" && (!strings.HasSuffix(p, "%") || len(p) > 6) {
					t.Fatalf("share %q", p)
				}
			}
		}
	})
}
