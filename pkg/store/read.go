package store

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// snapshot is what was read of a profile, hours first and blocks after them: a field that was folded in between is seen
// twice, and ignored because of its mark; none is missed. (A transaction would do, but a full Redis refuses to queue even
// its reads. A single pipeline would not in a cluster: commands that are redirected come later than the rest.)
type snapshot struct {
	reset    string
	hours    map[int64]map[string]string
	blocks   map[int64]map[string]string
	versions map[int64]string
	kills    map[string]string
}

// readRecent reads the hours that still take blobs, and the versions of the blocks that can have changed lately.
func (s *Store) readRecent(ctx context.Context, hash string, hour int64) (*snapshot, error) {
	return s.read(ctx, hash, span{hour - closeAfter, hour + 1}, span{1, 0}, recentBlocks(hour))
}

// readAll reads the whole window.
func (s *Store) readAll(ctx context.Context, hash string, hour int64, r Retention) (*snapshot, error) {
	first := hour - r.hours()
	return s.read(ctx, hash, span{first, hour + 1}, span{first - longestBlock, hour + 1}, span{1, 0})
}

// span is a range of hours, both ends included.
type span struct{ first, last int64 }

func (s span) length() int64 { return max(0, s.last-s.first+1) }

// recentBlocks are the blocks that can hold an hour that still takes blobs.
func recentBlocks(hour int64) span { return span{hour - closeAfter - longestBlock, hour + 1} }

func (s *Store) read(ctx context.Context, hash string, hours, blocks, versions span) (*snapshot, error) {
	p := s.client.Pipeline()
	reset := p.Get(ctx, resetKey(hash))
	kills := p.HGetAll(ctx, oomKey(hash))
	hourCmds := make([]*redis.MapStringStringCmd, 0, hours.length())
	for h := hours.first; h <= hours.last; h++ {
		hourCmds = append(hourCmds, p.HGetAll(ctx, hourKey(hash, h)))
	}
	if err := exec(ctx, p); err != nil {
		return nil, err
	}
	blockCmds := make([]*redis.MapStringStringCmd, 0, blocks.length())
	for b := blocks.first; b <= blocks.last; b++ {
		blockCmds = append(blockCmds, p.HGetAll(ctx, blockKey(hash, b)))
	}
	versionCmds := make([]*redis.StringCmd, 0, versions.length())
	for b := versions.first; b <= versions.last; b++ {
		versionCmds = append(versionCmds, p.HGet(ctx, blockKey(hash, b), versionField))
	}
	if err := exec(ctx, p); err != nil {
		return nil, err
	}
	return &snapshot{
		reset: reset.Val(), kills: kills.Val(),
		hours: hashes(hourCmds, hours.first), blocks: hashes(blockCmds, blocks.first),
		versions: texts(versionCmds, versions.first),
	}, nil
}

func exec(ctx context.Context, p redis.Pipeliner) error {
	cmds, err := p.Exec(ctx)
	if err := firstError(cmds, err); err != nil {
		return fmt.Errorf("reading measurements: %w", err)
	}
	return nil
}

// hashes keeps the results that are not empty.
func hashes(cmds []*redis.MapStringStringCmd, first int64) map[int64]map[string]string {
	m := map[int64]map[string]string{}
	for i, cmd := range cmds {
		if v := cmd.Val(); len(v) > 0 {
			m[first+int64(i)] = v
		}
	}
	return m
}

func texts(cmds []*redis.StringCmd, first int64) map[int64]string {
	m := map[int64]string{}
	for i, cmd := range cmds {
		if v := cmd.Val(); v != "" {
			m[first+int64(i)] = v
		}
	}
	return m
}
