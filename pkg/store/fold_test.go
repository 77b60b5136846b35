package store_test

import (
	"strings"
	"testing"
	"time"

	"plimsoll.dev/pkg/store"
	"plimsoll.dev/pkg/store/storetest"
	"plimsoll.dev/test/env"
)

// between runs an action between what an owner reads and what it writes, and returns how many fields it folded.
func between(t *testing.T, r *env.Redis, action func()) int {
	t.Helper()
	p := storetest.NewProxy(t, r.Addr())
	owner := open(t, p.Addr())
	ran := false
	p.Before("evalsha", func() {
		ran = true
		action()
	})
	n := fold(t, owner, noon)
	if !ran {
		t.Fatal("the owner wrote nothing")
	}
	return n
}

func TestFoldNoticesWhatHappenedMeanwhile(t *testing.T) {
	hour := store.HourOf(noon) - 1
	first, second := field(hour, 1), field(hour, 2)
	longer := store.Retention{Window: 192 * time.Hour, HalfLife: 96 * time.Hour}
	tests := map[string]struct {
		action func(t *testing.T, s *store.Store)
		want   uint64
	}{
		"another owner folds another field into the same block": {
			func(t *testing.T, s *store.Store) {
				flush(t, s, store.Batch{Writes: []store.Write{write(t, second, true, point{2, 0})}})
				fold(t, s, noon)
			}, 3,
		},
		"another owner folds the same field": {func(t *testing.T, s *store.Store) { fold(t, s, noon) }, 2},
		"another owner folds the same field into a longer block, and the agent writes it again": {
			func(t *testing.T, s *store.Store) {
				if _, err := s.Fold(t.Context(), hash, noon, longer); err != nil {
					t.Fatal(err)
				}
				flush(t, s, store.Batch{Writes: []store.Write{write(t, first, true, point{1, 0}, point{1, 1})}})
			}, 2,
		},
		"a fuller write of the field arrives": {
			func(t *testing.T, s *store.Store) {
				flush(t, s, store.Batch{Writes: []store.Write{write(t, first, true, point{1, 0}, point{1, 1}, point{1, 2})}})
			}, 3,
		},
		"the history is reset": {
			func(t *testing.T, s *store.Store) {
				if err := s.Reset(t.Context(), hash, noon); err != nil {
					t.Fatal(err)
				}
			}, 0,
		},
		"the keys are purged": {
			func(t *testing.T, s *store.Store) {
				if err := s.Purge(t.Context(), hash, noon); err != nil {
					t.Fatal(err)
				}
			}, 0,
		},
		"the server forgets its scripts": {func(*testing.T, *store.Store) {}, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := env.StartRedis(t, env.RedisOptions{})
			s := open(t, r.Addr())
			flush(t, s, store.Batch{Writes: []store.Write{write(t, first, true, point{1, 0}, point{1, 1})}})
			between(t, r, func() { tc.action(t, s) })
			if n := count(window(t, s, noon)); n != tc.want {
				t.Errorf("%d samples, want %d", n, tc.want)
			}
			fold(t, s, noon)
			if n := count(window(t, s, noon)); n != tc.want {
				t.Errorf("%d samples after folding again, want %d", n, tc.want)
			}
		})
	}
}

func TestFoldWhoseAnswerIsLostCountsOnce(t *testing.T) {
	for _, keep := range []int{0, 2} {
		r := env.StartRedis(t, env.RedisOptions{})
		p := storetest.NewProxy(t, r.Addr())
		owner, s := open(t, p.Addr()), open(t, r.Addr())
		hour := store.HourOf(noon) - 1
		flush(t, s, store.Batch{Writes: []store.Write{write(t, field(hour, 1), true, point{1, 0}, point{1, 1})}})
		p.Before("evalsha", func() { p.CutReplies(3, keep) })
		_, _ = owner.Fold(t.Context(), hash, noon, retention)
		p.Up()
		fold(t, owner, noon)
		if n := count(window(t, owner, noon)); n != 2 {
			t.Errorf("%d samples, want 2", n)
		}
	}
}

func TestNonFinalFieldsAreFoldedSixHoursAfterTheirHour(t *testing.T) {
	s := open(t, env.StartRedis(t, env.RedisOptions{}).Addr())
	hour := store.HourOf(noon)
	f := field(hour, 1)
	flush(t, s, store.Batch{Writes: []store.Write{write(t, f, false, point{1, 0}, point{1, 1})}})
	end := time.Unix((hour+1)*3600, 0)
	if n := fold(t, s, end.Add(6*time.Hour-time.Second)); n != 0 {
		t.Errorf("folded %d fields too early", n)
	}
	if n := fold(t, s, end.Add(6*time.Hour)); n != 1 {
		t.Errorf("folded %d fields, want 1", n)
	}
	reply := flush(t, s, store.Batch{
		Writes: []store.Write{write(t, f, true, point{1, 0}, point{1, 1}, point{1, 2})}, Check: []store.Field{f},
	})
	if got := reply.Folded[f]; got != (store.Folded{Flush: 2}) {
		t.Errorf("folded %+v, want flush 2", got)
	}
	// A day after its end the hour is closed, whatever arrives.
	fold(t, s, end.Add(24*time.Hour))
	late := field(hour, 9)
	flush(t, s, store.Batch{Writes: []store.Write{write(t, late, true, point{1, 0})}})
	reply = flush(t, s, store.Batch{Check: []store.Field{f, late}})
	if reply.Folded[f] != (store.Folded{Closed: true}) || reply.Folded[late] != (store.Folded{Closed: true}) {
		t.Errorf("folded %+v", reply.Folded)
	}
	for _, at := range []time.Time{end.Add(24 * time.Hour), end.Add(100 * time.Hour)} {
		if n := count(window(t, s, at)); n != 2 {
			t.Errorf("%d samples, want 2", n)
		}
		fold(t, s, at)
	}
}

func TestHoursNobodyFoldedForDaysStillCount(t *testing.T) {
	s := open(t, env.StartRedis(t, env.RedisOptions{}).Addr())
	hour := store.HourOf(noon)
	flush(t, s, store.Batch{Writes: []store.Write{write(t, field(hour, 1), true, point{1, 0})}})
	later := noon.Add(60 * time.Hour)
	if w := window(t, s, later); count(w) != 1 || !w.Foldable {
		t.Errorf("%d samples, foldable %v", count(w), w.Foldable)
	}
	fold(t, s, later)
	if w := window(t, s, later); count(w) != 1 || w.Foldable {
		t.Errorf("after folding: %d samples, foldable %v", count(w), w.Foldable)
	}
}

func TestFullRedis(t *testing.T) {
	single := env.StartRedis(t, env.RedisOptions{})
	cluster := env.StartRedisCluster(t, env.RedisClusterOptions{})
	for name, tc := range map[string]struct {
		server *env.Redis
		addrs  []string
	}{
		"single":  {single, []string{single.Addr()}},
		"cluster": {cluster.PrimaryOf("{" + hash + "}"), cluster.Addrs()},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, tc.addrs...)
			hour := store.HourOf(noon) - 1
			first := write(t, field(hour, 1), true, point{1, 0})
			second := write(t, field(hour, 2), true, point{2, 0})
			flush(t, s, store.Batch{Writes: []store.Write{first, second}})
			fillUp(t, tc.server)
			more := store.Batch{Writes: []store.Write{write(t, field(hour+1, 3), false, point{3, 0})}, Check: []store.Field{first.Field}}
			reply, err := s.Flush(t.Context(), more)
			if err == nil || !strings.Contains(err.Error(), "OOM") || reply.Written[0] {
				t.Fatalf("a full server accepted the flush: %v", err)
			}
			// Folding begins by freeing memory, so it goes through; and agents learn of it though their writes do not.
			if n := fold(t, s, noon); n != 2 {
				t.Errorf("folded %d fields", n)
			}
			if n := count(window(t, s, noon)); n != 2 {
				t.Errorf("%d samples", n)
			}
			if reply, _ = s.Flush(t.Context(), more); !reply.Folded[first.Field].Whole {
				t.Errorf("the agent is not told of the fold: %+v", reply)
			}
			if err := s.Purge(t.Context(), hash, noon); err != nil {
				t.Error(err)
			}
			if w, err := s.Window(t.Context(), hash, noon, retention); err != nil || count(w) != 0 {
				t.Errorf("%d samples after the purge, %v", count(w), err)
			}
		})
	}
}

// fillUp puts a server far over its limit, so that it refuses every write that could need memory.
func fillUp(t *testing.T, r *env.Redis) {
	t.Helper()
	for _, args := range [][]string{
		// The key shares the profile's slot, for the cluster.
		{"SET", "{" + hash + "}", strings.Repeat("x", 2<<20)}, {"CONFIG", "SET", "maxmemory", "1mb"},
	} {
		if _, err := r.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWindowReadsClosedBlocksOnce(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{})
	s := open(t, r.Addr())
	hour := store.HourOf(noon)
	for h := hour - 60; h < hour; h++ {
		flush(t, s, store.Batch{Writes: []store.Write{write(t, field(h, uint64(h)), true, point{1, 0})}})
	}
	fold(t, s, noon)
	if n := count(window(t, s, noon)); n != 60 {
		t.Fatalf("%d samples", n)
	}
	before := calls(t, r, "hgetall")
	if n := count(window(t, s, noon)); n != 60 {
		t.Fatalf("%d samples the second time", n)
	}
	if n := calls(t, r, "hgetall") - before; n > 30 {
		t.Errorf("the second time read %d hashes", n)
	}
	// What another owner folds is noticed.
	other := open(t, r.Addr())
	flush(t, other, store.Batch{Writes: []store.Write{write(t, field(hour, 1), true, point{1, 0})}})
	fold(t, other, noon)
	if n := count(window(t, s, noon)); n != 61 {
		t.Errorf("%d samples after another owner folded", n)
	}
	r.RestartEmpty()
	deadline := time.Now().Add(5 * time.Second)
	for {
		w, err := s.Window(t.Context(), hash, noon, retention)
		if err == nil {
			if count(w) != 0 {
				t.Errorf("%d samples from a Redis that is empty", count(w))
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestDecay(t *testing.T) {
	s := open(t, env.StartRedis(t, env.RedisOptions{}).Addr())
	hour := store.HourOf(noon)
	flush(t, s, store.Batch{Writes: []store.Write{
		write(t, field(hour, 1), true, point{1, 0}), write(t, field(hour-24, 2), true, point{2, 0}),
		write(t, field(hour-48, 3), true, point{4, 0}),
	}})
	for _, state := range []string{"unfolded", "folded"} {
		w := window(t, s, noon)
		got := w.Containers["app"].Usage[0].Above(3)
		if want := 0.25 / 1.75; got < want*0.93 || got > want*1.07 {
			t.Errorf("%s: share of the oldest is %v, want about %v", state, got, want)
		}
		fold(t, s, noon)
	}
	if n := count(window(t, s, noon.Add(180*time.Hour))); n != 1 {
		t.Errorf("%d samples, want the one still in the window", n)
	}
}
