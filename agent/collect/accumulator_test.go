package collect_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/agent/collect"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/pkg/store/storetest"
	"plimsoll.dev/test/env"
)

const hash = "0123456789abcdef"

// forever keeps every measurement at full weight, so that a window can be compared with what was added.
var forever = store.Retention{Window: 192 * time.Hour}

// twoClocks is both clocks of a node.
type twoClocks struct{ collect.Moment }

func newTwoClocks() *twoClocks {
	return &twoClocks{collect.Moment{Wall: time.Date(2026, 3, 10, 12, 10, 0, 0, time.UTC), Mono: time.Hour}}
}

func (c *twoClocks) read() collect.Moment { return c.Moment }

func (c *twoClocks) advance(d time.Duration) {
	c.Wall, c.Mono = c.Wall.Add(d), c.Mono+d
}

// storeRig is an agent's accumulator, an owner, and a Redis behind a proxy.
type storeRig struct {
	t     testing.TB
	clock *twoClocks
	redis *env.Redis
	proxy *storetest.Proxy
	store *store.Store
	owner *store.Store
	path  string
	check *collect.Checkpoint
	acc   *collect.Accumulator
}

func newStoreRig(t testing.TB, o env.RedisOptions) *storeRig {
	t.Helper()
	r := &storeRig{t: t, clock: newTwoClocks(), redis: env.StartRedis(t, o), path: filepath.Join(t.TempDir(), "checkpoint")}
	r.proxy = storetest.NewProxy(t, r.redis.Addr())
	r.store, r.owner = openStore(t, r.proxy.Addr()), openStore(t, r.proxy.Addr())
	r.start()
	return r
}

func openStore(t testing.TB, addr string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{URL: "redis://" + addr, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// start starts the agent, as after a kill if it ran before.
func (r *storeRig) start() {
	r.t.Helper()
	if r.check != nil {
		if err := r.check.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
	var err error
	if r.check, err = collect.OpenCheckpoint(r.t.Context(), r.path, nil); err != nil {
		r.t.Fatal(err)
	}
	r.acc, err = collect.NewAccumulator(collect.AccumulatorOptions{
		Agent: "node-1", Store: r.store, Checkpoint: r.check, Clock: r.clock.read,
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// add takes n samples, one a second.
func (r *storeRig) add(n int) {
	for range n {
		r.clock.advance(time.Second)
		r.acc.Add(hash, "app", sample.CPU, 0.5, time.Second, false)
	}
}

func (r *storeRig) flush() {
	r.t.Helper()
	r.clock.advance(20 * time.Second)
	if err := r.acc.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *storeRig) flushFails() {
	r.t.Helper()
	r.clock.advance(20 * time.Second)
	if err := r.acc.Flush(r.t.Context()); err == nil {
		r.t.Fatal("the flush succeeded")
	}
}

func (r *storeRig) fold() int {
	r.t.Helper()
	n, err := r.owner.Fold(r.t.Context(), hash, r.clock.Wall, forever)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// want fails the test unless the owner sees exactly n samples.
func (r *storeRig) want(n int) {
	r.t.Helper()
	w, err := r.owner.Window(r.t.Context(), hash, r.clock.Wall, forever)
	if err != nil {
		r.t.Fatal(err)
	}
	var got uint64
	var weight float64
	if c := w.Containers["app"]; c != nil && c.Usage[sample.CPU] != nil {
		got, weight = c.Usage[sample.CPU].Count(), c.Usage[sample.CPU].Weight()
	}
	if got != uint64(n) || weight != float64(n)*1000 || w.Unreadable != 0 {
		r.t.Fatalf("the window has %d samples of %v ms, %d unreadable, want %d", got, weight, w.Unreadable, n)
	}
}

func TestNothingIsWrittenForWhatDidNotChange(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(10)
	r.flush()
	r.flush() // the connection was new: everything once more
	before := commands(t, r.redis)
	r.flush()
	if after := commands(t, r.redis); after != before {
		t.Errorf("HSET statistics went from %s to %s", before, after)
	}
}

func commands(t *testing.T, r *env.Redis) string {
	t.Helper()
	text, err := r.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for line := range lines(text) {
		if len(line) > 13 && line[:13] == "cmdstat_hset:" {
			return line
		}
	}
	return ""
}

func TestLateSamplesAreDroppedAndCounted(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(30)
	r.flush()
	r.proxy.Down()
	r.add(12)
	r.flushFails()
	r.clock.advance(8 * time.Hour) // the hour was folded as it stood, six hours after its end
	r.proxy.Up()
	if n := r.fold(); n != 1 {
		t.Fatalf("folded %d fields", n)
	}
	r.flush()
	r.want(30)
	if s := r.acc.Stats(); s.Dropped != 12 || s.Kept != 0 {
		t.Errorf("%+v, want 12 dropped", s)
	}
}

func TestAfterADayAnythingIsDroppedAndCounted(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(30)
	r.proxy.Down()
	r.flushFails()
	r.clock.advance(25 * time.Hour)
	r.proxy.Up()
	r.flush() // closes the blob; it is a day before it is given up
	r.want(30)
	r.fold()
	r.want(30)
	r.proxy.Down()
	r.add(7)
	r.clock.advance(time.Hour)
	r.flushFails()
	r.clock.advance(25 * time.Hour)
	r.proxy.Up()
	flushUntil(t, r)
	r.want(30)
	if s := r.acc.Stats(); s.Dropped != 7 {
		t.Errorf("%+v, want 7 dropped", s)
	}
}

func TestByteCapDropsTheOldestAndCounts(t *testing.T) {
	clk := newTwoClocks()
	away := &awayStore{}
	acc, err := collect.NewAccumulator(collect.AccumulatorOptions{Agent: "n", Store: away, Clock: clk.read, MaxBytes: 3000})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		for range 5 {
			clk.advance(time.Second)
			acc.Add(hash, "app", sample.Memory, 1<<20, time.Second, false)
		}
		clk.advance(time.Hour)
		if err := acc.Flush(t.Context()); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
	}
	s := acc.Stats()
	if s.Bytes > 3000 || s.Kept == 0 || s.Dropped != uint64(100-5*s.Kept) {
		t.Errorf("%+v", s)
	}
}

var errAway = errors.New("away")

type awayStore struct{ batches []store.Batch }

func (s *awayStore) Flush(_ context.Context, b store.Batch) (store.Reply, error) {
	s.batches = append(s.batches, b)
	return store.Reply{}, errAway
}

func (s *awayStore) Connections() uint64 { return 0 }

func TestWeightsKeepTheirSumAndStartupItsOwnSketch(t *testing.T) {
	clk := newTwoClocks()
	fake := &awayStore{}
	acc, err := collect.NewAccumulator(collect.AccumulatorOptions{Agent: "n", Store: fake, Clock: clk.read})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		acc.Add(hash, "app", sample.CPU, 0.1, 100*time.Millisecond+300*time.Microsecond, false)
	}
	acc.Add(hash, "app", sample.Memory, 5<<20, 150*time.Second, true)
	_ = acc.Flush(t.Context())
	if len(fake.batches) != 1 || len(fake.batches[0].Writes) != 1 {
		t.Fatalf("%d batches", len(fake.batches))
	}
	var blob store.Blob
	if err := blob.UnmarshalBinary(fake.batches[0].Writes[0].Value); err != nil {
		t.Fatal(err)
	}
	if w := blob.Usage[sample.CPU].Weight(); w != 100300 {
		t.Errorf("weight %v ms, want 100300", w)
	}
	want := []bool{true, false, true, false, true}
	got := []bool{
		blob.Usage[sample.CPU] != nil, blob.Usage[sample.Memory] != nil, blob.Startup[sample.Memory] != nil,
		blob.Startup[sample.CPU] != nil, blob.Flush == 1001,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// 150 seconds up to 12:10 cover the minutes 7, 8, 9 and 10; half a minute of one counts.
	if n := blob.Minutes.Count(); n != 3 {
		t.Errorf("%d minutes covered", n)
	}
}

func lines(text string) func(func(string) bool) {
	return strings.SplitSeq(strings.ReplaceAll(text, "\r", ""), "\n")
}

func TestRunFlushesForTheLastTimeWhenItEnds(t *testing.T) {
	clk := newTwoClocks()
	fake := &awayStore{}
	acc, err := collect.NewAccumulator(collect.AccumulatorOptions{Agent: "n", Store: fake, Clock: clk.read})
	if err != nil {
		t.Fatal(err)
	}
	acc.Add(hash, "app", sample.CPU, 1, time.Second, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var failures []error
	acc.Run(ctx, time.Second, func(err error) { failures = append(failures, err) })
	if len(failures) != 1 || !errors.Is(failures[0], errAway) || len(fake.batches) != 1 || len(fake.batches[0].Writes) != 1 {
		t.Fatalf("%d batches, failures %v", len(fake.batches), failures)
	}
	header, err := store.ReadHeader(fake.batches[0].Writes[0].Value)
	if err != nil || !header.Final || header.Flush != 1 {
		t.Errorf("%+v, %v", header, err)
	}
}

func TestProfilesAreFlushedAsOftenAsTheirPolicySays(t *testing.T) {
	clk := newTwoClocks()
	fake := &awayStore{}
	slow := "00000000000000aa"
	acc, err := collect.NewAccumulator(collect.AccumulatorOptions{
		Agent: "n", Store: fake, Clock: clk.read,
		FlushEvery: func(h string) time.Duration {
			if h == slow {
				return 2 * time.Minute
			}
			return 0
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	flushes := map[string]uint64{}
	for range 12 { // two minutes
		for range 10 {
			clk.advance(time.Second)
			acc.Add(hash, "app", sample.CPU, 1, time.Second, false)
			acc.Add(slow, "app", sample.CPU, 1, time.Second, false)
		}
		clk.advance(10 * time.Second)
		_ = acc.Flush(t.Context())
	}
	for _, b := range fake.batches {
		for _, w := range b.Writes {
			header, err := store.ReadHeader(w.Value)
			if err != nil {
				t.Fatal(err)
			}
			if header.Flush > flushes[w.Field.Hash] {
				flushes[w.Field.Hash] = header.Flush
			}
		}
	}
	if flushes[hash] != 120 || flushes[slow] >= 120 || flushes[slow] == 0 {
		t.Errorf("flushed %v samples", flushes)
	}
}
