package collect

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"plimsoll.dev/pkg/store"
)

const (
	// rewriteAfter is when a closed blob nobody has folded yet is written again, in case an older write overtook it.
	rewriteAfter = 10 * time.Minute
	// checkAfter is how often it is asked whether a closed blob was folded.
	checkAfter = time.Minute
	// recordedFor is how long a folded blob is kept nonetheless: a failover can undo the last writes, fold included.
	recordedFor = 2 * time.Minute
	// giveUpAfter is how long after its end nothing is accepted for an hour any more. It is told by monotonic time, so
	// that no step of the clock makes measurements old.
	giveUpAfter = 24 * time.Hour
	// dueSlack is how much early a profile is flushed to share a round trip with others.
	dueSlack = time.Second
	// keptOverhead is roughly what a kept blob takes beside its value, in bytes.
	keptOverhead = 256
)

// kept is the last encoding of a blob which the store is not known to have folded.
type kept struct {
	value    []byte
	flush    uint64
	final    bool
	started  time.Time
	dirty    bool
	acked    uint64 // the largest flush number acknowledged
	written  time.Duration
	checked  time.Duration
	recorded time.Duration // when it was first found folded; 0: not yet
	expires  time.Duration // when it is given up, once it is final
}

// keep takes the newest encoding of a blob, to be written by the next flush.
func (a *Accumulator) keep(f store.Field, value []byte) {
	header, err := store.ReadHeader(value)
	if err != nil {
		return // cannot be: it was just encoded, or just sealed
	}
	k := a.kept[f]
	if k == nil {
		k = &kept{}
		a.kept[f] = k
		a.bytes += keptOverhead
	}
	a.bytes += len(value) - len(k.value)
	if header.Final {
		k.expires = a.o.Clock().Mono + giveUpAfter
	}
	k.value, k.flush, k.final, k.started, k.dirty = value, header.Flush, header.Final, header.Started, true
}

func (a *Accumulator) forget(f store.Field) {
	if k := a.kept[f]; k != nil {
		a.bytes -= len(k.value) + keptOverhead
		delete(a.kept, f)
	}
}

// giveUp forgets a blob whose samples, beyond those the store has, are lost; they are counted.
func (a *Accumulator) giveUp(f store.Field, has uint64) {
	if k := a.kept[f]; k.flush > has {
		a.dropped += k.flush - has
	}
	a.forget(f)
}

// Run flushes until the context ends, and then once more within grace.
func (a *Accumulator) Run(ctx context.Context, grace time.Duration, failed func(error)) {
	timer := time.NewTimer(a.jitter(DefaultFlush))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
			defer cancel()
			if err := a.Close(last); err != nil {
				failed(err)
			}
			return
		case <-timer.C:
			if err := a.Flush(ctx); err != nil && ctx.Err() == nil {
				failed(err)
			}
			timer.Reset(a.wait())
		}
	}
}

// Close flushes everything for the last time: all blobs become final.
func (a *Accumulator) Close(ctx context.Context) error {
	a.mu.Lock()
	a.now()
	for s := range a.open {
		a.finish(s)
	}
	a.mu.Unlock()
	return a.Flush(ctx)
}

// jitter spreads the agents of a cluster: the time, give or take a tenth.
func (a *Accumulator) jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}

// wait returns how long until the next profile is due.
func (a *Accumulator) wait() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.o.Clock().Mono
	next := now + DefaultFlush
	for _, due := range a.due {
		next = min(next, due)
	}
	return max(next-now, dueSlack)
}

// Flush writes what changed of the profiles that are due, and what is closed, and learns what was folded or reset. Before
// anything leaves, the checkpoint has it, so that what a restart brings back is never emptier than what was written.
func (a *Accumulator) Flush(ctx context.Context) error {
	a.flushing.Lock()
	defer a.flushing.Unlock()

	connections := a.o.Store.Connections()
	batch, kept := a.batch(connections)
	var report Report
	if a.o.Reporter != nil {
		report = a.o.Reporter.Report(a.o.Clock().Wall)
		batch.Live, batch.Gone, batch.OOMKills = report.Live, report.Gone, report.OOMKills
	}
	var checkpointErr error
	if a.o.Checkpoint != nil {
		checkpointErr = a.o.Checkpoint.Save(kept)
	}
	reply, err := a.o.Store.Flush(ctx, batch)
	if a.o.Reporter != nil && err == nil {
		a.o.Reporter.Reported(report, reply.KillsWritten)
	}
	a.learn(batch, reply, err == nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	// After a connection made meanwhile, too, what went out before it may not have survived.
	if a.connections = a.o.Store.Connections(); err != nil || a.connections != connections {
		a.rewriteAll()
	}
	return errors.Join(checkpointErr, err)
}

func (a *Accumulator) rewriteAll() {
	for _, k := range a.kept {
		k.dirty = true
	}
}

// batch brings everything that is due up to date, and returns what to write and all that is kept.
func (a *Accumulator) batch(connections uint64) (store.Batch, []store.Write) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if connections != a.connections {
		a.rewriteAll()
	}
	now, mono := a.now(), a.o.Clock().Mono
	hour := store.HourOf(now)
	due := map[string]bool{}
	for s, o := range a.open {
		if o.field.Hour != hour {
			a.finish(s)
			continue
		}
		if a.isDue(s.hash, mono, due) {
			a.encode(o)
		}
	}
	a.expire(mono)
	a.enforceCap()
	var batch store.Batch
	all := make([]store.Write, 0, len(a.kept))
	for f, k := range a.kept {
		w := store.Write{Field: f, Value: k.value}
		all = append(all, w)
		if k.final && k.recorded == 0 && mono-k.written >= rewriteAfter {
			k.dirty = true
		}
		if k.dirty {
			batch.Writes = append(batch.Writes, w)
			k.written = mono
		}
		if k.final && (k.checked == 0 || mono-k.checked >= checkAfter) {
			batch.Check = append(batch.Check, f)
			k.checked = mono
		}
	}
	slices.SortFunc(batch.Writes, func(a, b store.Write) int {
		return strings.Compare(a.Field.Hash+a.Field.Container, b.Field.Hash+b.Field.Container)
	})
	return batch, all
}

// isDue reports whether a profile is to be flushed now, and then sets when it is next.
func (a *Accumulator) isDue(hash string, mono time.Duration, decided map[string]bool) bool {
	if is, ok := decided[hash]; ok {
		return is
	}
	every := time.Duration(0)
	if a.o.FlushEvery != nil {
		every = a.o.FlushEvery(hash)
	}
	if every <= 0 {
		every = DefaultFlush
	}
	is := mono+dueSlack >= a.due[hash]
	if is {
		a.due[hash] = mono + a.jitter(every)
	}
	decided[hash] = is
	return is
}

// expire gives up what the store would not accept any more, and forgets profiles of which nothing is left.
func (a *Accumulator) expire(mono time.Duration) {
	used := map[string]bool{}
	for f, k := range a.kept {
		if k.final && mono >= k.expires {
			a.giveUp(f, k.acked)
			continue
		}
		used[f.Hash] = true
	}
	for s := range a.open {
		used[s.hash] = true
	}
	maps.DeleteFunc(a.due, func(hash string, _ time.Duration) bool { return !used[hash] })
	maps.DeleteFunc(a.resets, func(hash string, _ time.Time) bool { return !used[hash] })
}

// enforceCap gives up the oldest closed blobs until what is kept fits.
func (a *Accumulator) enforceCap() {
	if a.bytes <= a.o.MaxBytes {
		return
	}
	var closed []store.Field
	for f, k := range a.kept {
		if k.final {
			closed = append(closed, f)
		}
	}
	slices.SortFunc(closed, func(a, b store.Field) int { return int(a.Hour - b.Hour) })
	for _, f := range closed {
		if a.bytes <= a.o.MaxBytes {
			return
		}
		a.giveUp(f, a.kept[f].acked)
	}
}

// learn takes in what the store replied. What was folded comes first: an acknowledgement of a write to an hour that is
// closed means nothing.
func (a *Accumulator) learn(batch store.Batch, reply store.Reply, complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mono := a.o.Clock().Mono
	for _, f := range batch.Check {
		folded, ok := reply.Folded[f]
		if ok || complete {
			a.learnFolded(f, folded, ok, mono)
		}
	}
	for i, w := range batch.Writes {
		k := a.kept[w.Field]
		if k == nil || i >= len(reply.Written) || !reply.Written[i] {
			continue
		}
		header, err := store.ReadHeader(w.Value)
		if err != nil {
			continue // cannot be: it was sent
		}
		k.acked = max(k.acked, header.Flush)
		k.dirty = k.dirty && (k.flush != header.Flush || k.final != header.Final)
	}
	for hash, at := range reply.Resets {
		a.reset(hash, at)
	}
}

func (a *Accumulator) learnFolded(f store.Field, folded store.Folded, ok bool, mono time.Duration) {
	k := a.kept[f]
	switch {
	case k == nil:
	case !ok:
		// A failover can have undone the fold, and the write with it.
		k.dirty = k.dirty || k.recorded > 0
		k.recorded = 0
	case folded.Closed && k.recorded > 0:
		a.forget(f)
	case folded.Closed:
		a.giveUp(f, k.acked)
	case !folded.Whole && folded.Flush < k.flush:
		a.giveUp(f, folded.Flush)
	case k.recorded == 0:
		k.recorded, k.dirty = max(mono, 1), false
	case mono-k.recorded >= recordedFor:
		a.forget(f)
	}
}

// reset forgets what began before a profile's history was reset; samples from now on start from nothing.
func (a *Accumulator) reset(hash string, at time.Time) {
	if !at.After(a.resets[hash]) {
		return
	}
	a.resets[hash] = at
	for f, k := range a.kept {
		if f.Hash == hash && k.started.Before(at) {
			a.forget(f)
		}
	}
	for s, o := range a.open {
		if s.hash == hash && o.blob.Started.Before(at) {
			delete(a.open, s)
		}
	}
}
