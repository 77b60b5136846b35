package sketch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// The encoding is the version byte, then unsigned varints unless said otherwise:
//
//	count            nothing follows if it is 0
//	min, max         floats of 24 significant bits, rounded outwards
//	sum, squares     sums of value × weight and value² × weight, floats of 31 significant bits
//	unit             milliseconds that every weight below is a multiple of
//	zero             weight below MinValue, in units
//	span             buckets from the first to the last that is not empty
//	first            signed varint, index of the first bucket; absent if span is 0
//	weights          in units and in order, each as a signed varint, its difference to the one before; one that makes 0 is
//	                 followed by the number of further empty buckets
//
// A float is its bits in reverse byte order, so that trailing zeros take no room.
//
// The version stands for the mapping and RelativeError too: another mapping is another version.
const version = 1

const (
	extremeBits = 23 // of the mantissa, beside the implied one: 5 bytes in all
	sumBits     = 30 // 6 bytes in all
)

// maxWeight is the largest total weight that is exact in floating point, in milliseconds.
const maxWeight = 1 << 53

var errTruncated = errors.New("sketch ends in the middle")

// AppendBinary appends the sketch's encoding to b. Weights are stored in whole milliseconds, at least one for each bucket
// in use; Min and Max widen by less than one part in eight million, mean and variance move by less than one in a billion.
// It fails only if the total weight exceeds 2^53 ms.
func (s *Sketch) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, version)
	b = binary.AppendUvarint(b, s.count)
	if s.count == 0 {
		return b, nil
	}
	if s.weight > maxWeight {
		return nil, fmt.Errorf("encoding sketch: a weight of %g ms is too large", s.weight)
	}
	b = appendFloat(b, math.Float64bits(s.min), extremeBits)
	b = appendFloat(b, math.Float64bits(s.max)+1<<(52-extremeBits)-1, extremeBits)
	b = appendFloat(b, math.Float64bits(s.sum)+1<<(51-sumBits), sumBits)
	b = appendFloat(b, math.Float64bits(s.sumSquares)+1<<(51-sumBits), sumBits)
	first, span, unit := s.extent()
	b = binary.AppendUvarint(b, unit)
	b = binary.AppendUvarint(b, whole(s.zero)/unit)
	b = binary.AppendUvarint(b, uint64(span))
	if span == 0 {
		return b, nil
	}
	b = binary.AppendVarint(b, int64(s.low+first))
	bins := s.bins[first : first+span]
	before := int64(0)
	for i := 0; i < len(bins); i++ {
		w := int64(whole(bins[i]) / unit)
		b = binary.AppendVarint(b, w-before)
		if before = w; w > 0 {
			continue
		}
		empty := 0
		for bins[i+1] <= 0 {
			i, empty = i+1, empty+1
		}
		b = binary.AppendUvarint(b, uint64(empty))
	}
	return b, nil
}

// appendFloat appends a non-negative float, given by its bits, cut to the leading bits of its mantissa.
func appendFloat(b []byte, float uint64, mantissa int) []byte {
	return binary.AppendUvarint(b, bits.ReverseBytes64(float&^(1<<(52-mantissa)-1)))
}

// extent returns the first bucket in use, how many buckets there are from it to the last in use, and the greatest common
// divisor of all weights.
func (s *Sketch) extent() (first, span int, unit uint64) {
	unit = whole(s.zero)
	first = -1
	for i, w := range s.bins {
		if w <= 0 {
			continue
		}
		if first < 0 {
			first = i
		}
		span = i + 1 - first
		if unit != 1 {
			unit = gcd(unit, whole(w))
		}
	}
	return first, span, max(unit, 1)
}

// whole rounds a weight to milliseconds, but never a positive one to nothing.
func whole(w float64) uint64 {
	if w <= 0 {
		return 0
	}
	return max(1, uint64(w+0.5))
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// UnmarshalBinary replaces the sketch by an encoded one, reusing its memory. An encoding of another version, or one that
// no sketch can have, is refused with an error and leaves the sketch empty.
func (s *Sketch) UnmarshalBinary(b []byte) error {
	bins := s.bins[:0]
	*s = Sketch{bins: bins}
	if err := s.decode(b); err != nil {
		*s = Sketch{bins: bins}
		return fmt.Errorf("decoding sketch: %w", err)
	}
	return nil
}

func (s *Sketch) decode(b []byte) error {
	if len(b) == 0 {
		return errTruncated
	}
	if b[0] != version {
		return fmt.Errorf("version %d is not known, want %d", b[0], version)
	}
	r := reader{b: b[1:]}
	s.count = r.uvarint()
	if s.count > 0 {
		s.min, s.max, s.sum, s.sumSquares = r.float(), r.float(), r.float(), r.float()
		s.decodeWeights(&r)
	}
	switch {
	case r.err != nil:
		return r.err
	case len(r.b) > 0:
		return fmt.Errorf("%d bytes follow the end", len(r.b))
	case s.count > 0 && !(s.weight > 0 && s.weight <= maxWeight):
		return fmt.Errorf("total weight %g is out of range", s.weight)
	case !(s.min >= 0 && s.min <= s.max && s.max <= MaxValue):
		return fmt.Errorf("extremes %g and %g are out of range", s.min, s.max)
	case !(s.sum >= 0 && s.sum <= math.MaxFloat64 && s.sumSquares >= 0 && s.sumSquares <= math.MaxFloat64):
		return fmt.Errorf("sums %g and %g are out of range", s.sum, s.sumSquares)
	}
	return nil
}

func (s *Sketch) decodeWeights(r *reader) {
	unit := r.uvarint()
	if unit == 0 || unit > maxWeight {
		r.fail(fmt.Errorf("weight unit %d is out of range", unit))
	}
	scale := float64(unit)
	s.zero = float64(r.uvarint()) * scale
	s.weight = s.zero
	span := r.uvarint()
	if span == 0 || r.err != nil {
		return
	}
	first := r.varint()
	if span > uint64(maxIndex-minIndex+1) || first < int64(minIndex) || first+int64(span)-1 > int64(maxIndex) {
		r.fail(fmt.Errorf("%d buckets from %d on are out of range", span, first))
		return
	}
	s.low = int(first)
	s.bins = slices.Grow(s.bins, int(span))[:span]
	clear(s.bins)
	w := int64(0)
	for i := 0; i < len(s.bins) && r.err == nil; i++ {
		// Most differences take one byte, and decoding them is what a reader of many sketches spends its time on.
		if b := r.b; len(b) > 0 && b[0] < 0x80 {
			w, r.b = w+(int64(b[0]>>1)^-int64(b[0]&1)), b[1:]
		} else {
			w += r.varint()
		}
		if w == 0 {
			empty := r.uvarint()
			if empty >= span {
				r.fail(fmt.Errorf("%d empty buckets are too many", empty))
				return
			}
			i += int(empty)
			continue
		}
		if w < 0 || w > maxWeight {
			r.fail(fmt.Errorf("weight %d is out of range", w))
			return
		}
		s.bins[i] = float64(w) * scale
		s.weight += s.bins[i]
	}
}

// reader takes varints off a slice and remembers the first error, after which it yields zeros.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) uvarint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 && r.err == nil {
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	v, n := binary.Uvarint(r.b)
	return v * r.advance(n)
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	return v * int64(r.advance(n))
}

// advance skips n bytes and returns 1, or records that a varint was cut off or too long and returns 0.
func (r *reader) advance(n int) uint64 {
	if n <= 0 {
		r.fail(errTruncated)
	}
	if r.err != nil {
		return 0
	}
	r.b = r.b[n:]
	return 1
}

func (r *reader) float() float64 {
	return math.Float64frombits(bits.ReverseBytes64(r.uvarint()))
}
