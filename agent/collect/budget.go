package collect

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// budgetWindow is over how long the process's CPU use is averaged before intervals change.
	budgetWindow = 10 * time.Second
	// maxStretch bounds how far intervals are stretched: samples further apart would tell too little.
	maxStretch = 10
	// relax is the share of the budget below which intervals shrink again.
	relax = 0.7
)

// budget stretches sampling intervals so that the process's CPU use stays within a share of a core.
type budget struct {
	share   float64 // of one core; 0: no limit
	stretch float64
	used    float64 // cores, in the last window

	since   time.Time
	cpuThen time.Duration
}

// note takes the process's CPU time so far and reports whether the stretch changed. Sampling is most of the work, so the
// work is taken to be inversely proportional to the interval; a wrong guess is corrected by the next window.
func (b *budget) note(now time.Time, cpu time.Duration) bool {
	if b.since.IsZero() {
		b.since, b.cpuThen = now, cpu
		return false
	}
	elapsed := now.Sub(b.since)
	if elapsed < budgetWindow {
		return false
	}
	b.used = float64(cpu-b.cpuThen) / float64(elapsed)
	b.since, b.cpuThen = now, cpu
	if b.share <= 0 {
		return false
	}
	before := b.stretch
	switch {
	case b.used > b.share:
		b.stretch = min(b.stretch*b.used/b.share, maxStretch)
	case b.used < relax*b.share:
		// At most halved at a time: what one window saved may be needed in the next.
		b.stretch = max(1, b.stretch*max(0.5, b.used/(relax*b.share)))
	}
	return b.stretch != before
}

// processCPUTime returns the CPU time this process has used.
func processCPUTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
