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

func TestC84RedisAwayForTenMinutesAndForFiveHours(t *testing.T) {
	for name, away := range map[string]time.Duration{"ten minutes": 10 * time.Minute, "five hours": 5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, env.RedisOptions{Persist: true})
			r.add(100)
			r.flush()
			r.redis.Stop()
			total := 100
			for end := r.clock.Wall.Add(away); r.clock.Wall.Before(end); {
				r.add(60)
				total += 60
				r.clock.advance(away / 12)
				r.flushFails()
			}
			r.redis.Start()
			r.add(1)
			r.flush()
			r.flush()
			r.want(total + 1)
			r.fold()
			r.want(total + 1)
			// An hour and a half later everything has been folded and the agent knows.
			r.clock.advance(time.Hour)
			r.flush()
			r.fold()
			for range 5 {
				r.clock.advance(time.Minute)
				r.flush()
			}
			r.want(total + 1)
			if s := r.acc.Stats(); s.Kept != 0 || s.Bytes != 0 || s.Dropped != 0 {
				t.Errorf("the agent still has %+v", s)
			}
		})
	}
}

func TestC84FailoverToAReplicaThatMissedTheLastMinute(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	replica := env.StartRedisReplica(t, r.redis)
	r.add(60)
	r.clock.advance(time.Hour) // the hour closes
	r.add(60)
	r.flush()
	waitForCopy(t, r.redis, replica)
	replica.Promote() // it copies no more
	// What now happens reaches the primary only: another flush, the hour's fold, and the agent learns of the fold.
	r.add(30)
	r.flush()
	r.fold()
	r.add(30)
	r.flush()
	r.want(180)
	r.redis.Kill()
	r.proxy.Retarget(replica.Addr())
	r.add(1)
	r.clock.advance(time.Minute)
	flushUntil(t, r)
	r.flush()
	r.want(181)
	r.fold()
	r.want(181)
}

func waitForCopy(t *testing.T, primary, replica *env.Redis) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		a, errA := primary.Do("DEBUG", "DIGEST")
		b, errB := replica.Do("DEBUG", "DIGEST")
		if errA != nil || errB != nil {
			a, errA = primary.Do("DBSIZE")
			b, errB = replica.Do("DBSIZE")
		}
		if errA == nil && errB == nil && a == b {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica has %s (%v), the primary %s (%v)", b, errB, a, errA)
		}
	}
}

// flushUntil flushes until it succeeds: the first attempts find connections broken.
func flushUntil(t *testing.T, r *storeRig) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := r.acc.Flush(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestC85RedisRestartsEmpty(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(60)
	r.clock.advance(time.Hour)
	r.add(60)
	r.flush()
	r.fold()
	r.want(120)
	r.redis.RestartEmpty()
	r.add(1)
	flushUntil(t, r)
	// The agent still has the hour that closed: it was folded so lately that the fold could have been lost.
	r.clock.advance(time.Minute)
	r.flush()
	r.want(121)
	r.redis.RestartEmpty()
	r.want(0) // nothing of what the owner remembers is taken for what Redis has
}

func TestC86KilledAndRestarted(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(100)
	r.flush()
	r.add(10) // lost: not flushed
	r.start()
	r.add(5)
	r.flush()
	r.want(105)
	r.fold()
	r.want(105)
	// While Redis is away, what a flush tried to write survives too.
	r.proxy.Down()
	r.add(50)
	r.flushFails()
	r.start()
	r.proxy.Up()
	r.flush()
	r.flush()
	r.want(155)
	r.fold()
	r.want(155)
}

func TestC88ProfileDeletedWithLivePods(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(60)
	r.clock.advance(time.Hour)
	r.add(60)
	r.flush()
	r.fold()
	r.add(7)
	// The webhook's clock is three seconds ahead of the node's.
	if err := r.owner.Reset(t.Context(), hash, r.clock.Wall.Add(3*time.Second)); err != nil {
		t.Fatal(err)
	}
	r.want(0)
	r.clock.advance(time.Second)
	if err := r.acc.Flush(t.Context()); err != nil { // the agent learns of the reset after it wrote the old blobs again
		t.Fatal(err)
	}
	r.want(0)
	r.acc.Add(hash, "app", sample.CPU, 0.5, time.Second, false)
	r.flush()
	r.want(1)
	r.fold()
	r.want(1)
	r.clock.advance(2 * time.Hour)
	r.flush()
	r.fold()
	r.want(1)
}

func TestC27TheSameValueTenThousandTimes(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	for range 100 {
		r.add(100)
		r.flush()
	}
	r.want(10000)
	for range 3 {
		r.clock.advance(time.Hour)
		r.flush()
		r.fold()
	}
	r.want(10000)
}

func TestC28ClockJumps(t *testing.T) {
	for name, jump := range map[string]time.Duration{
		"back an hour": -time.Hour, "ahead an hour": time.Hour, "ahead three days": 72 * time.Hour, "back three seconds": -3 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, env.RedisOptions{})
			truth := *r.clock
			r.add(60)
			r.flush()
			r.add(40) // not flushed when the clock jumps
			r.clock.Wall = r.clock.Wall.Add(jump)
			r.add(50)
			r.flush()
			// The clock is put right again.
			r.clock.Wall = truth.Wall.Add(r.clock.Mono - truth.Mono)
			r.add(50)
			r.flush()
			r.clock.advance(90 * time.Minute)
			r.flush()
			r.fold()
			visible := 200
			if jump == 72*time.Hour {
				visible = 150 // three days early; it will count when its time comes
			}
			r.want(visible)
			if s := r.acc.Stats(); s.Dropped != 0 {
				t.Errorf("%d samples dropped", s.Dropped)
			}
		})
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
