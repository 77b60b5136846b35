package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
)

// Minutes is a set of the minutes of an hour, one bit each.
type Minutes uint64

const allMinutes Minutes = 1<<60 - 1

// Add includes the minute (0 to 59) a moment lies in.
func (m *Minutes) Add(t time.Time) { *m |= 1 << (t.Unix() / 60 % 60) }

// Count returns how many minutes are in the set.
func (m Minutes) Count() int { return bits.OnesCount64(uint64(m & allMinutes)) }

// Sketches holds a sketch for each resource; nil where nothing was measured.
type Sketches [sample.Count]*sketch.Sketch

// Blob is what one agent measured of one container name of a profile in one hour so far.
type Blob struct {
	// Flush is the number of samples the blob holds, in all its sketches. It grows with every change, so it orders the
	// writes of a field, and the difference of two is what one lacks.
	Flush uint64
	// Final says that nothing will be added any more.
	Final bool
	// Started is when its first sketch was empty; a reset after it makes the blob void.
	Started time.Time
	// Minutes are the minutes of the hour that have a sample.
	Minutes Minutes
	// Usage holds the steady state, Startup the samples of containers that had just started.
	Usage, Startup Sketches
}

// An hour blob is a header of fixed size, which a fold compares byte by byte, and a body:
//
//	version    1 byte
//	flags      1 byte, bit 0: final
//	flush      8 bytes, big endian
//	started    varint, Unix ms
//	missing    varint, the minutes without a sample
//	sketches   until the end: id (resource number, plus 16 for start-up), varint length, sketch
const (
	blobVersion = 1
	flagFinal   = 1
	headerSize  = 10
	startupID   = 16
)

var errTruncated = errors.New("it ends in the middle")

// AppendBinary appends the blob's encoding to b.
func (blob *Blob) AppendBinary(b []byte) ([]byte, error) {
	var flags byte
	if blob.Final {
		flags = flagFinal
	}
	b = append(b, blobVersion, flags)
	b = binary.BigEndian.AppendUint64(b, blob.Flush)
	b = binary.AppendUvarint(b, uint64(max(0, blob.Started.UnixMilli())))
	b = binary.AppendUvarint(b, uint64(allMinutes&^blob.Minutes))
	return appendSketches(b, &blob.Usage, &blob.Startup)
}

// UnmarshalBinary replaces the blob by an encoded one, or fails if it is of another version or damaged.
func (blob *Blob) UnmarshalBinary(b []byte) error {
	body, err := blob.decodeHeader(b)
	if err == nil {
		err = eachSketch(body, func(id byte, encoded []byte) error {
			into, err := blob.sketch(id)
			if err != nil {
				return err
			}
			return into.UnmarshalBinary(encoded)
		})
	}
	if err != nil {
		return fmt.Errorf("decoding hour blob: %w", err)
	}
	return nil
}

// decodeHeader replaces everything but the sketches and returns their encodings.
func (blob *Blob) decodeHeader(b []byte) ([]byte, error) {
	*blob = Blob{}
	if len(b) < headerSize {
		return nil, errTruncated
	}
	if b[0] != blobVersion {
		return nil, fmt.Errorf("version %d is not known, want %d", b[0], blobVersion)
	}
	if b[1] > flagFinal {
		return nil, fmt.Errorf("flags %#x are not known", b[1])
	}
	blob.Final = b[1] == flagFinal
	blob.Flush = binary.BigEndian.Uint64(b[2:headerSize])
	b = b[headerSize:]
	started, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	missing, b, err := uvarint(b)
	if err != nil {
		return nil, err
	}
	if started > 1<<48 || missing > uint64(allMinutes) {
		return nil, fmt.Errorf("start %d or minutes %#x are out of range", started, missing)
	}
	blob.Started = time.UnixMilli(int64(started))
	blob.Minutes = allMinutes &^ Minutes(missing)
	return b, nil
}

// sketch returns the sketch of an id, which must not be there yet.
func (blob *Blob) sketch(id byte) (*sketch.Sketch, error) {
	in := &blob.Usage
	if id >= startupID {
		in = &blob.Startup
	}
	into := &in[id%startupID]
	if *into != nil {
		return nil, fmt.Errorf("sketch %d is there twice", id)
	}
	*into = &sketch.Sketch{}
	return *into, nil
}

func appendSketches(b []byte, usage, startup *Sketches) ([]byte, error) {
	for i, in := range [...]*Sketches{usage, startup} {
		for r, s := range in {
			if s == nil || s.Empty() {
				continue
			}
			// The length is written once the sketch is; one below 128 bytes, the usual case, needs no moving.
			b = append(b, byte(r+i*startupID), 0)
			start := len(b)
			encoded, err := s.AppendBinary(b)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sample.Resource(r), err)
			}
			b = encoded
			if n := len(b) - start; n < 0x80 {
				b[start-1] = byte(n)
			} else {
				var length [binary.MaxVarintLen64]byte
				extra := binary.PutUvarint(length[:], uint64(n)) - 1
				b = append(b, length[:extra]...)
				copy(b[start+extra:], b[start:start+n])
				copy(b[start-1:], length[:extra+1])
			}
		}
	}
	return b, nil
}

// eachSketch calls yield with the id and encoding of each sketch.
func eachSketch(b []byte, yield func(id byte, encoded []byte) error) error {
	for len(b) > 0 {
		id := b[0]
		if id%startupID >= sample.Count || id >= 2*startupID {
			return fmt.Errorf("sketch %d is not known", id)
		}
		n, rest, err := uvarint(b[1:])
		if err != nil {
			return err
		}
		if n > uint64(len(rest)) {
			return errTruncated
		}
		if err := yield(id, rest[:n]); err != nil {
			return err
		}
		b = rest[n:]
	}
	return nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errTruncated
	}
	return v, b[n:], nil
}

// ReadHeader returns everything of an encoded blob but its sketches.
func ReadHeader(encoded []byte) (Blob, error) {
	var blob Blob
	if _, err := blob.decodeHeader(encoded); err != nil {
		return Blob{}, fmt.Errorf("decoding hour blob: %w", err)
	}
	return blob, nil
}

// Seal marks an encoded blob as final, in place.
func Seal(encoded []byte) error {
	if _, err := ReadHeader(encoded); err != nil {
		return err
	}
	encoded[1] = flagFinal
	return nil
}
