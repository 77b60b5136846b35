package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

// A damaged value of one profile neither stops the writes of another nor fails a flush for ever; whoever reads the
// profile says which key it is.
func TestDamageConcernsItsProfileOnly(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{})
	s := open(t, r.Addr())
	last := store.HourOf(noon) - 1
	damaged, sound := write(t, field(last, 1), true, point{1, 10}), write(t, field(last, 2), true, point{1, 10})
	sound.Field.Hash = "fedcba9876543210"
	prefix := "plimsoll:1:{" + hash + "}:"
	do := func(args ...string) {
		t.Helper()
		if _, err := r.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		damage []string
		want   string // in the error of a read; empty for none
	}{
		"reset mark": {[]string{"SET", prefix + "reset", "yesterday"}, "delete key " + prefix + "reset"},
		"fold mark":  {[]string{"HSET", prefix + "b:" + strconv.FormatInt(last, 10), "#" + strconv.FormatInt(last, 10), "zz", "#v", "1"}, ""},
		"wrong type": {[]string{"SET", prefix + "b:" + strconv.FormatInt(last, 10), "x"}, prefix + "b:" + strconv.FormatInt(last, 10) + ": delete it"},
	} {
		t.Run(name, func(t *testing.T) {
			do("FLUSHALL")
			do(tc.damage...)
			writes := []store.Write{damaged, sound}
			reply, err := s.Flush(t.Context(), store.Batch{Writes: writes})
			if err != nil || !reply.Written[0] || !reply.Written[1] {
				t.Errorf("written %v, error %v", reply.Written, err)
			}
			if _, err := s.Flush(t.Context(), store.Batch{Check: []store.Field{damaged.Field}}); name != "wrong type" && err != nil {
				t.Errorf("asking what was folded: %v", err)
			}
			_, err = s.Window(t.Context(), hash, noon, retention)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("reading says %v, want %q", err, tc.want)
			}
			if n := count(windowOf(t, s, sound.Field.Hash, noon)); n == 0 {
				t.Error("the other profile's sample is not there")
			}
		})
	}
}

func TestFullRedisSaysWhatToDo(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{MaxMemory: "1"})
	s := open(t, r.Addr())
	_, err := s.Flush(t.Context(), store.Batch{Writes: []store.Write{write(t, field(store.HourOf(noon), 1), false, point{1, 10})}})
	if err == nil || !strings.Contains(err.Error(), "raise its maxmemory") {
		t.Errorf("error %v", err)
	}
}

func windowOf(t *testing.T, s *store.Store, hash string, now time.Time) *store.Window {
	t.Helper()
	w, err := s.Window(t.Context(), hash, now, retention)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
