package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"
)

var (
	errNoNumber = errors.New("no number")
	errOverflow = errors.New("number over 64 bits")
)

// missingKeyError names the line a flat keyed file should have and has not.
type missingKeyError struct{ key string }

func (e missingKeyError) Error() string { return "no line " + e.key }

// uintOf parses decimal digits; anything else is an error. It does not allocate.
func uintOf(b []byte) (uint64, error) {
	if len(b) == 0 {
		return 0, errNoNumber
	}
	var n uint64
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 {
			return 0, errNoNumber
		}
		if n > (math.MaxUint64-d)/10 {
			return 0, errOverflow
		}
		n = n*10 + d
	}
	return n, nil
}

// singleValue parses a file that holds one number and a newline.
func singleValue(b []byte) (uint64, error) {
	return uintOf(bytes.TrimSuffix(b, newline))
}

var newline = []byte{'\n'}

// nextLine cuts the next line "key value" off a flat keyed file (Documentation/admin-guide/cgroup-v2.rst, "Format").
// A line without a space has an empty value.
func nextLine(b []byte) (key, value, rest []byte) {
	line := b
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		line, rest = b[:i], b[i+1:]
	}
	if i := bytes.IndexByte(line, ' '); i >= 0 {
		return line[:i], line[i+1:], rest
	}
	return line, nil, rest
}

// flatKeyed sets values[i] to the number on the line keys[i], and returns the set of keys it found, bit i for keys[i].
// Lines come in an order of the kernel's choosing and new ones are added with each release: what is not asked for is
// passed over. Without the first need of the keys it is an error naming the one that is missing.
func flatKeyed(b []byte, keys []string, values []uint64, need int) (found uint32, err error) {
	all := uint32(1)<<len(keys) - 1
	for len(b) > 0 && found != all {
		key, value, rest := nextLine(b)
		b = rest
		for i := range keys {
			if string(key) != keys[i] {
				continue
			}
			if values[i], err = uintOf(value); err != nil {
				return found, fmt.Errorf("%s: %w", keys[i], err)
			}
			found |= 1 << i
			break
		}
	}
	for i := range need {
		if found&(1<<i) == 0 {
			return found, missingKeyError{keys[i]}
		}
	}
	return found, nil
}

// nanos converts a count of the given unit to a Duration, saturating instead of wrapping.
func nanos(n uint64, unit time.Duration) time.Duration {
	if n > uint64(math.MaxInt64)/uint64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n) * unit
}
