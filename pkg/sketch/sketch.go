// Package sketch holds the mergeable quantile sketch all measurements are kept in: logarithmic buckets with a bounded
// relative error, weighted by the time each value covers, plus the exact moments and extremes.
package sketch

import "math"

// Sketch is a weighted distribution of non-negative values in memory that grows with the logarithm of their range only.
// The zero value is empty and ready to use. It is not safe for concurrent use.
//
// Merging adds bucket by bucket. With weights in whole milliseconds it is exactly commutative and associative for
// everything but Mean and Variance, which are so up to the rounding of floating-point sums.
type Sketch struct {
	bins []float64 // weight of bucket low+i
	low  int

	zero       float64 // weight of values below MinValue
	weight     float64
	sum        float64 // of value × weight
	sumSquares float64 // of value² × weight
	min, max   float64 // meaningful when count > 0
	count      uint64
}

// growth is the spare room on the side a sketch grew to, in buckets, so that a series that wanders does not copy the
// bins at every step.
const growth = 16

// Add counts a value that held for weight milliseconds. Values above MaxValue are taken as MaxValue. A value that is
// negative, infinite or not a number, or a weight that is not positive and finite, is ignored: the caller has no sample
// then.
func (s *Sketch) Add(value, weight float64) {
	if !(value >= 0 && value <= math.MaxFloat64 && weight > 0 && weight <= math.MaxFloat64) {
		return
	}
	value = min(value, MaxValue)
	if s.count == 0 {
		s.min, s.max = value, value
	} else if value < s.min {
		s.min = value
	} else if value > s.max {
		s.max = value
	}
	s.count++
	s.weight += weight
	s.sum += value * weight
	s.sumSquares += value * value * weight
	if value < MinValue {
		s.zero += weight
		return
	}
	i := index(value)
	if uint(i-s.low) >= uint(len(s.bins)) {
		s.cover(i, i)
	}
	s.bins[i-s.low] += weight
}

// cover makes room for the buckets first to last.
func (s *Sketch) cover(first, last int) {
	if len(s.bins) == 0 {
		s.low = max(first-growth/2, minIndex)
		s.bins = make([]float64, min(last+growth/2, maxIndex)+1-s.low)
		return
	}
	low, high := s.low, s.low+len(s.bins)-1
	if first >= low && last <= high {
		return
	}
	if first < low {
		low = max(first-growth, minIndex)
	}
	if last > high {
		high = min(last+growth, maxIndex)
	}
	bins := make([]float64, high-low+1)
	copy(bins[s.low-low:], s.bins)
	s.bins, s.low = bins, low
}

// Merge adds everything o holds; o is left as it is and may be nil.
func (s *Sketch) Merge(o *Sketch) { s.MergeScaled(o, 1) }

// MergeScaled adds everything o holds with its weights times factor, as if o had been scaled before.
func (s *Sketch) MergeScaled(o *Sketch, factor float64) {
	if o == nil || o.count == 0 || !(factor >= 0) {
		return
	}
	s.extend(o.min, o.max, o.count)
	s.weight += o.weight * factor
	s.zero += o.zero * factor
	s.sum += o.sum * factor
	s.sumSquares += o.sumSquares * factor
	if len(o.bins) == 0 {
		return
	}
	s.cover(o.low, o.low+len(o.bins)-1)
	into := s.bins[o.low-s.low:][:len(o.bins)]
	for i, w := range o.bins {
		into[i] += w * factor
	}
}

// extend takes in the extremes and the count of another non-empty sketch.
func (s *Sketch) extend(low, high float64, count uint64) {
	if s.count == 0 {
		s.min, s.max = low, high
	} else {
		s.min, s.max = min(s.min, low), max(s.max, high)
	}
	s.count += count
}

// Scale multiplies every weight by factor, which is how old measurements decay; the extremes and the count stay.
func (s *Sketch) Scale(factor float64) {
	if !(factor >= 0 && factor <= math.MaxFloat64) {
		return
	}
	s.weight *= factor
	s.zero *= factor
	s.sum *= factor
	s.sumSquares *= factor
	for i := range s.bins {
		s.bins[i] *= factor
	}
}

// Reset empties the sketch and keeps its memory.
func (s *Sketch) Reset() {
	clear(s.bins)
	*s = Sketch{bins: s.bins, low: s.low}
}

// Clone returns an independent copy.
func (s *Sketch) Clone() *Sketch {
	c := *s
	c.bins = append([]float64(nil), s.bins...)
	return &c
}

// Weight returns the total weight in milliseconds.
func (s *Sketch) Weight() float64 { return s.weight }

// Count returns how many values were added; scaling does not change it.
func (s *Sketch) Count() uint64 { return s.count }

// Empty reports whether no value was ever added.
func (s *Sketch) Empty() bool { return s.count == 0 }

// Min returns the smallest value added, exactly; 0 if empty.
func (s *Sketch) Min() float64 { return s.min }

// Max returns the largest value added, exactly; 0 if empty.
func (s *Sketch) Max() float64 { return s.max }

// Mean returns the weighted mean, from the exact values; 0 if empty.
func (s *Sketch) Mean() float64 {
	if !(s.weight > 0) {
		return 0
	}
	return s.sum / s.weight
}

// Variance returns the weighted population variance, from the exact values; 0 if empty.
func (s *Sketch) Variance() float64 {
	if !(s.weight > 0) {
		return 0
	}
	mean := s.sum / s.weight
	return max(0, s.sumSquares/s.weight-mean*mean)
}

// Quantile returns the smallest value that at least the share q of the weight does not exceed, within RelativeError (or
// MinValue, below it) and always between Min and Max. q below 0 is Min, above 1 Max; an empty sketch answers 0.
func (s *Sketch) Quantile(q float64) float64 {
	switch {
	case !(s.weight > 0) || !(q > 0):
		return s.min
	case q >= 1:
		return s.max
	case q <= 0.5:
		return s.clamp(s.fromBelow(q * s.weight))
	default:
		return s.clamp(s.fromAbove(s.weight - q*s.weight))
	}
}

// fromBelow returns the value of the first bucket at which the weight counted from the bottom reaches rank.
func (s *Sketch) fromBelow(rank float64) float64 {
	seen := s.zero
	if seen >= rank && seen > 0 {
		return 0
	}
	last := -1
	for i, w := range s.bins {
		seen += w
		if w > 0 {
			if last = i; seen >= rank {
				break
			}
		}
	}
	if last < 0 {
		return 0
	}
	return representative(s.low + last)
}

// fromAbove returns the value of the first bucket, from the top, at which the weight counted exceeds rank: quantiles in
// the tail are found near the end, and lose nothing to the rounding of a long sum.
func (s *Sketch) fromAbove(rank float64) float64 {
	var seen float64
	for i := len(s.bins) - 1; i >= 0; i-- {
		if seen += s.bins[i]; seen > rank {
			return representative(s.low + i)
		}
	}
	return 0
}

func (s *Sketch) clamp(v float64) float64 { return max(s.min, min(s.max, v)) }

// Above returns the share of the weight, 0 to 1, that lay strictly above x. Within x's own bucket the weight is taken as
// evenly spread; values below MinValue count as not above any x from Min on.
func (s *Sketch) Above(x float64) float64 {
	switch {
	case !(s.weight > 0) || x >= s.max:
		return 0
	case x < s.min || math.IsNaN(x):
		return 1
	}
	var above float64
	first := 0
	if x >= MinValue {
		own := index(x) - s.low
		if own >= 0 && own < len(s.bins) {
			low, high := lowerBound(s.low+own), lowerBound(s.low+own+1)
			above = s.bins[own] * max(0, min(1, (high-x)/(high-low)))
		}
		first = max(0, own+1)
	}
	for i := first; i < len(s.bins); i++ {
		above += s.bins[i]
	}
	return min(1, above/s.weight)
}
