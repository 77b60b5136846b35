package store

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"plimsoll.dev/pkg/sketch"
)

//go:embed fold.lua
var foldSource string

var foldScript = redis.NewScript(foldSource)

// foldAttempts bounds how often a fold starts again because something changed under it.
const foldAttempts = 4

// errChanged means that what a fold read is not what was there when it wrote.
var errChanged = errors.New("measurements changed meanwhile")

// Fold takes what will not change any more into blocks: final fields at once, another field six hours after its hour
// ended, and after a day it closes the hour. It returns the number of fields folded. Any number of owners may fold at the
// same time; each field is taken once. It works when Redis is full.
func (s *Store) Fold(ctx context.Context, hash string, now time.Time, r Retention) (int, error) {
	if err := validHash(hash); err != nil {
		return 0, err
	}
	defer s.Forget(hash)
	total := 0
	for range foldAttempts {
		snap, err := s.readAll(ctx, hash, HourOf(now), r)
		if err != nil {
			return total, err
		}
		f := folder{store: s, hash: hash, hour: HourOf(now), now: now, retention: r, snap: snap}
		n, err := f.run(ctx)
		total += n
		if !errors.Is(err, errChanged) {
			return total, err
		}
	}
	return total, nil // another owner is at it
}

// folder folds what one snapshot holds.
type folder struct {
	store     *Store
	hash      string
	hour      int64
	now       time.Time
	retention Retention
	snap      *snapshot
}

func (f *folder) run(ctx context.Context) (int, error) {
	marks := marksOf(f.snap.blocks)
	hours := map[int64]bool{}
	for h := range f.snap.hours {
		hours[h] = h <= f.hour
	}
	for h := range marks.fields {
		if h < f.hour-closeAfter && !marks.isClosed(h) {
			hours[h] = true
		}
	}
	total := 0
	for _, h := range slices.Sorted(maps.Keys(hours)) {
		if !hours[h] {
			continue
		}
		folded, err := marks.of(h)
		if err != nil {
			return total, err
		}
		n, err := f.foldHour(ctx, h, folded)
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, f.pruneKills(ctx)
}

// plan is what one call of the script does.
type plan struct {
	fields     []any // name, header, name, header, ...
	stray      []string
	folded     int
	containers map[string]*block
	mark       []byte
	closing    bool // the hour takes nothing any more
}

func (f *folder) foldHour(ctx context.Context, hour int64, folded mark) (int, error) {
	target := f.target(hour)
	p, err := f.plan(hour, target, folded)
	if err != nil {
		return 0, err
	}
	closing := hour < f.hour-closeAfter && !folded.closed
	if p.folded == 0 && !closing {
		if len(p.stray) == 0 {
			return 0, nil
		}
		if err := f.store.client.HDel(ctx, hourKey(f.hash, hour), p.stray...).Err(); err != nil {
			return 0, fmt.Errorf("removing folded fields: %w", err)
		}
		return 0, nil
	}
	p.closing = closing
	p.mark = append([]byte(f.snap.blocks[target][markField(hour)]), p.mark...)
	return p.folded, f.write(ctx, hour, target, p)
}

// target returns the block to fold an hour into: the one that already has part of it, else the one of the half-life.
func (f *folder) target(hour int64) int64 {
	for _, b := range blocksOf(hour) {
		if _, ok := f.snap.blocks[b][markField(hour)]; ok {
			return b
		}
	}
	return blockOf(hour, f.retention.HalfLife)
}

// plan decides, field by field, what is folded and what only removed, and merges it.
func (f *folder) plan(hour, target int64, folded mark) (*plan, error) {
	p := &plan{containers: map[string]*block{}}
	reset, _ := strconv.ParseInt(f.snap.reset, 10, 64)
	for name, value := range f.snap.hours[hour] {
		var blob Blob
		id, err := parseField(f.hash, hour, name)
		if err == nil {
			_, err = blob.decodeHeader([]byte(value))
		}
		switch {
		case folded.has(name), err == nil && blob.Started.UnixMilli() < reset:
			p.fields = append(p.fields, name, "")
			p.stray = append(p.stray, name)
			continue
		case err != nil:
			continue // of a later version perhaps; it goes when the hour is closed
		case !blob.Final && f.hour <= hour+foldAfter:
			continue
		}
		if err := blob.UnmarshalBinary([]byte(value)); err != nil {
			continue
		}
		into, err := f.block(p, target, id.Container)
		if err != nil {
			return nil, err
		}
		into.cover(hour, blob.Minutes)
		mergeAll(&into.usage, &blob.Usage)
		mergeAll(&into.startup, &blob.Startup)
		p.fields = append(p.fields, name, value[:headerSize])
		p.mark = appendMark(p.mark, name, &blob)
		p.folded++
	}
	return p, nil
}

// block returns a container's block as stored, to be merged into.
func (f *folder) block(p *plan, target int64, container string) (*block, error) {
	if k := p.containers[container]; k != nil {
		return k, nil
	}
	k := &block{}
	if value, ok := f.snap.blocks[target][container]; ok {
		hours, sketches, err := decodeBlock([]byte(value), target)
		if err == nil {
			var blob Blob
			err = eachSketch(sketches, func(id byte, encoded []byte) error {
				into, err := blob.sketch(id)
				if err != nil {
					return err
				}
				return into.UnmarshalBinary(encoded)
			})
			*k = block{hours: hours, usage: blob.Usage, startup: blob.Startup}
		}
		if err != nil {
			return nil, fmt.Errorf("reading block %d of container %s: %w", target, container, err)
		}
	}
	p.containers[container] = k
	return k, nil
}

func mergeAll(into, from *Sketches) {
	for r, s := range from {
		if s == nil {
			continue
		}
		if into[r] == nil {
			into[r] = &sketch.Sketch{}
		}
		into[r].Merge(s)
	}
}

// write runs the script and, if it went through, brings the snapshot up to date for the next hour.
func (f *folder) write(ctx context.Context, hour, target int64, p *plan) error {
	version := rand.Text()[:12]
	ttl := time.Duration(f.retention.hours()+longestBlock+1) * time.Hour
	keys := []string{resetKey(f.hash), hourKey(f.hash, hour), blockKey(f.hash, target)}
	known := f.snap.blocks[target]
	written := map[string]string{versionField: version, markField(hour): string(p.mark)}
	if p.closing {
		// Closed means older than a day, so every earlier hour of the block is closed too.
		written = map[string]string{versionField: version, closedField: strconv.FormatInt(hour, 10)}
		if last, err := strconv.ParseInt(known[closedField], 10, 64); err == nil && last > hour {
			written[closedField] = known[closedField]
		}
	}
	args := []any{
		f.snap.reset, markField(hour), written[markField(hour)], written[closedField], ttl.Milliseconds(), version,
		known[versionField],
	}
	for _, b := range blocksOf(hour) {
		if b != target {
			keys = append(keys, blockKey(f.hash, b))
			args = append(args, f.snap.blocks[b][versionField])
		}
	}
	args = append(append(args, len(p.fields)/2), p.fields...)
	for container, k := range p.containers {
		value, err := k.appendBinary(nil, target)
		if err != nil {
			return fmt.Errorf("folding container %s: %w", container, err)
		}
		args = append(args, container, value)
		written[container] = string(value)
	}
	done, err := foldScript.Run(ctx, f.store.client, keys, args...).Int()
	if err != nil {
		return fmt.Errorf("folding hour %d: %w", hour, err)
	}
	if done != 1 {
		return errChanged
	}
	if f.snap.blocks[target] == nil {
		f.snap.blocks[target] = map[string]string{}
	}
	delete(f.snap.blocks[target], markField(hour))
	maps.Copy(f.snap.blocks[target], written)
	return nil
}

func (f *folder) pruneKills(ctx context.Context) error {
	_, surplus := killsOf(f.hash, f.snap.kills, f.now.Add(-f.retention.Window))
	if len(surplus) == 0 {
		return nil
	}
	if err := f.store.client.HDel(ctx, oomKey(f.hash), surplus...).Err(); err != nil {
		return fmt.Errorf("removing old OOM kills: %w", err)
	}
	return nil
}
