package sketch_test

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"testing"

	"plimsoll.dev/pkg/sketch"
)

// results are the figures of the benchmarks that ran, each from its longest run.
var results = map[string]float64{}

func result(b *testing.B, name string) {
	results[name] = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		fmt.Printf("RESULT %s %.1f ns/op\n", name, results[name])
	}
	os.Exit(code)
}

// hundred is a sketch of a hundred adjacent buckets.
func hundred() *sketch.Sketch {
	var s sketch.Sketch
	for i := range 100 {
		s.Add(0.05*math.Pow((1+sketch.RelativeError)/(1-sketch.RelativeError), float64(i)), float64(1000+i))
	}
	return &s
}

func BenchmarkAdd(b *testing.B) {
	values := make([]float64, 1024)
	for i := range values {
		values[i] = 0.05 * math.Exp(3*math.Sin(float64(i)*0.7))
	}
	var s sketch.Sketch
	for _, v := range values {
		s.Add(v, 1000)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		s.Add(values[i&1023], 1000)
	}
	b.StopTimer()
	result(b, "sketch_add_ns")
}

func BenchmarkMerge(b *testing.B) {
	into, from := hundred(), hundred()
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		into.Merge(from)
	}
	b.StopTimer()
	result(b, "sketch_merge_ns")
}

func BenchmarkQuantile(b *testing.B) {
	s := hundred()
	var sum float64
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		sum += s.Quantile([4]float64{0.5, 0.9, 0.95, 0.99}[i&3])
	}
	b.StopTimer()
	result(b, "sketch_quantile_ns")
	if sum == 0 {
		b.Fatal("no quantile")
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	data := encode(b, hundred())
	var s sketch.Sketch
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		if err := s.UnmarshalBinary(data); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	result(b, "sketch_decode_ns")
}
