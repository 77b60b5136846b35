package main

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// slice is the grain of steady use: well below the 100 ms CFS period, so that
// every window of that length sees the same use.
const slice = 10 * time.Millisecond

// burnSteadily uses that many cores, with one of several threads. It goes by
// the process's CPU clock, so that the program's own overhead is within the
// amount. What a busy machine takes away is used later, but no more than some
// slices' worth of it: to make up for seconds would be a spike.
func burnSteadily(ctx context.Context, cores float64) {
	const debt = 5 * slice
	ticks := time.NewTicker(slice)
	defer ticks.Stop()
	due, last := clock(unix.CLOCK_PROCESS_CPUTIME_ID), time.Now()
	for ctx.Err() == nil {
		<-ticks.C
		now := time.Now()
		due += time.Duration(cores * float64(now.Sub(last)))
		last = now
		due = min(due, clock(unix.CLOCK_PROCESS_CPUTIME_ID)+time.Duration(cores*float64(debt)))
		for clock(unix.CLOCK_PROCESS_CPUTIME_ID) < due {
			spin()
		}
	}
}

// burnInBursts uses one core for length of every period, in CPU time: on a
// busy machine a burst takes longer, but uses as much.
func burnInBursts(ctx context.Context, length, every time.Duration) {
	runtime.LockOSThread()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for ctx.Err() == nil {
		for start := clock(unix.CLOCK_THREAD_CPUTIME_ID); clock(unix.CLOCK_THREAD_CPUTIME_ID)-start < length; {
			spin()
		}
		<-ticks.C
	}
}

// spin works for some microseconds.
func spin() {
	x := uint32(1)
	for range 4096 {
		x = x*1664525 + 1013904223
	}
	runtime.KeepAlive(x)
}

// clock reads a CPU clock.
func clock(id int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(id, &t) // fails only for unknown clocks
	return time.Duration(t.Nano())
}
