package cgroup_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/cgroup/cgrouptest"
)

const benchGroups = 100

// dropCache writes the file out and drops its pages.
func dropCache(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// BenchmarkSample compares one full sample (CPU, throttling, memory with its statistics, OOM counters) with the floor:
// the preads of the same files and the barest scan of their text, of 100 cgroups in turn. The two alternate in short
// runs and the medians are compared, so that a noisy neighbour hits both.
func BenchmarkSample(b *testing.B) {
	root := cgrouptest.New(b)
	var readers []*cgroup.Reader
	var floors [][]int
	for i := range benchGroups {
		g := root.Child(fmt.Sprintf("c%d", i))
		r, err := g.FS.Open(g.Path)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		readers = append(readers, r)
		floors = append(floors, openFloor(b, g))
	}
	buf := make([]byte, cgroup.BufferSize)
	out := make([]cgroup.Reading, benchGroups)
	sample := func() {
		for i, r := range readers {
			if err := r.Read(time.Now(), buf, &out[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	floor := func() {
		for _, fds := range floors {
			for _, fd := range fds {
				n, err := unix.Pread(fd, buf, 0)
				if err != nil {
					b.Fatal(err)
				}
				scanned += scan(buf[:n])
			}
		}
	}
	allocations := testing.AllocsPerRun(5, sample) / benchGroups
	var samples, floorTimes []time.Duration
	b.ResetTimer()
	for range b.N {
		samples = append(samples, timed(sample))
		floorTimes = append(floorTimes, timed(floor))
	}
	b.StopTimer()
	if b.N == 1 {
		return // the benchmark framework's trial run
	}
	s, f := median(samples), median(floorTimes)
	perSample := float64(s.Nanoseconds()) / benchGroups
	fmt.Printf("RESULT sample_ns %.0f ns\n", perSample)
	fmt.Printf("RESULT sample_floor_ns %.0f ns\n", float64(f.Nanoseconds())/benchGroups)
	fmt.Printf("RESULT sample_vs_floor %.3f ratio\n", float64(s)/float64(f))
	fmt.Printf("RESULT sample_allocations %.0f count\n", allocations)
}

// scanned keeps the compiler from dropping the floor's work.
var scanned uint64

// scan is the least that any parser does: look at each line's end and at the digits of its number.
func scan(b []byte) (sum uint64) {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		j := bytes.LastIndexByte(b[:i], ' ')
		var n uint64
		for _, c := range b[j+1 : i] {
			n = n*10 + uint64(c-'0')
		}
		sum += n
		b = b[i+1:]
	}
	return sum
}

func openFloor(b *testing.B, g *cgrouptest.Group) (fds []int) {
	b.Helper()
	for _, name := range []string{
		"cpuacct/cpuacct.usage", "cpu/cpu.stat", "memory/memory.usage_in_bytes", "memory/memory.stat",
		"memory/memory.max_usage_in_bytes", "memory/memory.oom_control", "memory/memory.failcnt",
		"cpu.stat", "memory.current", "memory.stat", "memory.peak", "memory.events", "memory.events.local",
	} {
		path := filepath.Join(cgrouptest.Root, filepath.Dir(name), g.Path, filepath.Base(name))
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		b.Cleanup(func() { _ = unix.Close(fd) })
		fds = append(fds, fd)
	}
	return fds
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	sorted := slices.Clone(d)
	slices.Sort(sorted)
	return sorted[len(sorted)/2]
}
