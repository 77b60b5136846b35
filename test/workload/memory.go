package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// allocate returns anonymous memory with every page written.
func allocate(bytes int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("allocating %d MiB: %w", bytes/mib, err)
	}
	for i := 0; i < bytes; i += os.Getpagesize() {
		m[i] = 1
	}
	return m, nil
}

// hold takes base MiB at once and, if to is larger, grows to that in steps of
// one MiB over the given time.
func hold(ctx context.Context, base, to int, over time.Duration) error {
	if base > 0 {
		if _, err := allocate(base * mib); err != nil {
			return err
		}
	}
	if to <= base {
		return nil
	}
	go func() {
		steps := time.NewTicker(over / time.Duration(to-base))
		defer steps.Stop()
		for range to - base {
			select {
			case <-ctx.Done():
				return
			case <-steps.C:
			}
			if _, err := allocate(mib); err != nil {
				fmt.Fprintln(os.Stderr, "workload:", err)
				return
			}
		}
	}()
	return nil
}

// spikes holds more memory for a moment, again and again.
func spikes(ctx context.Context, size int, length, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		m, err := allocate(size * mib)
		if err != nil {
			fmt.Fprintln(os.Stderr, "workload:", err)
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(length):
		}
		_ = unix.Munmap(m) // of what Mmap returned, it cannot fail
	}
}
