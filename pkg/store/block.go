package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
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

// A mark is the value of #<hour>: for each field folded its id (8 bytes) and a varint, 0 if it was final, else its flush
// number. An empty mark stands for every field: the hour takes nothing any more.
type mark struct {
	all    bool
	fields map[uint64]uint64
}

// fieldID is a field's short form in a mark: epochs are random, so that two never meet.
func fieldID(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return h.Sum64()
}

// has reports whether a field was folded.
func (m mark) has(name string) bool {
	if m.all {
		return true
	}
	_, ok := m.fields[fieldID(name)]
	return ok
}

func appendMark(b []byte, name string, blob *Blob) []byte {
	b = binary.BigEndian.AppendUint64(b, fieldID(name))
	if blob.Final {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, blob.Flush)
}

func decodeMark(b []byte) (mark, error) {
	m := mark{all: len(b) == 0}
	if m.all {
		return m, nil
	}
	m.fields = make(map[uint64]uint64, len(b)/9)
	for len(b) > 0 {
		if len(b) < 8 {
			return mark{}, errTruncated
		}
		id := binary.BigEndian.Uint64(b)
		flush, rest, err := uvarint(b[8:])
		if err != nil {
			return mark{}, err
		}
		m.fields[id], b = flush, rest
	}
	return m, nil
}
