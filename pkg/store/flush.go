package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Write is one field and its whole new value.
type Write struct {
	Field Field
	Value []byte // a Blob's encoding
}

// Batch is what an agent sends in one flush.
type Batch struct {
	Writes []Write
	// Check are fields that may have been folded: final ones, and those of hours past.
	Check []Field
	// Live and OOMKills are written, Gone removed from the live values.
	Live     []Live
	Gone     []Gone
	OOMKills []OOMKill
}

// Folded says how a field was taken into a block.
type Folded struct {
	// Whole is set if all of the field was folded; else Flush is the number of its samples that were.
	Whole bool
	Flush uint64
	// Closed is set if the hour takes nothing any more and which fields were folded is not known any more.
	Closed bool
}

// Reply is what a flush learned.
type Reply struct {
	// Written holds one value per Batch.Writes: whether Redis acknowledged it.
	Written []bool
	// KillsWritten likewise for Batch.OOMKills.
	KillsWritten []bool
	// Folded holds those of Batch.Check that were folded.
	Folded map[Field]Folded
	// Resets holds the last reset of every profile in the batch that has one.
	Resets map[string]time.Time
}

// Flush writes a batch in one pipeline, one round trip per shard, and reads back what was folded or reset. Repeating it
// changes nothing. On an error the reply still tells what was acknowledged; all else is to be sent again.
func (s *Store) Flush(ctx context.Context, batch Batch) (Reply, error) {
	p := flushPipeline{Pipeliner: s.client.Pipeline(), hashes: map[string]*redis.StringCmd{}}
	writes := p.write(ctx, batch.Writes)
	kills := p.putKills(ctx, batch.OOMKills)
	p.putLive(ctx, batch.Live, batch.Gone)
	marks := p.check(ctx, batch.Check)
	p.readResets(ctx)
	if p.err != nil {
		return Reply{}, p.err
	}
	if p.Len() == 0 {
		return Reply{}, nil
	}
	cmds, err := p.Exec(ctx)
	err = firstError(cmds, err)
	reply := Reply{
		Written: acknowledged(writes), KillsWritten: acknowledged(kills),
		Folded: map[Field]Folded{}, Resets: map[string]time.Time{},
	}
	// What is damaged of one profile must not stop the writes of all others: its
	// owner meets the same and reports it.
	for field, blocks := range marks {
		if folded, ok := foldedIn(field, blocks); ok {
			reply.Folded[field] = folded
		}
	}
	for hash, cmd := range p.hashes {
		if at := parseReset(cmd.Val()); !at.IsZero() {
			reply.Resets[hash] = at
		}
	}
	if err != nil {
		return reply, fmt.Errorf("flushing measurements: %w", err)
	}
	return reply, nil
}

// foldedIn returns how a field was folded, from its hour's marks in every block that can have one; damaged marks say
// nothing.
func foldedIn(f Field, blocks map[int64]*redis.SliceCmd) (folded Folded, ok bool) {
	read := map[int64]map[string]string{}
	for b, cmd := range blocks {
		values := map[string]string{}
		for i, name := range [...]string{markField(f.Hour), closedField} {
			if got := cmd.Val(); i < len(got) && got[i] != nil {
				values[name], _ = got[i].(string)
			}
		}
		read[b] = values
	}
	m, err := marksOf(read).of(f.Hour)
	if err != nil {
		return Folded{}, false
	}
	flush, ok := m.fields[fieldID(f.name())]
	if ok {
		return Folded{Whole: flush == 0, Flush: flush}, true
	}
	return Folded{Closed: m.closed}, m.closed
}

// firstError returns what failed in a pipeline; an absent key or field is no failure.
func firstError(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		if cmdErr := cmd.Err(); cmdErr != nil && !errors.Is(cmdErr, redis.Nil) {
			return explained(cmd, cmdErr)
		}
	}
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}

// explained says what to do about an answer of Redis that only a person can change.
func explained(cmd redis.Cmder, err error) error {
	switch {
	case redis.HasErrorPrefix(err, "OOM"):
		return fmt.Errorf("%s: %w (Redis is full: raise its maxmemory)", cmd.Name(), err)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("%s: %w (something else wrote key %v: delete it)", cmd.Name(), err, cmd.Args()[1])
	}
	return fmt.Errorf("%s: %w", cmd.Name(), err)
}

func acknowledged(cmds []*redis.IntCmd) []bool {
	ok := make([]bool, len(cmds))
	for i, cmd := range cmds {
		ok[i] = cmd.Err() == nil
	}
	return ok
}

// parseReset returns the moment of a reset mark, zero if there is none or it is damaged.
func parseReset(text string) time.Time {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// flushPipeline collects commands and the first thing wrong with the batch itself.
type flushPipeline struct {
	redis.Pipeliner
	hashes map[string]*redis.StringCmd // every profile in the batch, and its reset mark
	err    error
}

func (p *flushPipeline) use(hash string) {
	if _, ok := p.hashes[hash]; ok {
		return
	}
	if err := validHash(hash); err != nil && p.err == nil {
		p.err = err
	}
	p.hashes[hash] = nil
}

func (p *flushPipeline) write(ctx context.Context, writes []Write) []*redis.IntCmd {
	cmds := make([]*redis.IntCmd, len(writes))
	keys := map[string]bool{}
	for i, w := range writes {
		p.use(w.Field.Hash)
		key := hourKey(w.Field.Hash, w.Field.Hour)
		cmds[i] = p.HSet(ctx, key, w.Field.name(), w.Value)
		keys[key] = true
	}
	for key := range keys {
		p.PExpire(ctx, key, hourTTL)
	}
	return cmds
}

func (p *flushPipeline) check(ctx context.Context, fields []Field) map[Field]map[int64]*redis.SliceCmd {
	marks := make(map[Field]map[int64]*redis.SliceCmd, len(fields))
	type hour struct {
		hash string
		hour int64
	}
	read := map[hour]map[int64]*redis.SliceCmd{}
	for _, f := range fields {
		p.use(f.Hash)
		h := hour{f.Hash, f.Hour}
		if read[h] == nil {
			read[h] = map[int64]*redis.SliceCmd{}
			for _, b := range blocksOf(f.Hour) {
				read[h][b] = p.HMGet(ctx, blockKey(f.Hash, b), markField(f.Hour), closedField)
			}
		}
		marks[f] = read[h]
	}
	return marks
}

func (p *flushPipeline) readResets(ctx context.Context) {
	for hash := range p.hashes {
		p.hashes[hash] = p.Get(ctx, resetKey(hash))
	}
}
