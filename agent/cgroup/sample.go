package cgroup

import (
	"errors"
	"runtime"
	"time"
)

// Why two Readings give no Sample; the later one is the new baseline either way.
var (
	// ErrBackwards: a counter is lower than before, so the cgroup was made anew under the same name.
	ErrBackwards = errors.New("a counter went backwards")
	// ErrAbsurd: the difference cannot be, such as more CPU time than all CPUs have.
	ErrAbsurd = errors.New("a counter moved by more than is possible")
	// ErrNoTime: no time passed between the two.
	ErrNoTime = errors.New("no time passed")
)

// absurdBytes is beyond the memory of any machine: a page counter that underflowed reads near 2^63.
const absurdBytes = 1 << 56

// cpuSlack is what the CPU counter may be ahead of the clock: counters of running tasks are folded in at ticks, and
// the reader itself may be preempted between reading the clock and the file.
const cpuSlack = 200 * time.Millisecond

// Sample is what a container did between two Readings, and what it held at the second.
type Sample struct {
	// Over is the time covered.
	Over time.Duration
	// CPU is the mean use in cores.
	CPU float64

	Periods          uint64
	ThrottledPeriods uint64
	Throttled        time.Duration

	// Bytes at the second Reading.
	MemoryUsage uint64
	WorkingSet  uint64
	Anon        uint64
	File        uint64
	// Peak is the watermark, and PeakRose whether it is above that of the first Reading.
	Peak     uint64
	PeakRose bool

	OOMKills    uint64
	OwnOOMKills uint64
	// LimitHit says that the container's own limit refused memory meanwhile.
	LimitHit bool
}

// Between returns the Sample from prev to cur, or why there is none: ErrBackwards, ErrAbsurd or ErrNoTime.
func Between(prev, cur *Reading) (Sample, error) {
	over := cur.At.Sub(prev.At)
	if over <= 0 {
		return Sample{}, ErrNoTime
	}
	if backwards(prev, cur) {
		return Sample{}, ErrBackwards
	}
	used := cur.CPU - prev.CPU
	if used > time.Duration(runtime.NumCPU())*(over+cpuSlack) || absurdMemory(cur) {
		return Sample{}, ErrAbsurd
	}
	return Sample{
		Over:             over,
		CPU:              float64(used) / float64(over),
		Periods:          cur.Periods - prev.Periods,
		ThrottledPeriods: cur.ThrottledPeriods - prev.ThrottledPeriods,
		Throttled:        cur.Throttled - prev.Throttled,
		MemoryUsage:      cur.MemoryUsage,
		WorkingSet:       cur.WorkingSet(),
		Anon:             cur.Anon,
		File:             cur.File,
		Peak:             cur.Peak,
		PeakRose:         cur.Peak > prev.Peak,
		OOMKills:         cur.OOMKills - prev.OOMKills,
		OwnOOMKills:      cur.OwnOOMKills - prev.OwnOOMKills,
		LimitHit:         cur.LimitHits > prev.LimitHits,
	}, nil
}

// backwards compares every counter. The watermark is no part of it: someone else may reset it at any time.
func backwards(prev, cur *Reading) bool {
	return cur.CPU < prev.CPU ||
		cur.Periods < prev.Periods ||
		cur.ThrottledPeriods < prev.ThrottledPeriods ||
		cur.Throttled < prev.Throttled ||
		cur.OOMKills < prev.OOMKills ||
		cur.OwnOOMKills < prev.OwnOOMKills ||
		cur.LimitHits < prev.LimitHits
}

func absurdMemory(r *Reading) bool {
	return r.MemoryUsage > absurdBytes || r.Anon > absurdBytes || r.Peak > absurdBytes
}
