package backtest_test

import (
	"math"
	"testing"
	"time"

	"plimsoll.dev/pkg/cli/backtest"
	"plimsoll.dev/pkg/sketch"
)

// TestPeers pins the other tools' rules on a history whose answers follow by hand: ten days of five-minute steps, a
// memory peak of day × 100 MiB once a day, and CPU 1 core for a tenth of the time, else 0.1.
func TestPeers(t *testing.T) {
	tests := map[string]struct {
		rule        backtest.Rule
		cpu, memory float64
	}{
		// The newest day has half of all the weight, so p90 of the peaks is the largest.
		"VPA":      {backtest.VPA(), 0.1 * 1.15, 1000 * 1.15},
		"KRR":      {backtest.KRR(), 1, 1000 * 1.15},
		"Kubecost": {backtest.Kubecost(), 1 / 0.7, 1000 / 0.7},
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			now := start
			for i := range 10 * 288 {
				cpu, memory := 0.1, 100.0*mi
				if i%11 == 0 {
					cpu = 1
				}
				if i%288 == 144 {
					memory = float64(i/288+1) * 100 * mi
				}
				tt.rule.Observe(now, 5*time.Minute, cpu, memory)
				now = now.Add(5 * time.Minute)
			}
			got, ok := tt.rule.Sizes(now)
			if !ok || relative(float64(got.CPURequest), tt.cpu) > sketch.RelativeError+0.001 || relative(float64(got.MemoryRequest), tt.memory*mi) > 0.001 {
				t.Errorf("got %v cores and %v MiB, want %v and %v", got.CPURequest, got.MemoryRequest/mi, tt.cpu, tt.memory)
			}
			if got.MemoryLimit != got.MemoryRequest || got.CPULimit != 0 {
				t.Errorf("limits: %+v", got)
			}
		})
	}
}

func TestPeersRaiseMemoryAfterAKill(t *testing.T) {
	for _, rule := range []backtest.Rule{backtest.VPA(), backtest.KRR(), backtest.Kubecost()} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		rule.Observe(now, time.Minute, 1, 300*mi)
		before, _ := rule.Sizes(now)
		rule.OOM(now, before.MemoryLimit)
		after, _ := rule.Sizes(now)
		if after.MemoryLimit <= before.MemoryLimit {
			t.Errorf("%s: %v after a kill at %v", rule.Name(), after.MemoryLimit, before.MemoryLimit)
		}
	}
}

func TestPeersHaveFloors(t *testing.T) {
	for name, tt := range map[string]struct {
		rule        backtest.Rule
		cpu, memory float64
	}{
		"VPA": {backtest.VPA(), 0.025, 250}, "KRR": {backtest.KRR(), 0.01, 100}, "Kubecost": {backtest.Kubecost(), 0.01, 20},
	} {
		tt.rule.Observe(time.Unix(0, 0), time.Minute, 0.0001, mi)
		if got, _ := tt.rule.Sizes(time.Unix(60, 0)); float64(got.CPURequest) != tt.cpu || float64(got.MemoryRequest) != tt.memory*mi {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func relative(a, b float64) float64 { return math.Abs(a/b - 1) }
