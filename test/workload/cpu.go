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

// burnSteadily uses the share of one core, at most 1. It goes by the thread's
// CPU clock: what a busy machine takes away in one slice is used in the next
// ones, so the average holds.
func burnSteadily(ctx context.Context, share float64) {
	runtime.LockOSThread()
	start, used := time.Now(), threadTime()
	ticks := time.NewTicker(slice)
	defer ticks.Stop()
	for ctx.Err() == nil {
		due := time.Duration(share * float64(time.Since(start)))
		for threadTime()-used < due {
			spin()
		}
		<-ticks.C
	}
}

// burnInBursts uses one core for length of every period, by the wall clock.
func burnInBursts(ctx context.Context, length, every time.Duration) {
	runtime.LockOSThread()
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for ctx.Err() == nil {
		for start := time.Now(); time.Since(start) < length; {
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

// threadTime is the CPU time the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // fails only for unknown clocks
	return time.Duration(t.Nano())
}
