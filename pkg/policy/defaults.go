package policy

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
)

// DefaultSettings returns what a policy that says nothing says: measure, set nothing.
func DefaultSettings() Settings {
	s, _ := SettingsOf(v1alpha1.ResourcePolicySpec{})
	return s
}

// SettingsOf reads a policy's decisions, this release's defaults filled in. The
// error names every field that is wrong; such a field has its default in the result.
func SettingsOf(spec v1alpha1.ResourcePolicySpec) (Settings, error) {
	var p parser
	s := p.settings(field.NewPath("spec"), spec)
	return s, p.errs.ToAggregate()
}

const day = 24 * time.Hour

func (p *parser) settings(path *field.Path, spec v1alpha1.ResourcePolicySpec) Settings {
	return Settings{
		Sampling:  p.sampling(path.Child("sampling"), orZero(spec.Sampling)),
		Rules:     p.rules(path.Child("resources"), spec.Resources),
		OOM:       p.oom(path.Child("oom"), orZero(spec.OOM)),
		Readiness: p.readiness(path.Child("readiness"), orZero(spec.Readiness)),
		Retention: p.retention(path.Child("retention"), orZero(spec.Retention)),
		Apply:     p.apply(path.Child("apply"), orZero(spec.Apply)),
		Resize:    p.resize(path.Child("resize"), orZero(spec.Resize)),
	}
}

func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func (p *parser) sampling(path *field.Path, in v1alpha1.Sampling) Sampling {
	out := Sampling{
		Interval: p.duration(path.Child("interval"), in.Interval, time.Second, 200*time.Millisecond, time.Minute),
		Flush:    p.duration(path.Child("flush"), in.Flush, 15*time.Second, time.Second, 5*time.Minute),
		Startup:  p.duration(path.Child("startup"), in.Startup, 2*time.Minute, 0, time.Hour),
		Memory:   cmp.Or(in.Memory, v1alpha1.MemoryWorkingSet),
		Cgroup:   len(in.Sources) == 0,
		EBPF:     len(in.Sources) == 0,
	}
	for i, s := range in.Sources {
		switch s {
		case v1alpha1.SourceCgroup:
			out.Cgroup = true
		case v1alpha1.SourceEBPF:
			out.EBPF = true
		default:
			p.errs = append(p.errs, field.NotSupported(path.Child("sources").Index(i), s,
				[]v1alpha1.SamplingSource{v1alpha1.SourceCgroup, v1alpha1.SourceEBPF}))
		}
	}
	if out.Memory != v1alpha1.MemoryWorkingSet && out.Memory != v1alpha1.MemoryAnon {
		p.errs = append(p.errs, field.NotSupported(path.Child("memory"), in.Memory,
			[]v1alpha1.MemoryMeasure{v1alpha1.MemoryWorkingSet, v1alpha1.MemoryAnon}))
		out.Memory = v1alpha1.MemoryWorkingSet
	}
	return out
}

func (p *parser) rules(path *field.Path, in []v1alpha1.ResourceRule) []Rule {
	out := make([]Rule, 0, len(in))
	seen := map[RuleKey]bool{}
	for i, r := range in {
		at := path.Index(i)
		key := RuleKey{Resource: r.Resource, Field: r.Field}
		if seen[key] {
			p.errs = append(p.errs, field.Duplicate(at, fmt.Sprintf("%s %s", r.Resource, r.Field)))
			continue
		}
		seen[key] = true
		if rule, ok := p.rule(at, r); ok {
			out = append(out, rule)
		}
	}
	slices.SortFunc(out, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Field, b.Field))
	})
	return out
}

func (p *parser) rule(path *field.Path, in v1alpha1.ResourceRule) (Rule, bool) {
	least := sample.Amount(16 << 20)
	switch in.Resource {
	case corev1.ResourceCPU:
		least = 0.010
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		p.errs = append(p.errs, field.NotSupported(path.Child("resource"), in.Resource,
			[]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}))
		return Rule{}, false
	}
	out := Rule{
		Resource: in.Resource, Field: in.Field,
		Headroom: p.decimal(path.Child("headroom"), in.Headroom, 1.15, 1, 10),
		Max:      p.amount(path.Child("max"), in.Max, 0),
	}
	p.usableMax(path.Child("max"), in, &out)
	if out.Max > 0 {
		least = min(least, out.Max) // the default floor never exceeds the policy's own cap
	}
	out.Min = p.amount(path.Child("min"), in.Min, least)
	if out.Max > 0 && out.Min > out.Max {
		p.invalid(path.Child("min"), in.Min.String(), fmt.Sprintf("must not be above max (%s)", in.Max))
		out.Min = out.Max
	}
	switch in.Field {
	case v1alpha1.FieldRequest:
		out.Aggregation, out.Quantile = Percentile, 0.95
	case v1alpha1.FieldLimit:
		out.Aggregation = Peak
	default:
		p.errs = append(p.errs, field.NotSupported(path.Child("field"), in.Field,
			[]v1alpha1.ResourceField{v1alpha1.FieldRequest, v1alpha1.FieldLimit}))
		return Rule{}, false
	}
	if in.Aggregation != "" {
		p.aggregation(path.Child("aggregation"), in.Aggregation, &out)
	}
	return out, true
}

// usableMax refuses a cap that no container could start under, which is mostly a
// forgotten unit: max: 512 is 512 bytes.
func (p *parser) usableMax(path *field.Path, in v1alpha1.ResourceRule, out *Rule) {
	least, unit := sample.Amount(1<<20), "at least 1Mi; a number without a unit is bytes, 512 MiB are 512Mi"
	if in.Resource == corev1.ResourceCPU {
		least, unit = 0.001, "at least 1m, a thousandth of a core"
	}
	switch {
	case in.Max == nil:
	case in.Max.Sign() == 0:
		p.invalid(path, in.Max.String(), "must be above zero; leave max out for no cap")
	case in.Max.Sign() > 0 && out.Max < least:
		p.invalid(path, in.Max.String(), "must be "+unit)
		out.Max = 0
	}
}

var percentileText = regexp.MustCompile(`^p([0-9]{1,3}(?:\.[0-9]{1,2})?)$`)

func (p *parser) aggregation(path *field.Path, text string, out *Rule) {
	switch a := Aggregation(text); a {
	case Average, Max, Peak:
		out.Aggregation, out.Quantile = a, 0
		return
	}
	m := percentileText.FindStringSubmatch(text)
	if m == nil {
		p.invalid(path, text, "must be avg, max, peak or a percentile from p50 to p99.9")
		return
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil || v < 50 || v > 99.9 {
		p.invalid(path, text, "a percentile must lie between p50 and p99.9; the largest use is max or peak")
		return
	}
	out.Aggregation, out.Quantile = Percentile, v/100
}

func (p *parser) oom(path *field.Path, in v1alpha1.OOM) OOM {
	return OOM{
		Bump:     p.decimal(path.Child("bump"), in.Bump, 1.2, 1, 10),
		MinBump:  p.amount(path.Child("minBump"), in.MinBump, 100<<20),
		HalfLife: p.duration(path.Child("halfLife"), in.HalfLife, day, time.Minute, 30*day),
	}
}

func (p *parser) readiness(path *field.Path, in v1alpha1.Readiness) Readiness {
	out := Readiness{
		MinSamples:  250,
		MinTimeSpan: p.duration(path.Child("minTimeSpan"), in.MinTimeSpan, day, time.Minute, 30*day),
		MaxCV:       p.decimal(path.Child("maxCV"), in.MaxCV, 1.5, 0, math.Inf(1)),
	}
	if n := in.MinSamples; n != nil {
		if *n < 1 || *n > 1_000_000 {
			p.invalid(path.Child("minSamples"), *n, "must lie between 1 and 1000000")
		} else {
			out.MinSamples = int64(*n)
		}
	}
	floor := orZero(in.CVMeanFloor)
	cpu := p.amount(path.Child("cvMeanFloor", "cpu"), floor.CPU, 0.025)
	memory := p.amount(path.Child("cvMeanFloor", "memory"), floor.Memory, 25<<20)
	out.CVMeanFloor = map[sample.Resource]sample.Amount{
		sample.CPU: cpu, sample.CPUBurst: cpu, sample.Memory: memory, sample.MemoryPeak: memory,
	}
	return out
}

func (p *parser) retention(path *field.Path, in v1alpha1.Retention) Retention {
	out := Retention{Window: p.duration(path.Child("window"), in.Window, 8*day, time.Hour, 90*day)}
	// Where only one of the two is given, the other's default gives way to it.
	out.HalfLife = p.duration(path.Child("halfLife"), in.HalfLife, min(day, out.Window), time.Hour, 90*day)
	switch {
	case out.HalfLife <= out.Window:
	case in.Window == nil:
		out.Window = out.HalfLife
	default:
		p.invalid(path.Child("halfLife"), short(out.HalfLife), fmt.Sprintf("must not be above window (%s)", short(out.Window)))
		out.HalfLife = out.Window
	}
	return out
}

func (p *parser) apply(path *field.Path, in v1alpha1.Apply) Apply {
	out := Apply{QoS: v1alpha1.QoSAllowBurstable, HPA: v1alpha1.HPALeave, DryRun: flag(in.DryRun)}
	switch in.QoS {
	case "":
	case v1alpha1.QoSKeep, v1alpha1.QoSAllowBurstable:
		out.QoS = in.QoS
	default:
		p.errs = append(p.errs, field.NotSupported(path.Child("qos"), in.QoS,
			[]v1alpha1.QoSPolicy{v1alpha1.QoSKeep, v1alpha1.QoSAllowBurstable}))
	}
	switch in.HPA {
	case "":
	case v1alpha1.HPALeave, v1alpha1.HPAIgnore:
		out.HPA = in.HPA
	default:
		p.errs = append(p.errs, field.NotSupported(path.Child("hpa"), in.HPA,
			[]v1alpha1.HPAPolicy{v1alpha1.HPALeave, v1alpha1.HPAIgnore}))
	}
	return out
}

func (p *parser) concurrency(path *field.Path, in *intstr.IntOrString) Concurrency {
	def := Concurrency{Share: 0.10}
	switch {
	case in == nil:
		return def
	case in.Type == intstr.Int:
		if in.IntVal >= 1 && in.IntVal <= 1000 {
			return Concurrency{Count: int(in.IntVal)}
		}
	default:
		n, err := strconv.Atoi(strings.TrimSuffix(in.StrVal, "%"))
		if err == nil && strings.HasSuffix(in.StrVal, "%") && n >= 1 && n <= 100 {
			return Concurrency{Share: float64(n) / 100}
		}
	}
	p.invalid(path, in.String(), "must be a count from 1 to 1000 or a share from 1% to 100%")
	return def
}
