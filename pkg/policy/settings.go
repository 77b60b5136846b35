package policy

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
)

// Settings are a policy's decisions in typed values, every default filled in
// when the policy is read. They say nothing about which pods the policy governs.
type Settings struct {
	Sampling  Sampling
	Rules     []Rule // sorted by resource, then field
	OOM       OOM
	Readiness Readiness
	Retention Retention
	Apply     Apply
	Resize    Resize
}

// Sampling says how containers are measured.
type Sampling struct {
	Interval time.Duration
	Cgroup   bool
	EBPF     bool
	Flush    time.Duration
	Startup  time.Duration
	Memory   v1alpha1.MemoryMeasure
}

// Rule says how one request or limit follows from use. Max is 0 when there is
// none; Quantile lies in (0,1) when Aggregation is a percentile, else it is 0.
type Rule struct {
	Resource    corev1.ResourceName
	Field       v1alpha1.ResourceField
	Aggregation Aggregation
	Quantile    float64
	Headroom    float64
	Min, Max    sample.Amount
}

// Aggregation is a way to turn a distribution of use into one value.
type Aggregation string

// The aggregations; a percentile's share stands in Rule.Quantile.
const (
	Average    Aggregation = "avg"
	Percentile Aggregation = "percentile"
	Max        Aggregation = "max"
	Peak       Aggregation = "peak"
)

// OOM says how memory is raised after an OOM kill; MinBump is in bytes.
type OOM struct {
	Bump     float64
	MinBump  sample.Amount
	HalfLife time.Duration
}

// Readiness says how much history makes a profile Sufficient.
type Readiness struct {
	MinSamples  int64
	MinTimeSpan time.Duration
	MaxCV       float64
	// CVMeanFloor is the mean use, by sample.Resource, below which variation
	// does not count.
	CVMeanFloor map[sample.Resource]sample.Amount
}

// Retention says how much history is used and how fast it loses weight.
type Retention struct {
	Window   time.Duration
	HalfLife time.Duration
}

// Apply says what admission may do to a new pod.
type Apply struct {
	QoS    v1alpha1.QoSPolicy
	HPA    v1alpha1.HPAPolicy
	DryRun bool
}

// Resize says how running pods are resized in place; shares lie in [0,1].
type Resize struct {
	Thresholds        map[RuleKey]float64 // complete: one entry per rule of cpu and memory
	Threshold         float64
	MaxChangePerCycle float64
	Interval          time.Duration
	MaxConcurrent     Concurrency
	CanaryFraction    float64
	CanaryWatch       time.Duration
	DeferredPatience  time.Duration
	ProgressPatience  time.Duration
	DecreaseMargin    float64
	AllowRestart      bool
	RollbackWatch     time.Duration
	RollbackThrottled float64
	Schedule          []Window
	DryRun            bool
}

// RuleKey names a field that a rule sets.
type RuleKey struct {
	Resource corev1.ResourceName
	Field    v1alpha1.ResourceField
}

// Concurrency is a count of pods, or a share of them when Count is 0.
type Concurrency struct {
	Count int
	Share float64
}

// Of returns how many of n pods may be resized at once: at least 1.
func (c Concurrency) Of(n int) int {
	if c.Count > 0 {
		return c.Count
	}
	return max(1, int(c.Share*float64(n)))
}

// Window is a weekly window in which resizes are allowed. Start and End count
// from midnight in Location; an End before Start lies on the next day.
type Window struct {
	Days       [7]bool // by time.Weekday
	Start, End time.Duration
	Location   *time.Location
}
