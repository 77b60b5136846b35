package recommend

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

// Input is everything a recommendation follows from.
type Input struct {
	Settings   policy.Settings
	Containers []Container // one per name, in any order
	// Allocatable is the largest node's, by resource; a resource that is absent is not capped.
	Allocatable map[corev1.ResourceName]sample.Amount
	Now         time.Time
	// WasSufficient says that the last answer was Sufficient: it then takes a little more variation to take it back, so
	// that a use at the edge does not turn it on and off.
	WasSufficient bool
}

// Container is what is known about one container of a workload.
type Container struct {
	Name string
	// Running says that a live pod of the workload has this container; only those decide whether history is enough.
	Running bool
	Series  Series // steady state, decayed by age
	Startup Series // the first moments of each run, kept apart

	CoveredHours   int // hours of the window in which there is any sample
	CoveredMinutes int // minutes of the window in which there is any sample

	Kills []Kill // OOM kills within the window, in any order
	// Limits are what the container runs with; absent where any of its pods has none.
	Limits map[corev1.ResourceName]sample.Amount
}

// Series holds one distribution per sample.Resource; nil where nothing was measured.
type Series [sample.Count]*sketch.Sketch

// Kill is one OOM kill of a process in the container.
type Kill struct {
	Time time.Time
	// Limit in bytes that was hit, and the use at that moment; 0 where unknown.
	Limit, Usage sample.Amount
	// Node says that the node ran out of memory, so that the kill tells nothing about the limit.
	Node bool
}

// Result is a workload's recommendations and whether its history is enough to act on them.
type Result struct {
	Sufficient bool
	Reason     Reason // of Sufficient
	Message    string // for people; changes in coarse steps
	Containers []ContainerResult
}

// ContainerResult is what follows for one container.
type ContainerResult struct {
	Name            string
	Usage           []Usage          // by resource number, measured ones only
	Recommendations []Recommendation // in the order of the policy's rules
	OOMKills        int              // kills that hit a limit
}

// Usage sums one series up, in cores or bytes.
type Usage struct {
	Resource                     sample.Resource
	Average, P50, P95, P99, Max  sample.Amount
	Samples                      int64
	CoveredMinutes, CoveredHours int
}

// Recommendation is one request or limit.
type Recommendation struct {
	Resource corev1.ResourceName
	Field    v1alpha1.ResourceField
	Value    sample.Amount // rounded, within all bounds
	Estimate sample.Amount // before floors and caps
	Reason   Reason        // the last step that changed the value
	Steps    []Step        // how Value came about, in order
	Share    Share
}

// Share is how often the measured use was above a limit, from 0 to 1.
type Share struct {
	Above float64
	Known bool
	// Censored says that use could not show above the limit the container ran with, so that the true share may be larger.
	Censored bool
}

// Compute derives all recommendations of a workload. Containers come sorted by name; a rule for whose resource nothing
// was measured and no OOM kill is known yields none.
func Compute(in Input) Result {
	containers := slices.Clone(in.Containers)
	slices.SortFunc(containers, func(a, b Container) int { return strings.Compare(a.Name, b.Name) })
	r := Result{Containers: make([]ContainerResult, 0, len(containers))}
	for i := range containers {
		r.Containers = append(r.Containers, container(&in, &containers[i]))
	}
	r.Sufficient, r.Reason, r.Message = readiness(tolerant(in), containers)
	r.Message += capped(r.Containers)
	return r
}

func container(in *Input, c *Container) ContainerResult {
	out := ContainerResult{Name: c.Name, Usage: usage(c), OOMKills: limitKills(c.Kills)}
	for _, rule := range in.Settings.Rules {
		d, ok := estimate(in, c, rule)
		if !ok {
			continue
		}
		estimate := round(d.value, rule.Resource)
		d.bound(rule, in.Allocatable[rule.Resource])
		out.Recommendations = append(out.Recommendations, Recommendation{
			Resource: rule.Resource, Field: rule.Field, Estimate: estimate,
			Value: d.value, Reason: d.reason, Steps: d.steps,
		})
	}
	underLimits(out.Recommendations, c.Limits)
	for i := range out.Recommendations {
		if rec := &out.Recommendations[i]; rec.Field == v1alpha1.FieldLimit {
			rec.Share = share(c, rec.Resource, rec.Value)
		}
	}
	return out
}

// underLimits lowers every request to its limit: the one recommended, or where the policy sets none the one the
// container runs with.
func underLimits(recs []Recommendation, current map[corev1.ResourceName]sample.Amount) {
	for i := range recs {
		request := &recs[i]
		if request.Field != v1alpha1.FieldRequest {
			continue
		}
		limit := current[request.Resource]
		for j := range recs {
			if recs[j].Resource == request.Resource && recs[j].Field == v1alpha1.FieldLimit {
				limit = recs[j].Value
			}
		}
		if limit > 0 && request.Value > limit {
			request.Value, request.Reason = limit, LoweredToLimit
			request.Steps = append(request.Steps, Step{Operation: OpLimit, Operand: float64(limit), Value: limit})
		}
	}
}

// share predicts the share of throttled CPU periods, or tells the share of time memory was above the limit.
//
// The kernel counts a period only when the container ran in it, so idle windows are left out. Under a quota, use stays
// at or below it: what a larger limit would throttle does not show.
func share(c *Container, r corev1.ResourceName, limit sample.Amount) Share {
	switch r {
	case corev1.ResourceCPU:
		s := c.Series[sample.CPUBurst]
		if s == nil || s.Empty() {
			return Share{}
		}
		quota := float64(c.Limits[r])
		censored := quota > 0 && float64(limit) > quota && s.Max() >= quota*(1-sketch.RelativeError)
		busy := s.Above(0)
		if busy <= 0 {
			return Share{Known: true, Censored: censored}
		}
		return Share{Above: min(1, s.Above(float64(limit))/busy), Known: true, Censored: censored}
	case corev1.ResourceMemory:
		if s := c.Series[sample.Memory]; s != nil && !s.Empty() {
			return Share{Above: s.Above(float64(limit)), Known: true}
		}
	}
	return Share{}
}

func usage(c *Container) []Usage {
	var out []Usage
	for _, r := range sample.Resources {
		s := c.Series[r]
		if s == nil || s.Empty() {
			continue
		}
		out = append(out, Usage{
			Resource: r,
			Average:  sample.Amount(s.Mean()),
			P50:      sample.Amount(s.Quantile(0.5)),
			P95:      sample.Amount(s.Quantile(0.95)),
			P99:      sample.Amount(s.Quantile(0.99)),
			Max:      sample.Amount(s.Max()),
			Samples:  int64(s.Count()), CoveredHours: c.CoveredHours, CoveredMinutes: c.CoveredMinutes,
		})
	}
	return out
}
