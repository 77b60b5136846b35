package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// Limits is what the kernel enforces for a cgroup; zero means no limit.
type Limits struct {
	// CPU is the bandwidth quota in cores.
	CPU float64
	// Memory in bytes.
	Memory uint64
}

// unlimitedV1 is the lowest of the values v1 shows for no limit: 2^63-1 rounded down to a page, of up to 64 KiB.
const unlimitedV1 = 1<<63 - 1<<16

// Limits reads the limits in force of the cgroup at path. It opens its files each time: limits change rarely and are
// wanted rarely. ErrGone when the cgroup is no more.
func (f FS) Limits(path string) (Limits, error) {
	var l Limits
	var err error
	if f.memoryV2 {
		l.Memory, err = readLimit(filepath.Join(f.memory, path, "memory.max"), parseMax)
	} else {
		l.Memory, err = readLimit(filepath.Join(f.memory, path, "memory.limit_in_bytes"), parseLimitV1)
	}
	if err != nil {
		return Limits{}, err
	}
	if f.cpuV2 {
		l.CPU, err = readLimit(filepath.Join(f.cpu, path, "cpu.max"), parseCPUMax)
		return l, err
	}
	quota, err := readLimit(filepath.Join(f.cpu, path, "cpu.cfs_quota_us"), parseQuota)
	if err != nil || quota == 0 {
		return l, err
	}
	period, err := readLimit(filepath.Join(f.cpu, path, "cpu.cfs_period_us"), singleValue)
	if err != nil || period == 0 {
		return l, err
	}
	l.CPU = float64(quota) / float64(period)
	return l, nil
}

func readLimit[T uint64 | float64](path string, parse func([]byte) (T, error)) (T, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("reading a limit: %w", err)
	}
	v, err := parse(b)
	if err != nil {
		return 0, fmt.Errorf("parsing %s: %w", filepath.Base(path), err)
	}
	return v, nil
}

// memory.max (v2): a number of bytes or the word max.
func parseMax(b []byte) (uint64, error) {
	if string(bytes.TrimSuffix(b, newline)) == "max" {
		return 0, nil
	}
	return singleValue(b)
}

// memory.limit_in_bytes (v1): a number of bytes, the largest multiple of the page size meaning none.
func parseLimitV1(b []byte) (uint64, error) {
	n, err := singleValue(b)
	if n >= unlimitedV1 {
		n = 0
	}
	return n, err
}

// cpu.cfs_quota_us (v1; Documentation/scheduler/sched-bwc.rst): microseconds per period, -1 for none.
func parseQuota(b []byte) (uint64, error) {
	n, err := strconv.ParseInt(string(bytes.TrimSuffix(b, newline)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("quota: %w", err)
	}
	return uint64(max(n, 0)), nil
}

// cpu.max (v2; Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files"): quota and period in microseconds, the quota
// being a number or the word max. Returns cores.
//
//	20000 100000
func parseCPUMax(b []byte) (float64, error) {
	quota, period, ok := bytes.Cut(bytes.TrimSuffix(b, newline), []byte{' '})
	if !ok {
		return 0, errNoNumber
	}
	p, err := uintOf(period)
	if err != nil {
		return 0, fmt.Errorf("period: %w", err)
	}
	if string(quota) == "max" || p == 0 {
		return 0, nil
	}
	q, err := uintOf(quota)
	if err != nil {
		return 0, fmt.Errorf("quota: %w", err)
	}
	return float64(q) / float64(p), nil
}
