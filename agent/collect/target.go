package collect

import (
	"time"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

const (
	// holdFor is how long samples wait for their pod's stamps.
	holdFor = 2 * time.Minute
	// maxHeld bounds the samples kept of one container; beyond it neighbours are merged.
	maxHeld = 512
)

// target is one container being sampled.
type target struct {
	discovery.Container
	sampling policy.Sampling
	hash     string // empty while unnamed or unstamped

	reader    *cgroup.Reader
	opened    bool
	reading   [2]cgroup.Reading
	current   int // index of the last reading; its At is zero before the first
	due       time.Time
	retry     time.Time
	problem   string
	startedAt time.Time
	endedAt   time.Time

	// held are the samples not passed on for good: the first sent of them went to the start-up sketches and would also go
	// to the others if the container ended early, the rest wait for the pod's stamps.
	held []measured
	sent int

	recent recent
	last   measured
	usage  cgroup.Sample
	kills  uint64

	pressure   cgroup.Pressure
	pressureAt time.Time
}

// measured is what one sample contributes to each resource.
type measured struct {
	at                time.Time
	over              time.Duration
	cpu, memory, peak float64
}

// measure turns a sample into amounts. The peak is the larger memory of the two readings plus, when the watermark rose
// between them, what it is above the larger usage: a spike that was over before it could be sampled. Usage and
// watermark both count page cache, so a cache that fills up to the limit adds nothing.
func measure(memory v1alpha1.MemoryMeasure, prev *cgroup.Reading, s cgroup.Sample) measured {
	m := measured{over: s.Over, cpu: s.CPU, memory: float64(s.WorkingSet)}
	before := prev.WorkingSet()
	if memory == v1alpha1.MemoryAnon {
		m.memory, before = float64(s.Anon), prev.Anon
	}
	m.peak = max(m.memory, float64(before))
	if sampled := max(prev.MemoryUsage, s.MemoryUsage); s.PeakRose && s.Peak > sampled {
		m.peak += float64(s.Peak - sampled)
	}
	return m
}

// note keeps what the live values and the node's own endpoint show.
func (t *target) note(cur *cgroup.Reading, s cgroup.Sample, m measured) {
	m.at = cur.At
	t.last, t.usage = m, s
	t.kills += s.OOMKills
	t.recent.add(cur.At, m.peak, s.Periods, s.ThrottledPeriods)
}

// add passes a sample on, or holds it; it returns how many had to be given up.
func (t *target) add(sink Sink, m measured) (dropped int) {
	m.at = t.reading[t.current].At
	if t.hash == "" {
		for len(t.held) > 0 && m.at.Sub(t.held[0].at) > holdFor {
			t.held = t.held[1:]
			dropped++
		}
		t.hold(m)
		return dropped
	}
	if t.send(sink, m) {
		t.hold(m)
		t.sent = len(t.held)
	} else {
		t.held, t.sent = nil, 0
	}
	return 0
}

// hold keeps a sample, halving the resolution of what is kept when it grows too much.
func (t *target) hold(m measured) {
	if len(t.held) < maxHeld {
		t.held = append(t.held, m)
		return
	}
	half := t.held[:0]
	for i := 0; i+1 < len(t.held); i += 2 {
		half = append(half, merge(t.held[i], t.held[i+1]))
	}
	t.held = append(half, m)
	t.sent /= 2
}

func merge(a, b measured) measured {
	over := a.over + b.over
	share := float64(a.over) / float64(over)
	return measured{
		at: b.at, over: over,
		cpu:    a.cpu*share + b.cpu*(1-share),
		memory: a.memory*share + b.memory*(1-share),
		peak:   max(a.peak, b.peak),
	}
}

// send passes a sample to the sink and reports whether it was one of the start-up.
func (t *target) send(sink Sink, m measured) (startup bool) {
	startup = !t.Pod.Job && m.at.Sub(t.startedAt) <= t.sampling.Startup
	t.emit(sink, m, startup)
	return startup
}

func (t *target) emit(sink Sink, m measured, startup bool) {
	sink.Add(t.hash, t.Name, sample.CPU, m.cpu, m.over, startup)
	sink.Add(t.hash, t.Name, sample.Memory, m.memory, m.over, startup)
	sink.Add(t.hash, t.Name, sample.MemoryPeak, m.peak, m.over, startup)
}

// release sends what waited for the pod's stamps.
func (t *target) release(sink Sink) {
	kept := t.held[:t.sent]
	for _, m := range t.held[t.sent:] {
		if t.send(sink, m) {
			kept = append(kept, m)
		}
	}
	t.held, t.sent = kept, len(kept)
}

// settle finishes a container: one that ended within its start-up time had no steady state, so what it did counts as
// that. Its samples are in the start-up sketches too, where they do no harm and survive the agent.
func (t *target) settle(sink Sink) {
	t.release(sink)
	if t.endedAt.Sub(t.startedAt) <= t.sampling.Startup {
		for _, m := range t.held {
			t.emit(sink, m, false)
		}
	}
	t.held, t.sent = nil, 0
}

// waitsFor names what keeps the samples of a container back.
func (t *target) waitsFor() string {
	if t.Name == "" {
		return reasonUnnamed
	}
	return reasonUnstamped
}

func (t *target) close() {
	if t.reader != nil {
		t.reader.Close()
		t.reader = nil
	}
}

// recent keeps five minutes of peaks and throttling in steps of ten seconds.
type recent struct {
	steps [recentSteps]recentStep
}

type recentStep struct {
	number             int64
	peak               float64
	periods, throttled uint64
}

const (
	recentSteps = 30
	recentStepD = 10 * time.Second
)

func (r *recent) add(at time.Time, peak float64, periods, throttled uint64) {
	n := at.UnixNano() / int64(recentStepD)
	s := &r.steps[n%recentSteps]
	if s.number != n {
		*s = recentStep{number: n}
	}
	s.peak = max(s.peak, peak)
	s.periods += periods
	s.throttled += throttled
}

// read returns the largest peak and the throttled share of periods, 0 to 1, of the last five minutes.
func (r *recent) read(now time.Time) (peak, throttled float64) {
	oldest := now.UnixNano()/int64(recentStepD) - recentSteps
	var periods, over uint64
	for i := range r.steps {
		if s := &r.steps[i]; s.number > oldest {
			peak = max(peak, s.peak)
			periods += s.periods
			over += s.throttled
		}
	}
	if periods > 0 {
		throttled = float64(over) / float64(periods)
	}
	return peak, throttled
}
