package collect_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/pkg/store/storetest"
	"plimsoll.dev/test/env"
)

// The model keeps every sample by the epoch of the blob it went to, takes away what a kill loses, and in the end compares
// the folded window with sketches to which each remaining sample was added once.

var modelContainers = []string{"app", "side"}

type modelSample struct {
	value   float64
	weight  time.Duration
	startup bool
}

// modelBlob is one epoch of one container.
type modelBlob struct {
	container string
	samples   []modelSample
	saved     int // how many of them the checkpoint has
}

type model struct {
	t      *rapid.T
	hash   string
	redis  *env.Redis
	proxy  *storetest.Proxy
	clock  twoClocks // the truth
	agents []*modelAgent
	owners []*store.Store
	epoch  uint64
}

// retentions are all without decay in what is read; the half-life only names blocks.
var foldRetentions = []store.Retention{
	{Window: forever.Window, HalfLife: 24 * time.Hour}, {Window: forever.Window, HalfLife: 8 * time.Hour},
	{Window: forever.Window, HalfLife: 96 * time.Hour},
}

func (m *model) advance(d time.Duration) {
	m.clock.advance(d)
	for _, a := range m.agents {
		a.clock.advance(d)
	}
}

func (m *model) agent(t *rapid.T) *modelAgent { return rapid.SampledFrom(m.agents).Draw(t, "agent") }

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"add": func(t *rapid.T) {
			a, container := m.agent(t), rapid.SampledFrom(modelContainers).Draw(t, "container")
			for range rapid.IntRange(1, 4).Draw(t, "n") {
				m.advance(time.Second)
				a.add(container, modelSample{
					// Powers of two and whole seconds: sums are exact in any order, so sketches compare byte by byte.
					value:   float64(uint64(1)<<rapid.IntRange(0, 8).Draw(t, "value")) / 16,
					weight:  time.Duration(rapid.SampledFrom([]int{100, 1000, 2000}).Draw(t, "ms")) * time.Millisecond,
					startup: rapid.IntRange(0, 4).Draw(t, "startup") == 0,
				})
			}
		},
		"flush": func(t *rapid.T) {
			m.agent(t).flush(rapid.SampledFrom([]string{"", "lost", "answer lost", "repeated", "delayed"}).Draw(t, "mode"))
		},
		"deliver": func(t *rapid.T) {
			if a := m.agent(t); len(a.wire.pending) > 0 {
				a.deliver(rapid.IntRange(0, len(a.wire.pending)-1).Draw(t, "which"))
			}
		},
		"kill": func(t *rapid.T) { m.agent(t).kill(rapid.Bool().Draw(t, "checkpoint")) },
		"clock step": func(t *rapid.T) {
			a := m.agent(t)
			a.clock.Wall = m.clock.Wall.Add(time.Duration(rapid.IntRange(-50, 50).Draw(t, "minutes")) * time.Minute)
		},
		"time": func(t *rapid.T) {
			m.advance(time.Duration(rapid.IntRange(1, 40).Draw(t, "minutes")) * time.Minute)
			for _, a := range m.agents {
				if m.clock.Mono-a.flushed > 3*time.Hour {
					a.flush("")
				}
			}
		},
		"fold":         func(t *rapid.T) { m.fold(m.draw(t)) },
		"fold at once": func(t *rapid.T) { m.foldAtOnce(t) },
		"fold crashes": func(t *rapid.T) {
			owner, r := m.draw(t)
			m.proxy.CutReplies(rapid.IntRange(1, 4).Draw(t, "replies"), rapid.IntRange(0, 3000).Draw(t, "bytes"))
			_, _ = owner.Fold(context.Background(), m.hash, m.clock.Wall, r)
			m.proxy.Up()
		},
		"": func(t *rapid.T) { m.atMost(t) },
	}
}

func (m *model) draw(t *rapid.T) (*store.Store, store.Retention) {
	return rapid.SampledFrom(m.owners).Draw(t, "owner"), rapid.SampledFrom(foldRetentions).Draw(t, "retention")
}

func (m *model) fold(owner *store.Store, r store.Retention) {
	if _, err := owner.Fold(context.Background(), m.hash, m.clock.Wall, r); err != nil {
		m.t.Fatal(err)
	}
}

// foldAtOnce has two owners fold at the same time, perhaps with different half-lives, while an agent flushes.
func (m *model) foldAtOnce(t *rapid.T) {
	var wait sync.WaitGroup
	for _, owner := range m.owners {
		r := rapid.SampledFrom(foldRetentions).Draw(t, "retention")
		wait.Go(func() {
			if _, err := owner.Fold(context.Background(), m.hash, m.clock.Wall, r); err != nil {
				t.Error(err)
			}
		})
	}
	a := m.agent(t)
	writes := []store.Batch{}
	writes = append(writes, a.wire.pending...)
	wait.Go(func() {
		for _, b := range writes {
			if _, err := a.wire.store.Flush(context.Background(), store.Batch{Writes: b.Writes}); err != nil {
				t.Error(err)
			}
		}
	})
	wait.Wait()
	a.wire.pending = nil
}

// atMost checks that at no moment is there more than was ever added.
func (m *model) atMost(t *rapid.T) {
	for _, owner := range m.owners {
		w := m.window(owner)
		for _, name := range modelContainers {
			usage, startup := m.want(name)
			if c := w.Containers[name]; c != nil {
				for i, s := range []*sketch.Sketch{c.Usage[sample.CPU], c.Startup[sample.CPU]} {
					if most := []*sketch.Sketch{usage, startup}[i]; s != nil && s.Count() > most.Count() {
						t.Fatalf("%s has %d samples, %d were added", name, s.Count(), most.Count())
					}
				}
			}
		}
	}
}

func (m *model) window(owner *store.Store) *store.Window {
	w, err := owner.Window(context.Background(), m.hash, m.clock.Wall, forever)
	if err != nil {
		m.t.Fatal(err)
	}
	if w.Unreadable > 0 {
		m.t.Fatalf("%d values are unreadable", w.Unreadable)
	}
	return w
}

// want returns the sketches of everything that was not lost by a kill, each sample added once.
func (m *model) want(container string) (usage, startup *sketch.Sketch) {
	usage, startup = &sketch.Sketch{}, &sketch.Sketch{}
	for _, a := range m.agents {
		for _, b := range a.blobs {
			for _, s := range b.samples {
				if b.container != container {
					continue
				}
				into := usage
				if s.startup {
					into = startup
				}
				into.Add(s.value, float64(s.weight.Milliseconds()))
			}
		}
	}
	return usage, startup
}

func (m *model) compare(when string) {
	for i, owner := range m.owners {
		w := m.window(owner)
		for _, name := range modelContainers {
			c := w.Containers[name]
			if c == nil {
				c = &store.Container{}
			}
			usage, startup := m.want(name)
			m.same(fmt.Sprintf("%s, owner %d, %s", when, i, name), usage, c.Usage[sample.CPU])
			m.same(fmt.Sprintf("%s, owner %d, start-up of %s", when, i, name), startup, c.Startup[sample.CPU])
		}
	}
}

func (m *model) same(what string, want, got *sketch.Sketch) {
	if got == nil {
		got = &sketch.Sketch{}
	}
	a, errA := want.AppendBinary(nil)
	b, errB := got.AppendBinary(nil)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		m.t.Fatalf("%s: %d samples of %v ms, want %d of %v (%v, %v)",
			what, got.Count(), got.Weight(), want.Count(), want.Weight(), errA, errB)
	}
}

// settle lets everything come to rest, at most six hours after it was measured, and compares.
func (m *model) settle() {
	for range 3 {
		for _, a := range m.agents {
			a.flush("")
		}
		m.advance(11 * time.Minute)
	}
	m.advance(time.Hour + time.Minute) // the hours close, also those of a clock that is behind
	for range 2 {
		for _, a := range m.agents {
			a.flush("")
		}
		m.advance(11 * time.Minute)
	}
	m.fold(m.owners[0], foldRetentions[0])
	m.compare("once final blobs are folded")
	m.advance(8 * time.Hour)
	m.fold(m.owners[1], foldRetentions[1])
	m.compare("after eight hours")
	for range 3 {
		for _, a := range m.agents {
			a.flush("")
			m.advance(3 * time.Minute)
		}
	}
	for _, a := range m.agents {
		if s := a.acc.Stats(); s.Kept != 0 || s.Dropped != 0 {
			m.t.Fatalf("%s still has %+v", a.name, s)
		}
	}
	m.advance(26 * time.Hour)
	m.fold(m.owners[0], foldRetentions[2])
	m.compare("after a day")
}

// settleLate keeps the agents from the store until owners have folded what there is without them, and compares what is
// missing with what the agents count as dropped.
func (m *model) settleLate() {
	for _, a := range m.agents {
		for range rapid.IntRange(0, 5).Draw(m.t, "late samples") {
			m.advance(time.Second)
			a.add("app", modelSample{value: 1, weight: time.Second})
		}
		a.flush(rapid.SampledFrom([]string{"lost", "answer lost", "delayed"}).Draw(m.t, "late mode"))
	}
	m.advance(time.Duration(rapid.IntRange(8*60, 20*60).Draw(m.t, "silence")) * time.Minute)
	m.fold(m.owners[0], foldRetentions[0])
	for range 3 {
		for _, a := range m.agents {
			a.flush("")
		}
		m.advance(2 * time.Minute)
	}
	m.fold(m.owners[1], foldRetentions[1])
	var added, dropped, counted uint64
	for _, a := range m.agents {
		dropped += a.acc.Stats().Dropped
	}
	w := m.window(m.owners[0])
	for _, name := range modelContainers {
		usage, startup := m.want(name)
		added += usage.Count() + startup.Count()
		if c := w.Containers[name]; c != nil {
			for _, s := range []*sketch.Sketch{c.Usage[sample.CPU], c.Startup[sample.CPU]} {
				if s != nil {
					counted += s.Count()
				}
			}
		}
	}
	if counted+dropped != added {
		m.t.Fatalf("of %d samples %d count and %d are known as dropped", added, counted, dropped)
	}
}

func TestAnyInterleavingCountsEverySampleOnce(t *testing.T) {
	interleave(t, (*model).settle)
}

func TestWhatComesTooLateIsCountedExactly(t *testing.T) {
	interleave(t, (*model).settleLate)
}

// interleave runs random actions of two agents, two owners and the network between them, and then ends in some way.
func interleave(t *testing.T, end func(*model)) {
	redis := env.StartRedis(t, env.RedisOptions{})
	proxy := storetest.NewProxy(t, redis.Addr())
	direct := openStore(t, redis.Addr())
	owners := []*store.Store{openStore(t, proxy.Addr()), openStore(t, proxy.Addr())}
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		m := &model{t: t, hash: fmt.Sprintf("%016x", run), redis: redis, proxy: proxy, clock: *newTwoClocks(), owners: owners}
		for i := range 2 {
			a := &modelAgent{
				model: m, name: fmt.Sprintf("node-%d", i), clock: m.clock, flushed: m.clock.Mono,
				path:  filepath.Join(dir, fmt.Sprintf("%d-%d", run, i)),
				wire:  &wire{store: direct, fields: map[uint64]store.Field{}},
				blobs: map[uint64]*modelBlob{},
			}
			m.agents = append(m.agents, a)
			a.start()
		}
		defer func() {
			for _, a := range m.agents {
				_ = a.check.Close()
			}
		}()
		t.Repeat(m.actions())
		end(m)
	})
}
