package collect_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"plimsoll.dev/agent/collect"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

// wire is an agent's way to the store, which loses, repeats and delays what is sent.
type wire struct {
	store   *store.Store
	mode    string
	pending []store.Batch
	fields  map[uint64]store.Field
}

var errLost = errors.New("lost")

func (w *wire) Connections() uint64 { return w.store.Connections() }

func (w *wire) Flush(ctx context.Context, b store.Batch) (store.Reply, error) {
	for _, one := range b.Writes {
		w.fields[one.Field.Epoch] = one.Field
	}
	switch w.mode {
	case "lost":
		return store.Reply{}, errLost
	case "delayed":
		w.pending = append(w.pending, b)
		return store.Reply{}, errLost
	case "answer lost":
		_, _ = w.store.Flush(ctx, b)
		return store.Reply{}, errLost
	case "repeated":
		_, _ = w.store.Flush(ctx, b)
	}
	return w.store.Flush(ctx, b)
}

type modelAgent struct {
	model   *model
	name    string
	clock   twoClocks
	path    string
	check   *collect.Checkpoint
	acc     *collect.Accumulator
	wire    *wire
	drawn   uint64            // epoch drawn by the last Add
	current map[string]uint64 // container → epoch
	blobs   map[uint64]*modelBlob
	flushed time.Duration // when a flush last went through
}

func (a *modelAgent) start() {
	if a.check != nil {
		_ = a.check.Close()
	}
	var err error
	if a.check, err = collect.OpenCheckpoint(context.Background(), a.path, nil); err != nil {
		a.model.t.Fatal(err)
	}
	a.current = map[string]uint64{}
	a.acc, err = collect.NewAccumulator(collect.AccumulatorOptions{
		Agent: a.name, Store: a.wire, Checkpoint: a.check, Clock: a.clock.read,
		Random: func() uint64 {
			a.model.epoch++
			a.drawn = a.model.epoch
			return a.drawn
		},
	})
	if err != nil {
		a.model.t.Fatal(err)
	}
}

func (a *modelAgent) add(container string, s modelSample) {
	a.drawn = 0
	a.acc.Add(a.model.hash, container, sample.CPU, s.value, s.weight, s.startup)
	if a.drawn != 0 {
		a.current[container] = a.drawn
		a.blobs[a.drawn] = &modelBlob{container: container}
	}
	b := a.blobs[a.current[container]]
	b.samples = append(b.samples, s)
}

func (a *modelAgent) flush(mode string) {
	a.model.advance(20 * time.Second)
	for _, b := range a.blobs {
		b.saved = len(b.samples)
	}
	a.wire.mode = mode
	err := a.acc.Flush(context.Background())
	switch {
	case err == nil:
		a.flushed = a.model.clock.Mono
	case !errors.Is(err, errLost):
		a.model.t.Fatal(err)
	}
}

// deliver lets a delayed write arrive.
func (a *modelAgent) deliver(i int) {
	if _, err := a.wire.store.Flush(context.Background(), store.Batch{Writes: a.wire.pending[i].Writes}); err != nil {
		a.model.t.Fatal(err)
	}
	a.wire.pending = append(a.wire.pending[:i], a.wire.pending[i+1:]...)
}

// kill ends the agent and starts it again, with or without what it had saved.
func (a *modelAgent) kill(checkpoint bool) {
	for epoch, b := range a.blobs {
		has := b.saved
		if !checkpoint {
			has = a.stored(epoch)
		}
		b.samples = b.samples[:has]
		b.saved = has
	}
	if !checkpoint {
		a.wire.pending = nil // a dead process's writes that have not arrived yet are taken never to
		_ = os.Remove(a.path)
	}
	a.start()
}

// stored returns how many samples of an epoch the store has.
func (a *modelAgent) stored(epoch uint64) int {
	f, ok := a.wire.fields[epoch]
	if !ok {
		return 0
	}
	reply, err := a.wire.store.Flush(context.Background(), store.Batch{Check: []store.Field{f}})
	if err != nil {
		a.model.t.Fatal(err)
	}
	if folded, ok := reply.Folded[f]; ok {
		if folded.Whole {
			return a.blobs[epoch].saved
		}
		return int(folded.Flush)
	}
	key := fmt.Sprintf("plimsoll:1:{%s}:h:%d", f.Hash, f.Hour)
	value, err := a.model.redis.Do("HGET", key, fmt.Sprintf("%s|%s|%016x", f.Container, f.Agent, f.Epoch))
	if err != nil {
		a.model.t.Fatal(err)
	}
	if value == "" {
		return 0
	}
	blob, err := store.ReadHeader([]byte(value))
	if err != nil {
		a.model.t.Fatal(err)
	}
	return int(blob.Flush)
}
