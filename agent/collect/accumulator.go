package collect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
)

const (
	// DefaultFlush is how often measurements are written where a policy does not say.
	DefaultFlush = 15 * time.Second
	// DefaultMaxBytes bounds what is kept for a store that is away: six hours of some two thousand containers.
	DefaultMaxBytes = 16 << 20

	// clockStep is how far wall clock and monotonic time may part before the wall clock counts as set.
	clockStep = time.Minute
)

// Moment is a reading of both clocks.
type Moment struct {
	Wall time.Time
	Mono time.Duration // since any fixed moment; never goes back
}

var processStart = time.Now()

// SystemClock reads the machine's clocks.
func SystemClock() Moment {
	now := time.Now()
	return Moment{Wall: now.Round(0), Mono: now.Sub(processStart)}
}

// Flusher is where blobs go; store.Store is one.
type Flusher interface {
	Flush(context.Context, store.Batch) (store.Reply, error)
	Connections() uint64
}

// Reporter has what goes to the store beside the sketches; Loop is one.
type Reporter interface {
	Report(now time.Time) Report
	Reported(r Report, written []bool)
}

// AccumulatorOptions are an Accumulator's parts and settings.
type AccumulatorOptions struct {
	// Agent names this agent in the store: the node's name.
	Agent string
	Store Flusher
	// Checkpoint carries what is not recorded over a restart; nil keeps nothing.
	Checkpoint *Checkpoint
	// Reporter may be nil.
	Reporter Reporter
	// FlushEvery returns how often a profile is flushed, by its measurement hash; nil or 0 means DefaultFlush.
	FlushEvery func(hash string) time.Duration
	// MaxBytes bounds what is kept while the store is away; 0 means DefaultMaxBytes.
	MaxBytes int
	// Clock and Random are replaced in tests.
	Clock  func() Moment
	Random func() uint64
}

// Accumulator holds one cumulative blob per profile, container name and hour, writes what changed, and keeps each blob
// until the store says that it has been folded. It is safe for concurrent use.
type Accumulator struct {
	o AccumulatorOptions

	flushing sync.Mutex // held during a flush, so that there is one at a time

	mu     sync.Mutex
	anchor Moment // hours count from here, by monotonic time
	open   map[series]*open
	kept   map[store.Field]*kept
	bytes  int // of kept values
	due    map[string]time.Duration
	resets map[string]time.Time
	// connections is what the store's count was when everything kept was last written.
	connections uint64
	dropped     uint64
}

// series is what has one blob per hour.
type series struct{ hash, container string }

// open is a blob that samples are added to.
type open struct {
	field   store.Field
	blob    store.Blob
	changed bool
	carry   [2 * sample.Count]time.Duration // of weights, below a step
}

// NewAccumulator returns an accumulator which starts with what the checkpoint holds. Blobs from before take nothing any
// more: what was written last may be fuller than anything this process could continue.
func NewAccumulator(o AccumulatorOptions) (*Accumulator, error) {
	if o.Clock == nil {
		o.Clock = SystemClock
	}
	if o.Random == nil {
		o.Random = rand.Uint64
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	a := &Accumulator{
		o: o, anchor: o.Clock(),
		open: map[series]*open{}, kept: map[store.Field]*kept{},
		due: map[string]time.Duration{}, resets: map[string]time.Time{},
	}
	if o.Checkpoint == nil {
		return a, nil
	}
	writes, err := o.Checkpoint.Load()
	for _, w := range writes {
		if sealErr := store.Seal(w.Value); sealErr != nil {
			err = errors.Join(err, fmt.Errorf("restoring %s of hour %d: %w", w.Field.Container, w.Field.Hour, sealErr))
			continue
		}
		a.keep(w.Field, w.Value)
		end := time.Unix((w.Field.Hour+1)*3600, 0)
		k := a.kept[w.Field]
		k.expires -= min(giveUpAfter, max(0, a.anchor.Wall.Sub(end)))
	}
	return a, err
}

// now returns the time by which hours are told: the wall clock at the anchor plus monotonic time since, so that a wall
// clock being set moves nothing. A step of more than a minute starts anew from the wall clock.
func (a *Accumulator) now() time.Time {
	m := a.o.Clock()
	t := a.anchor.Wall.Add(m.Mono - a.anchor.Mono)
	if d := m.Wall.Sub(t); d.Abs() <= clockStep {
		return t
	}
	a.anchor = m
	for s := range a.open {
		a.finish(s)
	}
	return m.Wall
}

// Add takes a value of a resource, in its base unit, that held for a time.
func (a *Accumulator) Add(hash, container string, r sample.Resource, value float64, weight time.Duration, startup bool) {
	if int(r) >= sample.Count || weight <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	o := a.at(series{hash, container}, now)
	in, carry := &o.blob.Usage, &o.carry[r]
	if startup {
		in, carry = &o.blob.Startup, &o.carry[sample.Count+r]
	}
	if in[r] == nil {
		in[r] = &sketch.Sketch{}
	}
	counted, rest := roundWeight(weight, *carry)
	*carry = rest
	in[r].Add(value, float64(counted/time.Millisecond))
	o.changed = true
	// A sample of more than a minute covers the minutes before, as far as they are of this hour.
	for m := now; ; m = m.Add(-time.Minute) {
		o.blob.Minutes.Add(m)
		if earlier := m.Add(-time.Minute); now.Sub(earlier) >= weight || store.HourOf(earlier) != o.field.Hour {
			break
		}
	}
}

// weightSteps are what weights are rounded to. Samples are never exactly an interval apart; kept to the millisecond, the
// weights of equal samples would all differ, and take half as much room again in the store.
var weightSteps = [...]time.Duration{
	10 * time.Second, 5 * time.Second, 2 * time.Second, time.Second,
	500 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond, 10 * time.Millisecond,
}

// roundWeight rounds a weight to the longest step that is right to 5 %, and returns what to carry to the next sample, so
// that the sum stays right.
func roundWeight(weight, carry time.Duration) (counted, rest time.Duration) {
	step := time.Millisecond
	for _, s := range weightSteps {
		if (weight.Round(s) - weight).Abs() <= weight/20 {
			step = s
			break
		}
	}
	counted = max(step, (weight + carry).Round(step))
	return counted, weight + carry - counted
}

// at returns the blob of a series for the hour, starting an empty one under a new epoch if there is none.
func (a *Accumulator) at(s series, now time.Time) *open {
	hour := store.HourOf(now)
	if o := a.open[s]; o != nil {
		if o.field.Hour == hour {
			return o
		}
		a.finish(s)
	}
	started := now
	// The mark of a reset is by another machine's clock; what starts after it was seen must not look older.
	if reset := a.resets[s.hash]; !started.After(reset) {
		started = reset.Add(time.Millisecond)
	}
	o := &open{
		field: store.Field{Hash: s.hash, Hour: hour, Container: s.container, Agent: a.o.Agent, Epoch: a.o.Random()},
		blob:  store.Blob{Started: started},
	}
	a.open[s] = o
	return o
}

// finish closes the blob of a series: its next flush is its last.
func (a *Accumulator) finish(s series) {
	o := a.open[s]
	delete(a.open, s)
	o.blob.Final, o.changed = true, true
	a.encode(o)
}

// encode brings what is kept of an open blob up to date.
func (a *Accumulator) encode(o *open) {
	if !o.changed {
		return
	}
	o.blob.Flush = 0
	for r := range sample.Count {
		for _, s := range [...]*sketch.Sketch{o.blob.Usage[r], o.blob.Startup[r]} {
			if s != nil {
				o.blob.Flush += s.Count()
			}
		}
	}
	o.changed = false
	if o.blob.Flush == 0 {
		return
	}
	value, err := o.blob.AppendBinary(nil)
	if err != nil {
		// More than 2^53 ms within an hour: no agent gets there, but one that did would have lost this blob.
		a.dropped += o.blob.Flush
		return
	}
	a.keep(o.field, value)
}

// Stats is an accumulator's state.
type Stats struct {
	// Open is the number of blobs being added to, Kept that of blobs not known to be folded, Bytes their size.
	Open, Kept, Bytes int
	// Dropped counts samples given up: the store was away for too long, or too much was kept.
	Dropped uint64
}

// Stats returns the accumulator's state.
func (a *Accumulator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{Open: len(a.open), Kept: len(a.kept), Bytes: a.bytes, Dropped: a.dropped}
}
