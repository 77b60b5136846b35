package recommend

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

// The units values are rounded up to, and so the least that is ever recommended.
const (
	cpuUnit   = 0.001   // cores
	bytesUnit = 1 << 20 // bytes
)

// derivation is a value on its way from measured use to a recommendation, with the steps it took.
type derivation struct {
	resource corev1.ResourceName
	value    sample.Amount
	reason   Reason
	steps    []Step
}

// to records a step and, if the value changes by it, its reason.
func (d *derivation) to(step Step, reason Reason) {
	if step.Value != d.value {
		d.reason = reason
	}
	d.value = step.Value
	d.steps = append(d.steps, step)
}

// estimate runs the part of the chain that follows from use: aggregation, headroom, start-up, OOM kills.
func estimate(in *Input, c *Container, rule policy.Rule) (derivation, bool) {
	d := derivation{resource: rule.Resource, reason: Estimated, steps: make([]Step, 0, 8)}
	use, samples, measured := aggregate(c.Series, rule)
	if measured {
		d.to(Step{
			Operation: OpAggregate, Aggregation: rule.Aggregation, Operand: rule.Quantile,
			Samples: samples, Hours: c.CoveredHours, Minutes: c.CoveredMinutes, Value: use,
		}, Estimated)
		d.to(Step{Operation: OpHeadroom, Operand: rule.Headroom, Value: use * sample.Amount(rule.Headroom)}, Estimated)
	}
	started := rule.Field == v1alpha1.FieldLimit && d.startup(c.Startup, rule)
	killed := rule.Resource == corev1.ResourceMemory && d.kills(in, c)
	return d, measured || started || killed
}

// startup keeps a limit above what a start needs, by the policy's rule; for memory by the largest use, since a start
// that runs into its limit never ends.
func (d *derivation) startup(s Series, rule policy.Rule) bool {
	if rule.Resource == corev1.ResourceMemory {
		rule.Aggregation, rule.Quantile = policy.Peak, 0
	}
	use, samples, ok := aggregate(s, rule)
	if !ok {
		return false
	}
	need := use * sample.Amount(rule.Headroom)
	d.to(Step{
		Operation: OpStartup, Aggregation: rule.Aggregation, Operand: rule.Quantile, Factor: rule.Headroom,
		Samples: samples, Value: max(d.value, need),
	}, RaisedByStartup)
	return true
}

// kills raises memory above the limits that were hit.
func (d *derivation) kills(in *Input, c *Container) bool {
	need, kill, ok := afterKills(in, c)
	if !ok {
		return false
	}
	d.to(Step{
		Operation: OpOOM, Operand: float64(kill.Limit), Age: max(0, in.Now.Sub(kill.Time)),
		Kills: limitKills(c.Kills), Value: max(d.value, need),
	}, RaisedByOOM)
	return true
}

// bound applies the policy's floor and cap and the node's size, and rounds. Caps win over floors, the node's over the
// policy's; no value is ever 0.
func (d *derivation) bound(rule policy.Rule, allocatable sample.Amount) {
	limit := sample.Amount(math.Inf(1))
	if d.value < rule.Min {
		d.to(Step{Operation: OpFloor, Operand: float64(rule.Min), Value: rule.Min}, FlooredByPolicy)
	}
	if rule.Max > 0 {
		limit = rule.Max
		if d.value > rule.Max {
			d.to(Step{Operation: OpCap, Operand: float64(rule.Max), Value: rule.Max}, CappedByPolicy)
		}
	}
	if allocatable > 0 {
		limit = min(limit, allocatable)
		if d.value > allocatable {
			d.to(Step{Operation: OpNode, Operand: float64(allocatable), Value: allocatable}, CappedByNode)
		}
	}
	// Rounding must not break a bound that is no whole unit.
	rounded := max(min(max(round(d.value, d.resource), rule.Min), limit), least(d.resource))
	d.steps = append(d.steps, Step{Operation: OpRound, Operand: unit(d.resource), Value: rounded})
	d.value = rounded
}

// aggregate turns the series of the rule's resource into one value, with the number of samples it rests on.
func aggregate(s Series, rule policy.Rule) (sample.Amount, uint64, bool) {
	sampled, peak := seriesOf(rule.Resource)
	main, peaks := s[sampled], s[peak]
	if rule.Aggregation == policy.Peak && peaks != nil && !peaks.Empty() {
		highest := peaks.Max()
		if main != nil {
			highest = max(highest, main.Max())
		}
		return sample.Amount(highest), peaks.Count(), true
	}
	if main == nil || main.Empty() {
		return 0, 0, false
	}
	var v float64
	switch rule.Aggregation {
	case policy.Average:
		v = main.Mean()
	case policy.Percentile:
		v = main.Quantile(rule.Quantile)
	default:
		v = main.Max()
	}
	return sample.Amount(v), main.Count(), true
}

// seriesOf returns the series a resource is sampled in, and the one that holds its peaks between samples.
func seriesOf(r corev1.ResourceName) (sampled, peak sample.Resource) {
	switch r {
	case corev1.ResourceCPU:
		return sample.CPU, sample.CPUBurst
	case corev1.ResourceMemory:
		return sample.Memory, sample.MemoryPeak
	default:
		return sample.EphemeralStorage, sample.EphemeralStorage
	}
}

func unit(r corev1.ResourceName) float64 {
	if r == corev1.ResourceCPU {
		return cpuUnit
	}
	return bytesUnit
}

// least is the smallest value the API server can hold that is not 0.
func least(r corev1.ResourceName) sample.Amount {
	if r == corev1.ResourceCPU {
		return cpuUnit
	}
	return 1
}

// noise is the relative error of what sketches say about extremes, and of the arithmetic after it, with room to spare.
const noise = 1e-6

// round rounds up to whole units, at least one, taking what exceeds a whole number only by noise as that number.
func round(v sample.Amount, r corev1.ResourceName) sample.Amount {
	n := float64(v) / unit(r)
	n = max(1, math.Ceil(n-min(0.5, max(noise, n*noise))))
	if r == corev1.ResourceCPU {
		return sample.Amount(n / 1000)
	}
	return sample.Amount(n * bytesUnit)
}
