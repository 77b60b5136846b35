package sketch_test

import (
	"math"
	"sort"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/sketch"
)

type weighted struct{ value, weight float64 }

// exact is the reference: every sample kept.
type exact []weighted

func (e exact) sorted() exact {
	s := append(exact(nil), e...)
	sort.Slice(s, func(i, j int) bool { return s[i].value < s[j].value })
	return s
}

func (e exact) weight() float64 {
	var w float64
	for _, s := range e {
		w += s.weight
	}
	return w
}

func (e exact) quantile(q float64) float64 {
	s, seen := e.sorted(), 0.0
	for _, x := range s {
		if seen += x.weight; seen >= q*e.weight() {
			return x.value
		}
	}
	return s[len(s)-1].value
}

// above returns the share of weight above x times 1+slack.
func (e exact) above(x float64) float64 {
	var w float64
	for _, s := range e {
		if s.value > x {
			w += s.weight
		}
	}
	return w / e.weight()
}

func samples(resolution, largest float64) *rapid.Generator[exact] {
	return rapid.Custom(func(t *rapid.T) exact {
		spread := rapid.Float64Range(0, math.Log(largest/resolution)).Draw(t, "spread")
		n := rapid.IntRange(1, 200).Draw(t, "n")
		e := make(exact, n)
		for i := range e {
			e[i] = weighted{
				value:  resolution * math.Exp(rapid.Float64Range(0, spread).Draw(t, "log")),
				weight: float64(rapid.IntRange(1, 5000).Draw(t, "weight")),
			}
		}
		return e
	})
}

func of(e exact) *sketch.Sketch {
	var s sketch.Sketch
	for _, x := range e {
		s.Add(x.value, x.weight)
	}
	return &s
}

func TestQuantilesAreWithinTheDocumentedError(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := samples(sketch.MinValue, sketch.MaxValue).Draw(t, "samples")
		s := of(e)
		for _, q := range []float64{0, 0.01, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1} {
			want, got := e.quantile(q), s.Quantile(q)
			if math.Abs(got-want) > want*sketch.RelativeError*(1+1e-9) {
				t.Fatalf("quantile %v = %v, want %v", q, got, want)
			}
		}
	})
}

func TestMomentsAndExtremesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := samples(sketch.MinValue, 1e6).Draw(t, "samples")
		s := of(e)
		var sum, squares float64
		for _, x := range e {
			sum += x.value * x.weight
		}
		mean := sum / e.weight()
		for _, x := range e {
			squares += (x.value - mean) * (x.value - mean) * x.weight
		}
		sorted := e.sorted()
		if s.Min() != sorted[0].value || s.Max() != sorted[len(e)-1].value {
			t.Fatalf("extremes %v, %v", s.Min(), s.Max())
		}
		if s.Weight() != e.weight() || s.Count() != uint64(len(e)) {
			t.Fatalf("weight %v, count %v", s.Weight(), s.Count())
		}
		if math.Abs(s.Mean()-mean) > 1e-9*mean {
			t.Fatalf("mean %v, want %v", s.Mean(), mean)
		}
		if want := squares / e.weight(); math.Abs(s.Variance()-want) > 1e-9*(want+mean*mean) {
			t.Fatalf("variance %v, want %v", s.Variance(), want)
		}
	})
}

func TestAboveLiesBetweenTheSharesOfTheBucketsEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := samples(sketch.MinValue, 1e12).Draw(t, "samples")
		x := e[0].value * rapid.Float64Range(0.5, 2).Draw(t, "factor")
		got := of(e).Above(x)
		width := 1 + 2.1*sketch.RelativeError
		if low, high := e.above(x*width), e.above(x/width); got < low-1e-12 || got > high+1e-12 {
			t.Fatalf("above %v = %v, want within %v and %v", x, got, low, high)
		}
	})
}

func TestMergeIsCommutativeAndAssociative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := samples(1e-4, 1e12)
		a, b, c := g.Draw(t, "a"), g.Draw(t, "b"), g.Draw(t, "c")
		all := of(append(append(append(exact(nil), a...), b...), c...))

		left := of(a)
		left.Merge(of(b))
		left.Merge(of(c))
		bc := of(c)
		bc.Merge(of(b))
		right := of(a)
		right.Merge(bc)
		for name, s := range map[string]*sketch.Sketch{"(a+b)+c": left, "a+(c+b)": right} {
			if diff := cmp.Diff(shape(all), shape(s)); diff != "" {
				t.Fatalf("%s differs from adding all (-want +got):\n%s", name, diff)
			}
			if math.Abs(s.Mean()-all.Mean()) > 1e-12*all.Mean() {
				t.Fatalf("%s mean %v, want %v", name, s.Mean(), all.Mean())
			}
		}
	})
}

// shape is everything of a sketch that must be exactly equal, whatever the order it was built in.
func shape(s *sketch.Sketch) map[string]float64 {
	m := map[string]float64{"weight": s.Weight(), "count": float64(s.Count()), "min": s.Min(), "max": s.Max()}
	for q := 0.0; q <= 1; q += 1.0 / 64 {
		m[string(rune('0'+int(q*64)))] = s.Quantile(q)
	}
	return m
}

func TestScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := samples(1e-4, 1e9).Draw(t, "samples")
		factor := math.Exp2(-float64(rapid.IntRange(0, 40).Draw(t, "halvings")))
		s, want := of(e), of(e)
		s.Scale(factor)
		for _, q := range []float64{0.1, 0.5, 0.9, 0.99} {
			if s.Quantile(q) != want.Quantile(q) {
				t.Fatalf("scaling moved quantile %v from %v to %v", q, want.Quantile(q), s.Quantile(q))
			}
		}
		if s.Weight() != want.Weight()*factor || s.Count() != want.Count() || s.Max() != want.Max() {
			t.Fatalf("weight %v, count %v, max %v", s.Weight(), s.Count(), s.Max())
		}
		var merged sketch.Sketch
		merged.MergeScaled(want, factor)
		if diff := cmp.Diff(shape(s), shape(&merged)); diff != "" {
			t.Fatalf("MergeScaled differs from Scale and Merge (-scaled +merged):\n%s", diff)
		}
	})
}

func TestEdges(t *testing.T) {
	tests := map[string]struct {
		add                  []weighted
		median, max, above1m float64
		weight               float64
		count                uint64
	}{
		"empty":                  {},
		"only zeros":             {add: []weighted{{0, 1000}, {0, 500}}, weight: 1500, count: 2},
		"below the resolution":   {add: []weighted{{0.0004, 1000}}, median: 0.0004, max: 0.0004, weight: 1000, count: 1},
		"zero and one core":      {add: []weighted{{0, 1000}, {1, 3000}}, median: 1, max: 1, above1m: 0.75, weight: 4000, count: 2},
		"beyond the largest":     {add: []weighted{{1e18, 10}}, median: 1 << 50, max: 1 << 50, above1m: 1, weight: 10, count: 1},
		"negative is ignored":    {add: []weighted{{-1, 10}}},
		"NaN is ignored":         {add: []weighted{{math.NaN(), 10}}},
		"infinite is ignored":    {add: []weighted{{math.Inf(1), 10}, {1, math.Inf(1)}}},
		"no weight is ignored":   {add: []weighted{{1, 0}, {1, -5}, {1, math.NaN()}}},
		"one value":              {add: []weighted{{0.25, 1000}}, median: 0.25, max: 0.25, above1m: 1, weight: 1000, count: 1},
		"C27 ten thousand times": {add: repeat(weighted{0.3, 100}, 10000), median: 0.3, max: 0.3, above1m: 1, weight: 1e6, count: 10000},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := of(tc.add)
			got := []float64{s.Quantile(0.5), s.Max(), s.Above(0.001), s.Weight(), float64(s.Count())}
			want := []float64{tc.median, tc.max, tc.above1m, tc.weight, float64(tc.count)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("median, max, above, weight, count (-want +got):\n%s", diff)
			}
			if s.Empty() != (tc.count == 0) {
				t.Errorf("Empty() = %v", s.Empty())
			}
		})
	}
}

func repeat(x weighted, n int) []weighted {
	e := make([]weighted, n)
	for i := range e {
		e[i] = x
	}
	return e
}

func TestTellsAMillicoreAndAMebibyteApart(t *testing.T) {
	for name, pair := range map[string][2]float64{
		"1 and 2 millicores": {0.001, 0.002}, "9 and 10 millicores": {0.009, 0.010}, "19 and 21 millicores": {0.019, 0.021},
		"1 and 2 MiB": {1 << 20, 2 << 20}, "19 and 21 MiB": {19 << 20, 21 << 20},
	} {
		s := of(exact{{pair[0], 1}, {pair[1], 1}})
		if share := s.Above((pair[0] + pair[1]) / 2); share != 0.5 {
			t.Errorf("%s: share above the middle is %v", name, share)
		}
	}
}

func TestResetAndCloneAreIndependent(t *testing.T) {
	a := of(exact{{1, 10}, {2, 10}})
	b := a.Clone()
	a.Reset()
	a.Add(5, 1)
	if a.Count() != 1 || a.Quantile(0.1) != 5 || b.Count() != 2 || b.Max() != 2 {
		t.Errorf("after Reset: %v %v; clone: %v %v", a.Count(), a.Quantile(0.1), b.Count(), b.Max())
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	var s sketch.Sketch
	s.Add(0.01, 1)
	s.Add(10, 1)
	v := 0.01
	if n := testing.AllocsPerRun(1000, func() { s.Add(v, 1000); v *= 1.005 }); n != 0 {
		t.Errorf("Add allocates %v times", n)
	}
}
