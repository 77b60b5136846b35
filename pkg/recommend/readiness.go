package recommend

import (
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

// hoursFrom is the time span from which coverage is counted in hours; below it minutes count.
const hoursFrom = 2 * time.Hour

// hysteresis is the factor on the allowed variation for history that was enough before.
const hysteresis = 1.1

// tolerant returns the settings to judge history by.
func tolerant(in Input) policy.Settings {
	s := in.Settings
	if in.WasSufficient {
		s.Readiness.MaxCV *= hysteresis
	}
	return s
}

// readiness tells whether there is enough history, by the first container and gate that says no. Containers no live pod
// has do not count, unless there is no live pod at all.
func readiness(s policy.Settings, containers []Container) (bool, Reason, string) {
	anyRunning := false
	for i := range containers {
		anyRunning = anyRunning || containers[i].Running
	}
	judged := 0
	for _, gate := range []func(policy.Settings, *Container) (Reason, string){enoughSamples, enoughTime, steady} {
		judged = 0
		for i := range containers {
			c := &containers[i]
			if anyRunning && !c.Running {
				continue
			}
			judged++
			if reason, message := gate(s, c); reason != "" {
				return false, reason, fmt.Sprintf("container %q: %s", c.Name, message)
			}
		}
	}
	if judged == 0 {
		return false, NoSamples, "nothing was measured yet"
	}
	return true, EnoughHistory, "samples, covered time and variation are as the policy asks"
}

func enoughSamples(s policy.Settings, c *Container) (Reason, string) {
	samples, measured := int64(math.MaxInt64), false
	for _, r := range judgedSeries(s) {
		if sk := c.Series[r]; sk != nil && !sk.Empty() {
			samples, measured = min(samples, int64(sk.Count())), true
		}
	}
	if !measured {
		return NoSamples, "nothing was measured yet"
	}
	if need := s.Readiness.MinSamples; samples < need {
		return NotEnoughSamples, fmt.Sprintf("at least %d of %d samples", coarse(samples, need), need)
	}
	return "", ""
}

func enoughTime(s policy.Settings, c *Container) (Reason, string) {
	have, per, name := int64(c.CoveredHours), time.Hour, "hours"
	if s.Readiness.MinTimeSpan < hoursFrom {
		have, per, name = int64(c.CoveredMinutes), time.Minute, "minutes"
	}
	need := int64((s.Readiness.MinTimeSpan + per - 1) / per)
	if have < need {
		return NotEnoughTime, fmt.Sprintf("samples cover at least %d of %d %s", coarse(have, need), need, name)
	}
	return "", ""
}

// steady refuses a use so variable that its history says little, unless it is so small that it does not matter.
func steady(s policy.Settings, c *Container) (Reason, string) {
	if !(s.Readiness.MaxCV > 0) {
		return "", ""
	}
	for _, r := range judgedSeries(s) {
		sk := c.Series[r]
		if sk == nil || sk.Empty() {
			continue
		}
		mean := sk.Mean()
		if !(mean > 0) || sample.Amount(mean) < s.Readiness.CVMeanFloor[r] {
			continue
		}
		if cv := math.Sqrt(sk.Variance()) / mean; cv > s.Readiness.MaxCV {
			return TooVariable, fmt.Sprintf("%s varies by more than %.4g times its mean", r, s.Readiness.MaxCV)
		}
	}
	return "", ""
}

// judgedSeries are cpu and memory as far as the policy sets them, both if it sets neither. Ephemeral storage does not
// decide: not every node reports it.
func judgedSeries(s policy.Settings) []sample.Resource {
	var out []sample.Resource
	for _, r := range []sample.Resource{sample.CPU, sample.Memory} {
		for _, rule := range s.Rules {
			if rule.Resource == r.KubeName() {
				out = append(out, r)
				break
			}
		}
	}
	if len(out) == 0 {
		return []sample.Resource{sample.CPU, sample.Memory}
	}
	return out
}

// coarse rounds progress down to tenths of the goal, so that a message about it changes at most ten times.
func coarse(have, need int64) int64 {
	step := max(1, need/10)
	return have / step * step
}

// capped names the recommendations a cap holds below their estimate.
func capped(containers []ContainerResult) string {
	var b strings.Builder
	for _, c := range containers {
		for _, r := range c.Recommendations {
			if r.Reason != CappedByPolicy && r.Reason != CappedByNode {
				continue
			}
			if b.Len() > 512 {
				return b.String()
			}
			fmt.Fprintf(&b, "; %s: %s of %s stays at %s", r.Reason, describe(r.Resource, string(r.Field)), c.Name, Format(r.Value, r.Resource))
		}
	}
	return b.String()
}

func describe(r corev1.ResourceName, field string) string { return string(r) + " " + field }
