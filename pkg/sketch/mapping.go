package sketch

import "math"

const (
	// RelativeError is the largest relative difference between a value between MinValue and MaxValue and the value its
	// bucket answers with, and so the largest relative error of a quantile.
	RelativeError = 0.02

	// MinValue is the resolution: amounts below it (a millicore; far below a byte's worth of anything) count as zero.
	MinValue = 1e-3
	// MaxValue is the largest amount told apart, a pebibyte; what exceeds it is taken as MaxValue.
	MaxValue = 1 << 50
)

// The mapping is DDSketch's with cubic interpolation: the exponent of the floating-point number plus a cubic polynomial
// of its mantissa stands in for the logarithm. The polynomial's slope is never below 10/7 of a natural logarithm's, so
// the error bound is kept with 1 % more buckets than logarithms need, at a quarter of their cost.
const (
	cubicA = 6.0 / 35
	cubicB = -3.0 / 5
	cubicC = 10.0 / 7
)

// perOctave is the number of buckets per doubling of the value.
var perOctave = 7 / (10 * math.Log((1+RelativeError)/(1-RelativeError)))

// minIndex and maxIndex are the buckets of MinValue and MaxValue; no other index is ever stored.
var minIndex, maxIndex = index(MinValue), index(MaxValue)

// index returns the bucket of a value in [MinValue, MaxValue].
func index(v float64) int {
	const mantissaBits = 52
	bits := math.Float64bits(v)
	exponent := float64(int(bits>>mantissaBits) - 1023)
	s := math.Float64frombits(bits&(1<<mantissaBits-1)|1023<<mantissaBits) - 1
	return int(math.Floor(perOctave * (((cubicA*s+cubicB)*s+cubicC)*s + exponent)))
}

// lowerBound returns the smallest value of a bucket, by three Newton steps from the logarithm the cubic stands in for.
func lowerBound(i int) float64 {
	x := float64(i) / perOctave
	exponent := math.Floor(x)
	target := x - exponent
	s := math.Exp2(target) - 1
	for range 3 {
		f := ((cubicA*s+cubicB)*s+cubicC)*s - target
		s -= f / ((3*cubicA*s+2*cubicB)*s + cubicC)
	}
	return math.Ldexp(1+s, int(exponent))
}

// representative returns the value a bucket answers with: equally far, relatively, from both its ends.
func representative(i int) float64 {
	low, high := lowerBound(i), lowerBound(i+1)
	return 2 * low * high / (low + high)
}
