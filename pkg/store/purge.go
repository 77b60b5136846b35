package store

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// purgeBatch is how many keys one command removes: enough to be quick, few enough not to hold Redis up.
const purgeBatch = 200

// Purge removes every key of a profile, which works when Redis is full. Keys are computed from the time, not looked for.
func (s *Store) Purge(ctx context.Context, hash string, now time.Time) error {
	if err := validHash(hash); err != nil {
		return err
	}
	if err := s.removeHistory(ctx, hash, now); err != nil {
		return err
	}
	if err := s.client.Unlink(ctx, resetKey(hash)).Err(); err != nil {
		return fmt.Errorf("purging the reset mark: %w", err)
	}
	return nil
}

// Reset makes a profile's history start from zero at a moment: the mark makes agents and readers ignore everything begun
// before it, and the keys go.
func (s *Store) Reset(ctx context.Context, hash string, now time.Time) error {
	if err := validHash(hash); err != nil {
		return err
	}
	// The mark comes first, so that no fold under way can bring a block back. If Redis is full, that has to wait for
	// the room the purge makes.
	setErr := s.setReset(ctx, hash, now)
	if err := s.removeHistory(ctx, hash, now); err != nil {
		return err
	}
	if setErr == nil {
		return nil
	}
	if err := s.setReset(ctx, hash, now); err != nil {
		return err
	}
	return s.removeHistory(ctx, hash, now)
}

func (s *Store) setReset(ctx context.Context, hash string, now time.Time) error {
	value := strconv.FormatInt(now.UnixMilli(), 10)
	if err := s.client.Set(ctx, resetKey(hash), value, resetTTL).Err(); err != nil {
		return fmt.Errorf("writing the reset mark: %w", err)
	}
	return nil
}

// removeHistory removes all but the reset mark. It goes a day into the future, for agents whose clock is ahead.
func (s *Store) removeHistory(ctx context.Context, hash string, now time.Time) error {
	defer s.Forget(hash)
	last := HourOf(now) + 24
	first := last - 24 - int64(MaxWindow/time.Hour) - longestBlock
	keys := []string{liveKey(hash), oomKey(hash)}
	for h := first; h <= last; h++ {
		keys = append(keys, hourKey(hash, h), blockKey(hash, h))
	}
	for len(keys) > 0 {
		n := min(purgeBatch, len(keys))
		if err := s.client.Unlink(ctx, keys[:n]...).Err(); err != nil {
			return fmt.Errorf("purging measurements: %w", err)
		}
		keys = keys[n:]
	}
	return nil
}
