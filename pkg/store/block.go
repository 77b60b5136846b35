package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
)

// A block blob holds everything folded of one container:
//
//	version    1 byte
//	hours      varint, number of hours with a sample; for each: varint hours since the block's first, varint minutes missing
//	sketches   as in an hour blob
const blockVersion = 1

// errOverlap is what a blob claims that no owner can have written.
var errOverlap = errors.New("an hour is there twice or out of order")

// hourMinutes are the covered minutes of one hour.
type hourMinutes struct {
	hour    int64
	minutes Minutes
}

type block struct {
	hours          []hourMinutes // ascending
	usage, startup Sketches
}

func (k *block) appendBinary(b []byte, first int64) ([]byte, error) {
	b = append(b, blockVersion)
	b = binary.AppendUvarint(b, uint64(len(k.hours)))
	for _, h := range k.hours {
		b = binary.AppendUvarint(b, uint64(h.hour-first))
		b = binary.AppendUvarint(b, uint64(allMinutes&^h.minutes))
	}
	return appendSketches(b, &k.usage, &k.startup)
}

// decodeBlock returns the covered hours and the sketches' encodings of a block blob.
func decodeBlock(b []byte, first int64) ([]hourMinutes, []byte, error) {
	if len(b) == 0 {
		return nil, nil, errTruncated
	}
	if b[0] != blockVersion {
		return nil, nil, fmt.Errorf("version %d is not known, want %d", b[0], blockVersion)
	}
	n, b, err := uvarint(b[1:])
	if err != nil {
		return nil, nil, err
	}
	if n > longestBlock {
		return nil, nil, fmt.Errorf("%d hours are too many", n)
	}
	hours := make([]hourMinutes, n)
	for i := range hours {
		var offset, missing uint64
		if offset, b, err = uvarint(b); err != nil {
			return nil, nil, err
		}
		if missing, b, err = uvarint(b); err != nil {
			return nil, nil, err
		}
		if offset >= longestBlock || missing > uint64(allMinutes) {
			return nil, nil, fmt.Errorf("hour %d or minutes %#x are out of range", offset, missing)
		}
		hours[i] = hourMinutes{first + int64(offset), allMinutes &^ Minutes(missing)}
		if i > 0 && hours[i].hour <= hours[i-1].hour {
			return nil, nil, errOverlap
		}
	}
	return hours, b, nil
}

// cover adds minutes of an hour.
func (k *block) cover(hour int64, m Minutes) {
	i, found := slices.BinarySearchFunc(k.hours, hour, func(h hourMinutes, hour int64) int { return int(h.hour - hour) })
	if !found {
		k.hours = slices.Insert(k.hours, i, hourMinutes{hour: hour})
	}
	k.hours[i].minutes |= m
}

// A mark is the value of #<hour>: for each field folded its id (6 bytes) and a varint, 0 if it was final, else its flush
// number.
type mark struct {
	closed bool // the hour takes nothing any more, whatever the field
	fields map[uint64]uint64
}

const idSize = 6

// fieldID is a field's short form in a mark. Epochs are random, so two of an hour's fields share it once in a billion
// profiles of a thousand fields.
func fieldID(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64() >> (64 - 8*idSize)
}

// has reports whether a field was folded, or comes too late.
func (m mark) has(name string) bool {
	_, ok := m.fields[fieldID(name)]
	return ok || m.closed
}

func appendMark(b []byte, name string, blob *Blob) []byte {
	id := fieldID(name)
	for shift := 8 * (idSize - 1); shift >= 0; shift -= 8 {
		b = append(b, byte(id>>shift))
	}
	if blob.Final {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, blob.Flush)
}

func decodeMark(b []byte) (mark, error) {
	m := mark{fields: make(map[uint64]uint64, len(b)/(idSize+1))}
	for len(b) > 0 {
		if len(b) < idSize {
			return mark{}, errTruncated
		}
		var id uint64
		for _, c := range b[:idSize] {
			id = id<<8 | uint64(c)
		}
		flush, rest, err := uvarint(b[idSize:])
		if err != nil {
			return mark{}, err
		}
		m.fields[id], b = flush, rest
	}
	return m, nil
}

// marks are an hour's marks, encoded, and up to where blocks are closed.
type marks struct {
	fields map[int64]string // hour → ids
	closed map[int64]int64  // block → hour
}

// marksOf collects the marks of blocks. An hour can have some in several, after a change of the half-life.
func marksOf(blocks map[int64]map[string]string) marks {
	m := marks{fields: map[int64]string{}, closed: map[int64]int64{}}
	for start, fields := range blocks {
		for name, value := range fields {
			if hour, ok := parseMark(name); ok {
				m.fields[hour] += value
			}
		}
		if hour, err := strconv.ParseInt(fields[closedField], 10, 64); err == nil {
			m.closed[start] = hour
		}
	}
	return m
}

// isClosed reports whether an hour takes nothing any more.
func (m marks) isClosed(hour int64) bool {
	for _, b := range blocksOf(hour) {
		if last, ok := m.closed[b]; ok && hour <= last {
			return true
		}
	}
	return false
}

// of returns an hour's mark.
func (m marks) of(hour int64) (mark, error) {
	one, err := decodeMark([]byte(m.fields[hour]))
	if err != nil {
		return mark{}, fmt.Errorf("reading the mark of hour %d: %w", hour, err)
	}
	one.closed = m.isClosed(hour)
	return one, nil
}
