package sample_test

import (
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/sample"
)

func TestResourceNamesRoundTrip(t *testing.T) {
	for i, r := range sample.Resources {
		if int(r) != i {
			t.Errorf("Resources[%d] = %d", i, r)
		}
		got, err := sample.ParseResource(r.String())
		if err != nil || got != r {
			t.Errorf("ParseResource(%q) = %v, %v", r, got, err)
		}
	}
	if _, err := sample.ParseResource("gpu"); err == nil {
		t.Error("ParseResource accepted gpu")
	}
	if got := sample.Resource(9).String(); got != "resource-9" {
		t.Errorf("unknown resource prints as %q", got)
	}
}

func TestResourceNumbersAreTheStoredOnes(t *testing.T) {
	want := map[string]uint8{"cpu": 0, "cpu-burst": 1, "memory": 2, "memory-peak": 3, "ephemeral-storage": 4}
	for name, n := range want {
		if r, err := sample.ParseResource(name); err != nil || uint8(r) != n {
			t.Errorf("%s = %d, %v, want %d", name, r, err, n)
		}
	}
}

func TestQuantity(t *testing.T) {
	tests := map[string]struct {
		amount   sample.Amount
		resource sample.Resource
		want     string
	}{
		"zero cpu":           {0, sample.CPU, "0"},
		"rounds up a milli":  {0.0101, sample.CPU, "11m"},
		"float noise":        {1.1, sample.CPU, "1100m"},
		"product noise":      {0.1 * 3, sample.CPUBurst, "300m"},
		"bytes round up":     {100.2, sample.EphemeralStorage, "101"},
		"binary suffix":      {512 << 20, sample.Memory, "512Mi"},
		"negative":           {-3, sample.Memory, "0"},
		"not a number":       {sample.Amount(math.NaN()), sample.MemoryPeak, "0"},
		"beyond the largest": {sample.Amount(math.Inf(1)), sample.Memory, "9223372036854775807"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			q := tc.amount.Quantity(tc.resource)
			if want := resource.MustParse(tc.want); q.Cmp(want) != 0 {
				t.Errorf("got %s, want %s", q.String(), tc.want)
			}
		})
	}
}

func TestQuantityNeverLosesAndRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom(sample.Resources[:]).Draw(t, "resource")
		largest, unit := 1e15, 1.0
		if r.IsCPU() {
			largest, unit = 1e6, 1e-3
		}
		a := sample.Amount(rapid.Float64Range(0, largest).Draw(t, "amount"))
		q := a.Quantity(r)
		back := sample.FromQuantity(q)
		slack := math.Max(unit*1e-6, float64(a)*1e-13)
		if float64(back) < float64(a)-slack || float64(back) > float64(a)+unit+slack {
			t.Fatalf("%v became %v", a, back)
		}
		if again := back.Quantity(r); again.Cmp(q) != 0 {
			t.Fatalf("%s became %s", q.String(), again.String())
		}
	})
}
