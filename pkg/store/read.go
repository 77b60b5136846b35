package store

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// snapshot is what one transaction read of a profile: nothing in it changed while it was read, so a field is never seen
// both in its hour and in a block without its mark, and never in neither.
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

// recentBlocks are the blocks that can hold an hour that still takes blobs.
func recentBlocks(hour int64) span { return span{hour - closeAfter - longestBlock, hour + 1} }

func (s *Store) read(ctx context.Context, hash string, hours, blocks, versions span) (*snapshot, error) {
	p := s.client.TxPipeline()
	reset := p.Get(ctx, resetKey(hash))
	kills := p.HGetAll(ctx, oomKey(hash))
	hourCmds := make([]*redis.MapStringStringCmd, 0, max(0, hours.last-hours.first+1))
	for h := hours.first; h <= hours.last; h++ {
		hourCmds = append(hourCmds, p.HGetAll(ctx, hourKey(hash, h)))
	}
	blockCmds := make([]*redis.MapStringStringCmd, 0, max(0, blocks.last-blocks.first+1))
	for b := blocks.first; b <= blocks.last; b++ {
		blockCmds = append(blockCmds, p.HGetAll(ctx, blockKey(hash, b)))
	}
	versionCmds := make([]*redis.StringCmd, 0, max(0, versions.last-versions.first+1))
	for b := versions.first; b <= versions.last; b++ {
		versionCmds = append(versionCmds, p.HGet(ctx, blockKey(hash, b), versionField))
	}
	cmds, err := p.Exec(ctx)
	if err := firstError(cmds, err); err != nil {
		return nil, fmt.Errorf("reading measurements: %w", err)
	}
	return &snapshot{
		reset: reset.Val(), kills: kills.Val(),
		hours: hashes(hourCmds, hours.first), blocks: hashes(blockCmds, blocks.first),
		versions: texts(versionCmds, versions.first),
	}, nil
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
