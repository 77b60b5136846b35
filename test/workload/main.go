// Command workload uses a known amount of CPU and memory, so that what is
// measured of it can be checked. Without flags it only waits, which is all
// that a pod's pause container does.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"
)

func main() {
	var (
		cpu        = flag.Float64("cpu", 0, "`cores` to use steadily")
		burst      = flag.Int("burst", 0, "whole `cores` to use in bursts")
		burstFor   = flag.Duration("burst-for", 100*time.Millisecond, "length of a burst")
		burstEvery = flag.Duration("burst-every", time.Second, "time from the start of one burst to the next")
		memory     = flag.Int("memory", 0, "`MiB` to hold from the start")
		growTo     = flag.Int("grow-to", 0, "`MiB` to hold in the end, growing evenly")
		growOver   = flag.Duration("grow-over", time.Minute, "time to grow in")
		spike      = flag.Int("spike", 0, "`MiB` to hold for a moment")
		spikeFor   = flag.Duration("spike-for", 2*time.Second, "length of a memory spike")
		spikeEvery = flag.Duration("spike-every", 30*time.Second, "time from the start of one spike to the next; the first comes after that time")
		end        = flag.Duration("end", 0, "time after which to exit with success; 0 means never")
	)
	flag.Parse()
	switch {
	case flag.NArg() > 0 && flag.Arg(0) != "pause":
		fmt.Fprintf(os.Stderr, "workload: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	case *cpu > 0 && *burst > 0:
		fmt.Fprintln(os.Stderr, "workload: give either -cpu or -burst")
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if *end > 0 {
		ctx, cancel = context.WithTimeout(ctx, *end)
		defer cancel()
	}
	debug.SetGCPercent(-1)        // there is nothing to collect, and it would use CPU
	for i := 0.0; i < *cpu; i++ { // as many threads as the amount needs
		go burnSteadily(ctx, *cpu)
	}
	for range *burst {
		go burnInBursts(ctx, *burstFor, *burstEvery)
	}
	if err := hold(ctx, *memory, *growTo, *growOver); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
	if *spike > 0 {
		go spikes(ctx, *spike, *spikeFor, *spikeEvery)
	}
	<-ctx.Done()
}
