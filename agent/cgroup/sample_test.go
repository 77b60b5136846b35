package cgroup_test

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"plimsoll.dev/agent/cgroup"
)

// C23: a counter that goes down, or moves by what cannot be, gives no sample.
func TestC23Between(t *testing.T) {
	base := cgroup.Reading{
		At: now, CPU: 10 * time.Second, Periods: 100, ThrottledPeriods: 40, Throttled: 3 * time.Second,
		MemoryUsage: 100, InactiveFile: 30, Peak: 120, OOMKills: 2, OwnOOMKills: 2, LimitHits: 5,
	}
	tests := map[string]struct {
		change  func(*cgroup.Reading)
		want    cgroup.Sample
		wantErr error
	}{
		"a second of half a core": {
			change: func(r *cgroup.Reading) {
				r.CPU += 500 * time.Millisecond
				r.Periods, r.ThrottledPeriods, r.Throttled = 110, 42, 3100*time.Millisecond
				r.MemoryUsage, r.Peak, r.OOMKills, r.LimitHits = 140, 150, 3, 6
			},
			want: cgroup.Sample{
				Over: time.Second, CPU: 0.5, Periods: 10, ThrottledPeriods: 2, Throttled: 100 * time.Millisecond,
				MemoryUsage: 140, WorkingSet: 110, Peak: 150, PeakRose: true, OOMKills: 1, LimitHit: true,
			},
		},
		"idle": {
			change: func(*cgroup.Reading) {},
			want:   cgroup.Sample{Over: time.Second, MemoryUsage: 100, WorkingSet: 70, Peak: 120},
		},
		"watermark reset by someone": {
			change: func(r *cgroup.Reading) { r.Peak = 100 },
			want:   cgroup.Sample{Over: time.Second, MemoryUsage: 100, WorkingSet: 70, Peak: 100},
		},
		"cpu backwards":       {change: func(r *cgroup.Reading) { r.CPU = time.Second }, wantErr: cgroup.ErrBackwards},
		"periods backwards":   {change: func(r *cgroup.Reading) { r.Periods = 1 }, wantErr: cgroup.ErrBackwards},
		"throttled backwards": {change: func(r *cgroup.Reading) { r.Throttled = 0 }, wantErr: cgroup.ErrBackwards},
		"kills backwards":     {change: func(r *cgroup.Reading) { r.OOMKills = 0 }, wantErr: cgroup.ErrBackwards},
		"same moment":         {change: func(r *cgroup.Reading) { r.At = now }, wantErr: cgroup.ErrNoTime},
		"clock backwards":     {change: func(r *cgroup.Reading) { r.At = now.Add(-time.Hour) }, wantErr: cgroup.ErrNoTime},
		"more cpu than there is": {
			change:  func(r *cgroup.Reading) { r.CPU += time.Duration(runtime.NumCPU()+1) * time.Second },
			wantErr: cgroup.ErrAbsurd,
		},
		"counter at its end": {change: func(r *cgroup.Reading) { r.CPU = math.MaxInt64 }, wantErr: cgroup.ErrAbsurd},
		"usage underflowed":  {change: func(r *cgroup.Reading) { r.MemoryUsage = math.MaxUint64 - 4095 }, wantErr: cgroup.ErrAbsurd},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cur := base
			cur.At = now.Add(time.Second)
			tc.change(&cur)
			got, err := cgroup.Between(&base, &cur)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("got error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("sample (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBetweenNeverNegativeOrHuge(t *testing.T) {
	reading := rapid.Custom(func(t *rapid.T) cgroup.Reading {
		return cgroup.Reading{
			At:               now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "at"))),
			CPU:              time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "cpu")),
			Periods:          rapid.Uint64().Draw(t, "periods"),
			ThrottledPeriods: rapid.Uint64().Draw(t, "throttled periods"),
			Throttled:        time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "throttled")),
			MemoryUsage:      rapid.Uint64().Draw(t, "usage"),
			InactiveFile:     rapid.Uint64().Draw(t, "inactive file"),
			OOMKills:         rapid.Uint64().Draw(t, "kills"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		prev, cur := reading.Draw(t, "prev"), reading.Draw(t, "cur")
		s, err := cgroup.Between(&prev, &cur)
		if err != nil {
			return
		}
		most := float64(runtime.NumCPU()) * (1 + 0.2/s.Over.Seconds())
		if s.Over <= 0 || s.CPU < 0 || s.CPU > most*1.001 || s.WorkingSet > s.MemoryUsage || s.Throttled < 0 {
			t.Fatalf("sample out of bounds: %+v", s)
		}
	})
}
