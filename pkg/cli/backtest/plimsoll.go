package backtest

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

// measured is one hour of a container's history.
type measured struct {
	hour    int64
	minutes uint64
	series  [sample.Count]*sketch.Sketch
}

// plimsoll is the product's own rule: sketches by the hour, decayed and merged, and recommend.Compute.
type plimsoll struct {
	name     string
	settings policy.Settings
	hours    []measured
	kills    []recommend.Kill
	current  Sizes
}

// Plimsoll returns the rule of a policy.
func Plimsoll(name string, s policy.Settings) Rule { return &plimsoll{name: name, settings: s} }

func (p *plimsoll) Name() string { return p.name }

func (p *plimsoll) Observe(at time.Time, covers time.Duration, cpu, memory float64) {
	hour := at.Unix() / 3600
	if n := len(p.hours); n == 0 || p.hours[n-1].hour != hour {
		p.hours = append(p.hours, measured{hour: hour})
	}
	h := &p.hours[len(p.hours)-1]
	for minute := range max(1, int(covers.Minutes())) {
		h.minutes |= 1 << ((at.Unix()/60 + int64(minute)) % 60)
	}
	weight := float64(covers.Milliseconds())
	h.add(sample.CPU, cpu, weight)
	h.add(sample.Memory, memory, weight)
}

func (h *measured) add(r sample.Resource, value, weight float64) {
	if math.IsNaN(value) {
		return
	}
	if h.series[r] == nil {
		h.series[r] = &sketch.Sketch{}
	}
	h.series[r].Add(value, weight)
}

func (p *plimsoll) OOM(at time.Time, limit sample.Amount) {
	p.kills = append(p.kills, recommend.Kill{Time: at, Limit: limit})
}

// Sizes recommends, and as the product does keeps what is set while history is not enough, but for a raise after a kill.
func (p *plimsoll) Sizes(now time.Time) (Sizes, bool) {
	c := p.window(now)
	r := recommend.Compute(recommend.Input{Settings: p.settings, Containers: []recommend.Container{c}, Now: now})
	if !r.Sufficient && len(p.kills) == 0 {
		return Sizes{}, false
	}
	next := p.current
	for _, rec := range r.Containers[0].Recommendations {
		field := next.field(rec.Resource, rec.Field)
		if field == nil {
			continue
		}
		if r.Sufficient || *field > 0 && rec.Reason == recommend.RaisedByOOM && rec.Value > *field {
			*field = rec.Value
		}
	}
	p.current = next
	return next, next != Sizes{}
}

// field returns where a recommendation belongs, nil for ephemeral storage.
func (s *Sizes) field(r corev1.ResourceName, f v1alpha1.ResourceField) *sample.Amount {
	switch {
	case r == corev1.ResourceCPU && f == v1alpha1.FieldRequest:
		return &s.CPURequest
	case r == corev1.ResourceCPU:
		return &s.CPULimit
	case r == corev1.ResourceMemory && f == v1alpha1.FieldRequest:
		return &s.MemoryRequest
	case r == corev1.ResourceMemory:
		return &s.MemoryLimit
	}
	return nil
}

// window merges the hours within the policy's window, each weighted by the age of its middle.
func (p *plimsoll) window(now time.Time) recommend.Container {
	c := recommend.Container{Name: "container", Running: true, Kills: p.kills}
	ago := p.settings.Retention.Window
	for len(p.hours) > 0 && now.Sub(time.Unix(p.hours[0].hour*3600, 0)) > ago+time.Hour {
		p.hours = p.hours[1:]
	}
	for i := range p.hours {
		h := &p.hours[i]
		age := now.Sub(time.Unix(h.hour*3600+1800, 0))
		factor := math.Exp2(-max(0, age.Hours()) / p.settings.Retention.HalfLife.Hours())
		c.CoveredHours++
		for m := h.minutes; m != 0; m &= m - 1 {
			c.CoveredMinutes++
		}
		for r, s := range h.series {
			if s == nil {
				continue
			}
			if c.Series[r] == nil {
				c.Series[r] = &sketch.Sketch{}
			}
			c.Series[r].MergeScaled(s, factor)
		}
	}
	return c
}
