package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"plimsoll.dev/pkg/sample"
)

// Live is the latest reading of one container of one pod.
type Live struct {
	Hash, PodUID, Container string
	// At is when it was read.
	At time.Time
	// Memory is the working set in bytes, MemoryMax the largest of the last five minutes.
	Memory, MemoryMax sample.Amount
	// Throttled is the share of periods throttled since the reading before, 0 to 1.
	Throttled float64
	// OOMKills counts the container's OOM kills since it started.
	OOMKills uint64
}

// Gone names a container that has ended.
type Gone struct{ Hash, PodUID, Container string }

// A live value is the version byte, then varints: Unix ms, working set, its maximum, throttled share in millionths, OOM
// kills.
const (
	liveVersion = 1
	millionths  = 1e6
)

func (l Live) appendBinary(b []byte) []byte {
	b = append(b, liveVersion)
	for _, v := range [...]float64{
		float64(l.At.UnixMilli()), float64(l.Memory), float64(l.MemoryMax), math.Round(l.Throttled * millionths),
		float64(l.OOMKills),
	} {
		b = binary.AppendUvarint(b, uint64(max(0, min(v, 1<<53))))
	}
	return b
}

func (l *Live) unmarshal(b []byte) error {
	values, err := varints(b, liveVersion, 5)
	if err != nil {
		return err
	}
	l.At = time.UnixMilli(int64(values[0]))
	l.Memory, l.MemoryMax = sample.Amount(values[1]), sample.Amount(values[2])
	l.Throttled = min(1, float64(values[3])/millionths)
	l.OOMKills = values[4]
	return nil
}

// varints decodes a version byte and exactly n varints below 2^53.
func varints(b []byte, version byte, n int) ([]uint64, error) {
	if len(b) == 0 {
		return nil, errTruncated
	}
	if b[0] != version {
		return nil, fmt.Errorf("version %d is not known, want %d", b[0], version)
	}
	b = b[1:]
	values := make([]uint64, n)
	for i := range values {
		var err error
		if values[i], b, err = uvarint(b); err != nil {
			return nil, err
		}
		if values[i] > 1<<53 {
			return nil, fmt.Errorf("value %d is out of range", values[i])
		}
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d bytes follow the end", len(b))
	}
	return values, nil
}

func (p *flushPipeline) putLive(ctx context.Context, live []Live, gone []Gone) {
	values := map[string][]any{}
	for _, l := range live {
		p.use(l.Hash)
		values[l.Hash] = append(values[l.Hash], l.PodUID+"/"+l.Container, l.appendBinary(nil))
	}
	removed := map[string][]string{}
	for _, g := range gone {
		p.use(g.Hash)
		removed[g.Hash] = append(removed[g.Hash], g.PodUID+"/"+g.Container)
	}
	for hash, fields := range removed {
		p.HDel(ctx, liveKey(hash), fields...)
	}
	for hash, fields := range values {
		p.HSet(ctx, liveKey(hash), fields...)
		p.PExpire(ctx, liveKey(hash), liveTTL)
	}
}

// Live returns the readings of a profile's containers that are at most two minutes from now, and removes others. One from
// further ahead comes from a node whose clock is wrong: nobody can tell how old it is.
func (s *Store) Live(ctx context.Context, hash string, now time.Time) ([]Live, error) {
	if err := validHash(hash); err != nil {
		return nil, err
	}
	values, err := s.client.HGetAll(ctx, liveKey(hash)).Result()
	if err != nil {
		return nil, fmt.Errorf("reading live values: %w", err)
	}
	var live []Live
	var stale []string
	for name, value := range values {
		pod, container, ok := strings.Cut(name, "/")
		l := Live{Hash: hash, PodUID: pod, Container: container}
		if !ok || l.unmarshal([]byte(value)) != nil || now.Sub(l.At).Abs() > liveTTL {
			stale = append(stale, name)
			continue
		}
		live = append(live, l)
	}
	if len(stale) > 0 {
		if err := s.client.HDel(ctx, liveKey(hash), stale...).Err(); err != nil {
			return live, fmt.Errorf("removing stale live values: %w", err)
		}
	}
	return live, nil
}
