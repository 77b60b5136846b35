package backtest

import (
	"math"
	"time"

	"plimsoll.dev/pkg/sample"
)

// Contender is a rule and how it is followed.
type Contender struct {
	Rule
	// Interval is how often the rule is asked; after an OOM kill it is asked at once.
	Interval time.Duration
	// Threshold is the least relative change of a value that is made.
	Threshold float64
}

// Score says how one rule did on one series, or in the mean of several. A figure that does not exist is NaN.
type Score struct {
	Rule string
	// CPUSlack and MemorySlack are the shares of what was requested that were not used.
	CPUSlack, MemorySlack float64
	// CPUOver and MemoryOver are the shares of samples above the request.
	CPUOver, MemoryOver float64
	// OOMSevere is the share of samples above the memory limit, Throttled that above the CPU limit.
	OOMSevere, Throttled float64
	// Changes counts, per day, how often a size was changed.
	Changes float64
	// CPU and Memory are the mean requests, in cores and bytes.
	CPU, Memory float64
	// Unsized is the share of samples for which the rule set nothing.
	Unsized float64
}

// Replay runs contenders over one series and returns a score for each. A rule sees what it would see: use cut off at the
// limits it set itself. Samples of the warm-up, and those for which one of the rules does not act yet, count for none, so
// that all are scored on the same.
func Replay(s Series, warmup time.Duration, contenders ...Contender) []Score {
	runs := make([]replay, len(contenders))
	for i, c := range contenders {
		runs[i] = replay{Contender: c, step: s.Step}
	}
	for _, sample := range s.Samples {
		warm := sample.At.Sub(s.Samples[0].At) >= warmup
		sized := true
		for i := range runs {
			sized = sized && runs[i].sizes != Sizes{}
		}
		for i := range runs {
			if warm {
				runs[i].count(sample, sized)
			}
			runs[i].observe(sample, warm && sized)
		}
	}
	scores := make([]Score, len(runs))
	for i := range runs {
		scores[i] = runs[i].score()
	}
	return scores
}

type replay struct {
	Contender
	step time.Duration

	sizes   Sizes
	asked   time.Time
	killed  bool
	changes int
	tally   tally
}

// tally counts samples after the warm-up.
type tally struct {
	total, unsized, sized float64
	cpu, cpuOver          float64
	memory, memoryOver    float64
	cpuUsed, cpuSet       float64
	memoryUsed, memorySet float64
	limited, killed       float64
	cpuLimited, throttled float64
}

// observe shows a sample to the rule and takes up what the rule makes of it.
func (r *replay) observe(s Sample, counted bool) {
	cpu, memory := s.CPU, s.Memory
	if l := float64(r.sizes.CPULimit); l > 0 {
		cpu = cut(cpu, l)
	}
	if l := float64(r.sizes.MemoryLimit); l > 0 && memory > l {
		r.OOM(s.At, r.sizes.MemoryLimit)
		r.killed, memory = true, l
	}
	end := s.At.Add(r.step)
	r.Observe(s.At, r.step, cpu, memory)
	if !r.killed && end.Sub(r.asked) < r.Interval {
		return
	}
	r.asked, r.killed = end, false
	if next, ok := r.Sizes(end); ok && r.apply(next) && counted {
		r.changes++
	}
}

// cut keeps NaN.
func cut(v, limit float64) float64 {
	if v > limit {
		return limit
	}
	return v
}

// apply sets the values that differ by more than the threshold, and reports whether a value in force changed.
func (r *replay) apply(next Sizes) bool {
	changed := false
	set := func(field *sample.Amount, v sample.Amount) {
		switch {
		case v <= 0:
		case *field == 0:
			*field = v
		case math.Abs(float64(v / *field - 1)) > r.Threshold:
			*field, changed = v, true
		}
	}
	set(&r.sizes.CPULimit, next.CPULimit)
	set(&r.sizes.CPURequest, next.CPURequest)
	set(&r.sizes.MemoryLimit, next.MemoryLimit)
	set(&r.sizes.MemoryRequest, next.MemoryRequest)
	// Thresholds apply field by field; a request never exceeds its limit.
	r.sizes.CPURequest = under(r.sizes.CPURequest, r.sizes.CPULimit)
	r.sizes.MemoryRequest = under(r.sizes.MemoryRequest, r.sizes.MemoryLimit)
	return changed
}

func under(request, limit sample.Amount) sample.Amount {
	if limit > 0 && request > limit {
		return limit
	}
	return request
}

func (r *replay) count(s Sample, sized bool) {
	t := &r.tally
	t.total++
	t.unsized += one(r.sizes == Sizes{})
	if !sized {
		return
	}
	t.sized++
	if request := float64(r.sizes.CPURequest); request > 0 && !math.IsNaN(s.CPU) {
		t.cpu++
		t.cpuSet += request
		t.cpuUsed += min(s.CPU, request)
		t.cpuOver += one(s.CPU > request)
	}
	if request := float64(r.sizes.MemoryRequest); request > 0 && !math.IsNaN(s.Memory) {
		t.memory++
		t.memorySet += request
		t.memoryUsed += min(s.Memory, request)
		t.memoryOver += one(s.Memory > request)
	}
	if limit := float64(r.sizes.MemoryLimit); limit > 0 && !math.IsNaN(s.Memory) {
		t.limited++
		t.killed += one(s.Memory > limit)
	}
	if limit := float64(r.sizes.CPULimit); limit > 0 && !math.IsNaN(s.CPU) {
		t.cpuLimited++
		t.throttled += one(s.CPU > limit)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// score turns counts into shares; what was never counted is NaN.
func (r *replay) score() Score {
	t := r.tally
	days := t.sized * r.step.Hours() / 24
	return Score{
		Rule:     r.Name(),
		CPUSlack: 1 - t.cpuUsed/t.cpuSet, MemorySlack: 1 - t.memoryUsed/t.memorySet,
		CPUOver: t.cpuOver / t.cpu, MemoryOver: t.memoryOver / t.memory,
		OOMSevere: t.killed / t.limited, Throttled: t.throttled / t.cpuLimited,
		Changes: float64(r.changes) / days,
		CPU:     t.cpuSet / t.cpu, Memory: t.memorySet / t.memory,
		Unsized: t.unsized / t.total,
	}
}
