package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"plimsoll.dev/agent/cgroup"
)

// seed adds every fixture with one of the names, whole and cut in the middle.
func seed(f *testing.F, names ...string) {
	for _, name := range names {
		for _, pattern := range []string{"testdata/*/pod/web/", "testdata/*/*/pod/web/"} {
			paths, err := filepath.Glob(pattern + name)
			if err != nil {
				f.Fatal(err)
			}
			for _, p := range paths {
				b, err := os.ReadFile(p)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(b)
				f.Add(b[:len(b)/2])
			}
		}
	}
	for _, s := range []string{"", "\n", " ", "-1\n", "18446744073709551616\n", "usage_usec\nusage_usec 1 2\n", "some total=\n"} {
		f.Add([]byte(s))
	}
}

// check feeds a parser text and an own buffer's end, so that reading past it shows.
func check(f *testing.F, parse func([]byte, *cgroup.Reading) error) {
	f.Fuzz(func(t *testing.T, b []byte) {
		var r cgroup.Reading
		if err := parse(b[:len(b):len(b)], &r); err == nil && len(b) == 0 {
			t.Error("accepted an empty file")
		}
		if r.CPU < 0 || r.Throttled < 0 {
			t.Errorf("negative time: %+v", r)
		}
	})
}

func FuzzCPUAcctUsage(f *testing.F) {
	seed(f, "cpuacct.usage")
	check(f, cgroup.ParseCPUAcctUsage)
}

func FuzzCPUStatV1(f *testing.F) {
	seed(f, "cpu.stat")
	check(f, cgroup.ParseCPUStatV1)
}

func FuzzCPUStatV2(f *testing.F) {
	seed(f, "cpu.stat")
	check(f, cgroup.ParseCPUStatV2)
}

func FuzzMemoryUsage(f *testing.F) {
	seed(f, "memory.usage_in_bytes", "memory.current")
	check(f, cgroup.ParseMemoryUsage)
}

func FuzzMemoryPeak(f *testing.F) {
	seed(f, "memory.max_usage_in_bytes", "memory.peak")
	check(f, cgroup.ParseMemoryPeak)
}

func FuzzMemoryStatV1(f *testing.F) {
	seed(f, "memory.stat")
	check(f, cgroup.ParseMemoryStatV1)
}

func FuzzMemoryStatV2(f *testing.F) {
	seed(f, "memory.stat")
	check(f, cgroup.ParseMemoryStatV2)
}

func FuzzOOMControl(f *testing.F) {
	seed(f, "memory.oom_control")
	check(f, cgroup.ParseOOMControl)
}

func FuzzFailCount(f *testing.F) {
	seed(f, "memory.failcnt")
	check(f, cgroup.ParseFailCount)
}

func FuzzMemoryEvents(f *testing.F) {
	seed(f, "memory.events")
	check(f, cgroup.ParseMemoryEvents)
}

func FuzzMemoryEventsLocal(f *testing.F) {
	seed(f, "memory.events.local")
	check(f, cgroup.ParseMemoryEventsLocal)
}

func FuzzPressure(f *testing.F) {
	seed(f, "*.pressure")
	f.Fuzz(func(t *testing.T, b []byte) {
		some, full, err := cgroup.ParsePressure(b[:len(b):len(b)])
		if some < 0 || full < 0 || (err == nil && len(b) == 0) {
			t.Errorf("some %v, full %v, error %v", some, full, err)
		}
	})
}

func FuzzLimits(f *testing.F) {
	seed(f, "cpu.max", "memory.max", "cpu.cfs_quota_us")
	f.Fuzz(func(t *testing.T, b []byte) {
		if cores, _ := cgroup.ParseCPUMax(b); cores < 0 {
			t.Errorf("%v cores", cores)
		}
		_, _ = cgroup.ParseMax(b)
		_, _ = cgroup.ParseQuota(b)
	})
}

func TestParsersDoNotAllocate(t *testing.T) {
	buf, err := os.ReadFile("testdata/v2/pod/web/memory.stat")
	if err != nil {
		t.Fatal(err)
	}
	var r cgroup.Reading
	if n := testing.AllocsPerRun(100, func() { _ = cgroup.ParseMemoryStatV2(buf, &r) }); n != 0 {
		t.Errorf("%v allocations per memory.stat", n)
	}
	f, err := cgroup.NewFS("testdata/v2")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := f.Open("pod/web")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	scratch := make([]byte, cgroup.BufferSize)
	if n := testing.AllocsPerRun(100, func() {
		if err := reader.Read(time.Now(), scratch, &r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations per reading", n)
	}
}
