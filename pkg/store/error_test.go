package store_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

var quantiles = []float64{0.5, 0.75, 0.9, 0.95, 0.99, 0.999}

// weighted is a sample and what it counts.
type weighted struct{ value, weight float64 }

// exactQuantiles returns the quantiles of weighted samples, which it sorts.
func exactQuantiles(s []weighted) []float64 {
	slices.SortFunc(s, func(a, b weighted) int {
		if a.value < b.value {
			return -1
		}
		return 1
	})
	var total float64
	for _, x := range s {
		total += x.weight
	}
	var got []float64
	var seen float64
	for _, x := range s {
		seen += x.weight
		for len(got) < len(quantiles) && seen >= quantiles[len(got)]*total {
			got = append(got, x.value)
		}
	}
	return got
}

// driftingHours is 8 days of samples, one each five seconds: a day's rhythm, noise, and a level that rises by a tenth a
// day, so that it matters how old samples fade.
func driftingHours(first int64) map[int64][]float64 {
	rnd := rand.New(rand.NewPCG(1, 2))
	hours := map[int64][]float64{}
	for h := first; h < first+192; h++ {
		day := 0.6 - 0.4*math.Cos(2*math.Pi*float64(h%24)/24)
		level := day * math.Pow(1.1, float64(h-first)/24)
		for range 720 {
			hours[h] = append(hours[h], level*math.Exp(0.5*rnd.NormFloat64()))
		}
	}
	return hours
}

// TestQuantilesOfEightDays compares a folded window with the exact quantiles of its samples, first at the weights of the
// blocks, then as if every sample faded for itself.
func TestQuantilesOfEightDays(t *testing.T) {
	s := open(t, env.StartRedis(t, env.RedisOptions{}).Addr())
	last := store.HourOf(noon)
	hours := driftingHours(last - 192)
	now := time.Unix(last*3600, 0)
	for h, values := range hours {
		blob := store.Blob{Final: true, Flush: uint64(len(values)), Started: time.Unix(h*3600, 0)}
		blob.Usage[sample.CPU] = &sketch.Sketch{}
		for _, v := range values {
			blob.Usage[sample.CPU].Add(v, 5000)
		}
		value, err := blob.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		flush(t, s, store.Batch{Writes: []store.Write{{Field: field(h, uint64(h)), Value: value}}})
	}
	fold(t, s, now)
	got := window(t, s, now).Containers["app"].Usage[sample.CPU]

	exact := exactQuantiles(atBlocks(hours, now, retention.HalfLife))
	var worst float64
	for i, q := range quantiles {
		worst = max(worst, math.Abs(got.Quantile(q)-exact[i])/exact[i])
	}
	if worst > 0.025 {
		t.Errorf("worst relative error %v", worst)
	}
	result("sketch_worst_error", worst*100, "%")

	// The block length, a quarter of the half-life, keeps the error it adds well below the sketch's own.
	errors := map[time.Duration]float64{}
	for _, length := range []time.Duration{time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour} {
		errors[length] = rankError(hours, now, exactQuantiles(atBlocks(hours, now, 4*length)))
	}
	t.Logf("rank error by block length: %v", errors)
	if e := errors[6*time.Hour]; e > 0.005 {
		t.Errorf("rank error %v", e)
	}
	result("sketch_rank_error", errors[6*time.Hour]*100, "%")
}

func fade(now time.Time, middle float64) float64 {
	return math.Exp2(-(float64(now.Unix())/3600 - middle) / retention.HalfLife.Hours())
}

// atBlocks weights samples as blocks do which a half-life of this length names.
func atBlocks(hours map[int64][]float64, now time.Time, blockHalfLife time.Duration) []weighted {
	first, last := map[int64]int64{}, map[int64]int64{}
	for h := range hours {
		b := store.BlockOf(h, blockHalfLife)
		if _, ok := first[b]; !ok {
			first[b], last[b] = h, h
		}
		first[b], last[b] = min(first[b], h), max(last[b], h)
	}
	var all []weighted
	for h, values := range hours {
		b := store.BlockOf(h, blockHalfLife)
		weight := fade(now, float64(first[b]+last[b]+1)/2)
		for _, v := range values {
			all = append(all, weighted{v, weight})
		}
	}
	return all
}

// rankError returns how far at most the values' ranks, each sample fading for itself, are from the quantiles.
func rankError(hours map[int64][]float64, now time.Time, values []float64) float64 {
	var total float64
	below := make([]float64, len(values))
	for h, samples := range hours {
		for i, v := range samples {
			weight := fade(now, float64(h)+float64(i)/float64(len(samples)))
			total += weight
			for j, x := range values {
				if v <= x {
					below[j] += weight
				}
			}
		}
	}
	var worst float64
	for j, q := range quantiles {
		worst = max(worst, math.Abs(below[j]/total-q))
	}
	return worst
}
