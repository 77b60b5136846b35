package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

const hash = "0123456789abcdef"

var (
	retention = store.Retention{Window: 192 * time.Hour, HalfLife: 24 * time.Hour}
	// noon is in the middle of an hour and of a block.
	noon = time.Date(2026, 3, 10, 12, 30, 0, 0, time.UTC)
)

func open(t testing.TB, addrs ...string) *store.Store {
	t.Helper()
	s, err := store.Open(store.Config{URL: "redis://" + strings.Join(addrs, ","), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// sample of a blob: a value in cores and the second of the hour it was taken at.
type point struct {
	value  float64
	second int
}

// write builds the write of a field whose blob holds points, each for a second.
func write(t testing.TB, f store.Field, final bool, points ...point) store.Write {
	t.Helper()
	blob := store.Blob{Final: final, Started: time.Unix(f.Hour*3600, 0), Flush: uint64(len(points))}
	blob.Usage[sample.CPU] = &sketch.Sketch{}
	for _, p := range points {
		blob.Usage[sample.CPU].Add(p.value, 1000)
		blob.Minutes.Add(time.Unix(f.Hour*3600+int64(p.second), 0))
	}
	value, err := blob.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store.Write{Field: f, Value: value}
}

func flush(t testing.TB, s *store.Store, b store.Batch) store.Reply {
	t.Helper()
	reply, err := s.Flush(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func window(t testing.TB, s *store.Store, now time.Time) *store.Window {
	t.Helper()
	w, err := s.Window(t.Context(), hash, now, retention)
	if err != nil {
		t.Fatal(err)
	}
	if w.Unreadable != 0 {
		t.Fatalf("%d values are unreadable", w.Unreadable)
	}
	return w
}

func fold(t testing.TB, s *store.Store, now time.Time) int {
	t.Helper()
	n, err := s.Fold(t.Context(), hash, now, retention)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// count returns the number of cpu samples of container app.
func count(w *store.Window) uint64 {
	c := w.Containers["app"]
	if c == nil || c.Usage[sample.CPU] == nil {
		return 0
	}
	return c.Usage[sample.CPU].Count()
}

func field(hour int64, epoch uint64) store.Field {
	return store.Field{Hash: hash, Hour: hour, Container: "app", Agent: "node-1", Epoch: epoch}
}

func keys(t testing.TB, r *env.Redis) []string {
	t.Helper()
	text, err := r.Do("KEYS", "*")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(text)
}

func TestFlushWindowFold(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{})
	s := open(t, r.Addr())
	hour := store.HourOf(noon)
	open := write(t, field(hour, 2), false, point{1, 0}, point{2, 1}, point{3, 600})
	closed := write(t, field(hour-1, 1), true, point{4, 0})
	reply := flush(t, s, store.Batch{Writes: []store.Write{open, closed}, Check: []store.Field{closed.Field}})
	if diff := cmp.Diff([]bool{true, true}, reply.Written); diff != "" || len(reply.Folded) != 0 {
		t.Fatalf("written %s, folded %v", diff, reply.Folded)
	}

	w := window(t, s, noon)
	if count(w) != 4 || !w.Foldable {
		t.Fatalf("before folding: %d samples, foldable %v", count(w), w.Foldable)
	}
	c := w.Containers["app"]
	if c.CoveredMinutes() != 3 || c.CoveredHours() != 2 {
		t.Errorf("covered %d minutes in %d hours", c.CoveredMinutes(), c.CoveredHours())
	}
	if want := time.Unix(hour*3600+660, 0); !c.LastSample().Equal(want) {
		t.Errorf("last sample %v, want %v", c.LastSample(), want)
	}
	if want := time.Unix((hour-1)*3600, 0); !c.FirstSample().Equal(want) {
		t.Errorf("first sample %v, want %v", c.FirstSample(), want)
	}

	if n := fold(t, s, noon); n != 1 {
		t.Errorf("folded %d fields, want 1", n)
	}
	if w := window(t, s, noon); count(w) != 4 || w.Foldable || w.Containers["app"].CoveredMinutes() != 3 {
		t.Errorf("after folding: %d samples, foldable %v", count(w), w.Foldable)
	}
	if n := fold(t, s, noon); n != 0 {
		t.Errorf("folded %d fields again", n)
	}

	// The agent, not yet aware, writes both again; the reply tells it, and nothing counts twice.
	reply = flush(t, s, store.Batch{Writes: []store.Write{open, closed}, Check: []store.Field{closed.Field}})
	if diff := cmp.Diff(map[store.Field]store.Folded{closed.Field: {Whole: true}}, reply.Folded); diff != "" {
		t.Errorf("folded (-want +got):\n%s", diff)
	}
	if w := window(t, s, noon); count(w) != 4 || !w.Foldable {
		t.Errorf("after writing again: %d samples, foldable %v", count(w), w.Foldable)
	}
	fold(t, s, noon)
	if w := window(t, s, noon); count(w) != 4 || w.Foldable {
		t.Errorf("after folding again: %d samples, foldable %v", count(w), w.Foldable)
	}
}

func TestEveryKeyExpires(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{})
	s := open(t, r.Addr())
	hour := store.HourOf(noon)
	flush(t, s, store.Batch{
		Writes:   []store.Write{write(t, field(hour, 1), false, point{1, 0}), write(t, field(hour-1, 2), true, point{1, 0})},
		Live:     []store.Live{{Hash: hash, PodUID: "u", Container: "app", At: noon}},
		OOMKills: []store.OOMKill{{Hash: hash, PodUID: "u", Container: "app", At: noon, Scope: store.ScopeContainer}},
	})
	fold(t, s, noon)
	if err := s.Reset(t.Context(), hash, noon.Add(-48*time.Hour)); err != nil {
		t.Fatal(err)
	}
	flush(t, s, store.Batch{
		Writes:   []store.Write{write(t, field(hour, 1), false, point{1, 0}), write(t, field(hour-1, 2), true, point{1, 0})},
		Live:     []store.Live{{Hash: hash, PodUID: "u", Container: "app", At: noon}},
		OOMKills: []store.OOMKill{{Hash: hash, PodUID: "u", Container: "app", At: noon, Scope: store.ScopeContainer}},
	})
	fold(t, s, noon)
	all := keys(t, r)
	if len(all) != 5 {
		t.Errorf("keys %v, want one of each of the five kinds", all)
	}
	for _, key := range all {
		if !strings.HasPrefix(key, "plimsoll:1:{"+hash+"}:") {
			t.Errorf("key %s is outside the schema", key)
		}
		if ttl, err := r.Do("PTTL", key); err != nil || ttl == "-1" {
			t.Errorf("key %s: TTL %s, %v", key, ttl, err)
		}
	}
	if err := s.Purge(t.Context(), hash, noon); err != nil {
		t.Fatal(err)
	}
	if left := keys(t, r); len(left) != 0 {
		t.Errorf("after the purge: %v", left)
	}
}

func TestPurgeLeavesSiblingsAlone(t *testing.T) {
	for name, addrs := range servers(t) {
		t.Run(name, func(t *testing.T) {
			s := open(t, addrs...)
			hour := store.HourOf(noon)
			sibling := field(hour, 1)
			sibling.Hash = "fedcba9876543210"
			flush(t, s, store.Batch{Writes: []store.Write{
				write(t, field(hour, 1), false, point{1, 0}), write(t, field(hour-1, 1), true, point{1, 0}),
				write(t, sibling, false, point{1, 0}),
			}})
			fold(t, s, noon)
			if err := s.Purge(t.Context(), hash, noon); err != nil {
				t.Fatal(err)
			}
			if n := count(window(t, s, noon)); n != 0 {
				t.Errorf("%d samples after the purge", n)
			}
			w, err := s.Window(t.Context(), sibling.Hash, noon, retention)
			if err != nil || count(w) != 1 {
				t.Errorf("sibling has %d samples, %v", count(w), err)
			}
		})
	}
}

// servers are a single Redis and a cluster.
func servers(t *testing.T) map[string][]string {
	t.Helper()
	return map[string][]string{
		"single":  {env.StartRedis(t, env.RedisOptions{}).Addr()},
		"cluster": env.StartRedisCluster(t, env.RedisClusterOptions{}).Addrs(),
	}
}

func TestClusterTakesOneRoundTripPerShard(t *testing.T) {
	c := env.StartRedisCluster(t, env.RedisClusterOptions{})
	s := open(t, c.Addrs()...)
	hour := store.HourOf(noon)
	var batch store.Batch
	for i := range 50 {
		f := field(hour, 1)
		f.Hash = fmt.Sprintf("%016x", i)
		batch.Writes = append(batch.Writes, write(t, f, true, point{1, 0}))
		batch.Check = append(batch.Check, f)
	}
	reply := flush(t, s, batch)
	for i, ok := range reply.Written {
		if !ok {
			t.Errorf("write %d was not acknowledged", i)
		}
	}
	for _, w := range batch.Writes {
		got, err := s.Window(t.Context(), w.Field.Hash, noon, retention)
		if err != nil || count(got) != 1 {
			t.Errorf("profile %s: %d samples, %v", w.Field.Hash, count(got), err)
		}
		if n, err := s.Fold(t.Context(), w.Field.Hash, noon, retention); err != nil || n != 1 {
			t.Errorf("profile %s: folded %d, %v", w.Field.Hash, n, err)
		}
	}
	if reply := flush(t, s, store.Batch{Check: batch.Check}); len(reply.Folded) != 50 {
		t.Errorf("%d of 50 known as folded", len(reply.Folded))
	}
}

func TestHashOutsideTheSchemaIsRefused(t *testing.T) {
	s := open(t, "127.0.0.1:1")
	bad := field(1, 1)
	bad.Hash = "x}:h:1"
	_, flushErr := s.Flush(t.Context(), store.Batch{Writes: []store.Write{{Field: bad}}})
	_, windowErr := s.Window(t.Context(), bad.Hash, noon, retention)
	_, foldErr := s.Fold(t.Context(), bad.Hash, noon, retention)
	for name, err := range map[string]error{
		"flush": flushErr, "window": windowErr, "fold": foldErr,
		"purge": s.Purge(t.Context(), bad.Hash, noon), "reset": s.Reset(context.Background(), bad.Hash, noon),
	} {
		if err == nil || !strings.Contains(err.Error(), "16 hexadecimal digits") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLive(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{})
	s := open(t, r.Addr())
	fresh := store.Live{Hash: hash, PodUID: "a", Container: "app", At: noon, Memory: 100, MemoryMax: 200, Throttled: 0.25, OOMKills: 3}
	old := store.Live{Hash: hash, PodUID: "b", Container: "app", At: noon.Add(-3 * time.Minute)}
	ahead := store.Live{Hash: hash, PodUID: "d", Container: "app", At: noon.Add(3 * time.Minute)}
	gone := store.Live{Hash: hash, PodUID: "c", Container: "app", At: noon}
	flush(t, s, store.Batch{Live: []store.Live{fresh, old, ahead, gone}})
	flush(t, s, store.Batch{Gone: []store.Gone{{Hash: hash, PodUID: "c", Container: "app"}}})
	got, err := s.Live(t.Context(), hash, noon)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 1 {
		got[0].At = got[0].At.UTC()
	}
	if diff := cmp.Diff([]store.Live{fresh}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n, _ := r.Do("HLEN", "plimsoll:1:{"+hash+"}:live"); strings.TrimSpace(n) != "1" {
		t.Errorf("%s live values are kept", n)
	}
}

func TestOOMKillsAreBoundedAndSorted(t *testing.T) {
	s := open(t, env.StartRedis(t, env.RedisOptions{}).Addr())
	var batch store.Batch
	for i := range 300 {
		batch.OOMKills = append(batch.OOMKills, store.OOMKill{
			Hash: hash, Container: "app", PodUID: "p", KernelTime: uint64(i), At: noon.Add(-time.Duration(i) * time.Second),
			Limit: 64 << 20, Usage: 64<<20 - 5, Scope: store.ScopePod,
		})
	}
	flush(t, s, batch)
	flush(t, s, batch) // a repeated write is no second kill
	w := window(t, s, noon)
	if !w.Foldable || len(w.Kills) != 256 {
		t.Fatalf("%d kills, foldable %v", len(w.Kills), w.Foldable)
	}
	last := w.Kills[255]
	last.At = last.At.UTC()
	if diff := cmp.Diff(batch.OOMKills[0], last); diff != "" {
		t.Errorf("last kill (-want +got):\n%s", diff)
	}
	fold(t, s, noon)
	if w := window(t, s, noon); w.Foldable || len(w.Kills) != 256 {
		t.Errorf("after folding: %d kills, foldable %v", len(w.Kills), w.Foldable)
	}
	if w := window(t, s, noon.Add(193*time.Hour)); len(w.Kills) != 0 {
		t.Errorf("%d kills after the window", len(w.Kills))
	}
}

// calls returns how often a command was called.
func calls(t testing.TB, r *env.Redis, command string) int {
	t.Helper()
	n, _ := commandStats(t, r, command)
	return n
}

// commandStats returns how often a command was called and the microseconds it took in all.
func commandStats(t testing.TB, r *env.Redis, command string) (calls, usec int) {
	t.Helper()
	text, err := r.Do("INFO", "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if stats, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
			if _, err := fmt.Sscanf(stats, "calls=%d,usec=%d", &calls, &usec); err != nil {
				t.Fatalf("reading %q: %v", line, err)
			}
		}
	}
	return calls, usec
}
