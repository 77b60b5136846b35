package backtest

import (
	"math"
	"slices"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

const (
	day = 24 * time.Hour
	mib = 1 << 20
)

// vpa is the rule of the Vertical Pod Autoscaler's recommender with its default flags: p90 of CPU and of daily memory
// peaks, both with a half-life of 24 h, plus 15 %; after an OOM kill the larger of use × 1.2 and use + 100 MiB counts as
// a peak; at least 25m and 250 MiB. The memory limit is kept equal to the request, CPU has no limit.
type vpa struct {
	start time.Time
	cpu   sketch.Sketch
	peaks []float64 // of each day since start
}

// VPA returns the Vertical Pod Autoscaler's rule.
func VPA() Rule { return &vpa{} }

func (*vpa) Name() string { return "VPA (p90 × 1.15)" }

func (v *vpa) Observe(at time.Time, covers time.Duration, cpu, memory float64) {
	if v.start.IsZero() {
		v.start = at
	}
	if !math.IsNaN(cpu) {
		// Newer samples weigh more, which is decay without touching the older ones.
		v.cpu.Add(cpu, covers.Seconds()*math.Exp2(at.Sub(v.start).Hours()/24))
	}
	if !math.IsNaN(memory) {
		v.peak(at, memory)
	}
}

func (v *vpa) peak(at time.Time, memory float64) {
	today := int(at.Sub(v.start) / day)
	for len(v.peaks) <= today {
		v.peaks = append(v.peaks, 0)
	}
	v.peaks[today] = max(v.peaks[today], memory)
}

func (v *vpa) OOM(at time.Time, limit sample.Amount) {
	v.peak(at, max(float64(limit)*1.2, float64(limit)+100*mib))
}

func (v *vpa) Sizes(time.Time) (Sizes, bool) {
	const margin = 1.15
	var s Sizes
	if !v.cpu.Empty() {
		s.CPURequest = sample.Amount(max(0.025, margin*v.cpu.Quantile(0.9)))
	}
	if len(v.peaks) > 0 {
		s.MemoryRequest = sample.Amount(max(250*mib, margin*v.memory()))
		s.MemoryLimit = s.MemoryRequest
	}
	return s, s != Sizes{}
}

// memory is the p90 of the daily peaks; a day without a sample has none.
func (v *vpa) memory() float64 {
	type peak struct{ value, weight float64 }
	var peaks []peak
	var total float64
	for i, p := range v.peaks {
		if p > 0 {
			w := math.Exp2(float64(i))
			peaks, total = append(peaks, peak{p, w}), total+w
		}
	}
	slices.SortFunc(peaks, func(a, b peak) int { return int(math.Copysign(1, a.value-b.value)) })
	var seen float64
	for _, p := range peaks {
		if seen += p.weight; seen >= 0.9*total {
			return p.value
		}
	}
	return 0
}

// windowed is a rule over the plain samples of a sliding window: a CPU quantile and the largest memory, each with its
// headroom; an OOM kill counts as the memory at the limit. The memory limit equals the request, CPU has no limit.
type windowed struct {
	name                string
	window              time.Duration
	quantile            float64 // 1 is the largest
	cpuRoom, memoryRoom float64
	cpuMin, memoryMin   float64
	days                []windowDay
}

// windowDay holds a day's samples, so that a window slides by days and not by samples.
type windowDay struct {
	day    int64
	cpu    sketch.Sketch
	memory float64
}

// KRR returns the default strategy of Robusta KRR: CPU at the 95th percentile, memory at the week's largest plus 15 %.
func KRR() Rule {
	return &windowed{
		name: "KRR (p95, max × 1.15)", window: 7 * day, quantile: 0.95, cpuRoom: 1, memoryRoom: 1.15,
		cpuMin: 0.010, memoryMin: 100 * mib,
	}
}

// Kubecost returns the default of Kubecost's request sizing: the largest use of three days at a target utilisation of 70 %.
func Kubecost() Rule {
	return &windowed{
		name: "Kubecost (max ÷ 0.7)", window: 3 * day, quantile: 1, cpuRoom: 1 / 0.7, memoryRoom: 1 / 0.7,
		cpuMin: 0.010, memoryMin: 20 * mib,
	}
}

func (w *windowed) Name() string { return w.name }

func (w *windowed) at(t time.Time) *windowDay {
	today := t.Unix() / int64(day/time.Second)
	if n := len(w.days); n == 0 || w.days[n-1].day != today {
		w.days = append(w.days, windowDay{day: today})
	}
	for len(w.days) > int(w.window/day) {
		w.days = w.days[1:]
	}
	return &w.days[len(w.days)-1]
}

func (w *windowed) Observe(at time.Time, covers time.Duration, cpu, memory float64) {
	d := w.at(at)
	if !math.IsNaN(cpu) {
		d.cpu.Add(cpu, covers.Seconds())
	}
	if !math.IsNaN(memory) {
		d.memory = max(d.memory, memory)
	}
}

func (w *windowed) OOM(at time.Time, limit sample.Amount) {
	d := w.at(at)
	d.memory = max(d.memory, float64(limit))
}

func (w *windowed) Sizes(time.Time) (Sizes, bool) {
	var cpu sketch.Sketch
	var memory float64
	for i := range w.days {
		cpu.Merge(&w.days[i].cpu)
		memory = max(memory, w.days[i].memory)
	}
	var s Sizes
	if !cpu.Empty() {
		s.CPURequest = sample.Amount(max(w.cpuMin, w.cpuRoom*cpu.Quantile(w.quantile)))
	}
	if memory > 0 {
		s.MemoryRequest = sample.Amount(max(w.memoryMin, w.memoryRoom*memory))
		s.MemoryLimit = s.MemoryRequest
	}
	return s, s != Sizes{}
}
