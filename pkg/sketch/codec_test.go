package sketch_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/sketch"
)

func encode(t interface{ Fatalf(string, ...any) }, s *sketch.Sketch) []byte {
	b, err := s.AppendBinary(nil)
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	return b
}

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := of(samples(1e-4, sketch.MaxValue).Draw(t, "samples"))
		b := encode(t, s)
		// Whatever was in the sketch before must not show through.
		got := of(samples(1e-4, 1e3).Draw(t, "old"))
		if err := got.UnmarshalBinary(b); err != nil {
			t.Fatalf("UnmarshalBinary: %v", err)
		}
		if got.Weight() != s.Weight() || got.Count() != s.Count() {
			t.Fatalf("weight %v, count %v, want %v, %v", got.Weight(), got.Count(), s.Weight(), s.Count())
		}
		for q := 0.0; q <= 1; q += 1.0 / 64 {
			if w := s.Quantile(q); math.Abs(got.Quantile(q)-w) > w/8e6 {
				t.Fatalf("quantile %v = %v, want %v", q, got.Quantile(q), w)
			}
		}
		if got.Min() > s.Min() || got.Max() < s.Max() {
			t.Fatalf("extremes %v, %v are within %v, %v", got.Min(), got.Max(), s.Min(), s.Max())
		}
		if m := s.Mean(); math.Abs(got.Mean()-m) > m*1e-9 || math.Abs(got.Variance()-s.Variance()) > 4e-9*(s.Variance()+m*m) {
			t.Fatalf("moments %v %v, want %v %v", got.Mean(), got.Variance(), m, s.Variance())
		}
		if again := encode(t, got); !bytes.Equal(b, again) {
			t.Fatalf("encoding again gives %x, want %x", again, b)
		}
		if err := got.UnmarshalBinary(b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")]); err == nil {
			t.Fatalf("a cut encoding was accepted")
		}
		if !got.Empty() || got.Weight() != 0 || got.Quantile(0.5) != 0 {
			t.Fatalf("a refused encoding left something behind")
		}
	})
}

func TestCodecKeepsDecayedSketchesToTheMillisecond(t *testing.T) {
	s := of(exact{{1, 1000}, {2, 3000}})
	s.Scale(0.25)
	s.Add(4, 0.2)
	var got sketch.Sketch
	if err := got.UnmarshalBinary(encode(t, s)); err != nil {
		t.Fatal(err)
	}
	if got.Weight() != 250+750+1 {
		t.Errorf("weight %v", got.Weight())
	}
}

func TestCodecRefuses(t *testing.T) {
	good := encode(t, of(exact{{1, 10}, {2, 10}}))
	tests := map[string]struct {
		in   []byte
		want string
	}{
		"nothing":         {nil, "ends in the middle"},
		"a later version": {append([]byte{2}, good[1:]...), "version 2 is not known"},
		"trailing bytes":  {append(bytes.Clone(good), 0), "1 bytes follow the end"},
		"a long varint":   {append([]byte{1}, bytes.Repeat([]byte{0xff}, 20)...), "ends in the middle"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var s sketch.Sketch
			err := s.UnmarshalBinary(tc.in)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	heavy := of(exact{{1, 1e300}})
	if _, err := heavy.AppendBinary(nil); err == nil {
		t.Error("a weight that does not fit was encoded")
	}
}

func FuzzUnmarshalBinary(f *testing.F) {
	for _, e := range []exact{nil, {{0, 1000}}, {{1, 10}, {2, 10}}, {{0.001, 1}, {0.5, 700}, {1e15, 3}}} {
		f.Add(encode(f, of(e)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var s sketch.Sketch
		if s.UnmarshalBinary(b) != nil {
			if !s.Empty() || s.Weight() != 0 {
				t.Fatalf("a refused encoding left a sketch behind")
			}
			return
		}
		for _, q := range []float64{0, 0.5, 0.99, 1} {
			if v := s.Quantile(q); !(v >= s.Min() && v <= s.Max()) {
				t.Fatalf("quantile %v = %v is not within %v and %v", q, v, s.Min(), s.Max())
			}
		}
		var again sketch.Sketch
		if err := again.UnmarshalBinary(encode(t, &s)); err != nil {
			t.Fatalf("what was accepted does not round-trip: %v", err)
		}
		if diff := cmp.Diff(shape(&s), shape(&again)); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}
