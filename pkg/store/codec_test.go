package store_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
)

func someBlob() *store.Blob {
	blob := &store.Blob{Flush: 5, Final: true, Started: time.UnixMilli(1.7e12), Minutes: 0b1011}
	wide := &sketch.Sketch{}
	for i := range 400 {
		wide.Add(float64(i*i), 1000)
	}
	blob.Usage[sample.CPU], blob.Startup[sample.EphemeralStorage] = wide, &sketch.Sketch{}
	blob.Startup[sample.EphemeralStorage].Add(7, 1000)
	return blob
}

func mustAppend(t testing.TB, blob *store.Blob) []byte {
	t.Helper()
	b, err := blob.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBlobRoundTrip(t *testing.T) {
	want := someBlob()
	b := mustAppend(t, want)
	var got store.Blob
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	if again := mustAppend(t, &got); !bytes.Equal(b, again) {
		t.Errorf("encoded again: %x, want %x", again, b)
	}
	header, err := store.ReadHeader(b)
	if err != nil || header.Flush != 5 || !header.Final || !header.Started.Equal(want.Started) || header.Minutes != want.Minutes {
		t.Errorf("header %+v, %v", header, err)
	}
	if got.Usage[sample.CPU].Count() != 400 || got.Startup[sample.EphemeralStorage].Max() != 7 || got.Usage[sample.Memory] != nil {
		t.Errorf("sketches are not those written")
	}
}

func TestSealSetsOnlyTheFinalFlag(t *testing.T) {
	blob := someBlob()
	sealed := mustAppend(t, blob)
	blob.Final = false
	open := mustAppend(t, blob)
	if err := store.Seal(open); err != nil || !bytes.Equal(open, sealed) {
		t.Errorf("sealed %x, want %x, %v", open, sealed, err)
	}
	if err := store.Seal([]byte{9, 9}); err == nil {
		t.Error("sealed what is no blob")
	}
}

func TestBlobRefuses(t *testing.T) {
	good := mustAppend(t, someBlob())
	for name, tc := range map[string]struct {
		in   []byte
		want string
	}{
		"nothing":           {nil, "ends in the middle"},
		"a later version":   {append([]byte{2}, good[1:]...), "version 2 is not known"},
		"unknown flags":     {append([]byte{1, 6}, good[2:]...), "flags 0x6 are not known"},
		"an unknown sketch": {append(bytes.Clone(good), 9, 0), "sketch 9 is not known"},
		"a sketch twice":    {append(bytes.Clone(good), 0, 2, 1, 0), "sketch 0 is there twice"},
		"a cut sketch":      {good[:len(good)-1], "ends in the middle"},
	} {
		t.Run(name, func(t *testing.T) {
			var blob store.Blob
			if err := blob.UnmarshalBinary(tc.in); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func FuzzBlob(f *testing.F) {
	f.Add(mustAppend(f, someBlob()))
	f.Add(mustAppend(f, &store.Blob{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var blob store.Blob
		if blob.UnmarshalBinary(b) != nil {
			return
		}
		var again store.Blob
		if err := again.UnmarshalBinary(mustAppend(t, &blob)); err != nil {
			t.Fatalf("what was accepted does not round-trip: %v", err)
		}
		if again.Flush != blob.Flush || again.Final != blob.Final || again.Minutes != blob.Minutes || !again.Started.Equal(blob.Started) {
			t.Fatalf("%+v became %+v", blob, again)
		}
	})
}

func FuzzBlock(f *testing.F) {
	b, err := store.EncodeBlock(100, 103, 7, someBlob().Usage[sample.CPU])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, int64(100))
	f.Fuzz(func(t *testing.T, b []byte, first int64) {
		first %= 1 << 40
		once, err := store.ReencodeBlock(b, first)
		if err != nil {
			return
		}
		if _, err := store.ReencodeBlock(once, first); err != nil {
			t.Fatalf("what was accepted does not round-trip: %v", err)
		}
	})
}

func FuzzMark(f *testing.F) {
	f.Add(store.EncodeMark(map[string]uint64{"a|b|0000000000000001": 0, "c|d|0000000000000002": 300}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = store.MarkHas(b, "a|b|0000000000000001") // must not panic
	})
}

func TestMarkRoundTrip(t *testing.T) {
	fields := map[string]uint64{"app|n|0000000000000001": 0, "app|n|0000000000000002": 7, "side|n|00000000000000ff": 1 << 40}
	b := store.EncodeMark(fields)
	for name, flush := range fields {
		if has, got, err := store.MarkHas(b, name); !has || got != flush || err != nil {
			t.Errorf("%s: %v, %d, %v", name, has, got, err)
		}
	}
	if has, _, _ := store.MarkHas(b, "app|n|0000000000000003"); has {
		t.Error("a field that was not folded is marked")
	}
	if _, _, err := store.MarkHas(b[:len(b)-3], "x"); err == nil {
		t.Error("a cut mark was accepted")
	}
}

func FuzzKill(f *testing.F) {
	field, value := store.AppendKill(store.OOMKill{Container: "app", PodUID: "u", KernelTime: 7, At: noon, Limit: 1, Usage: 2, Scope: 1})
	f.Add(field, string(value))
	f.Fuzz(func(t *testing.T, field, value string) {
		k, err := store.ParseKill(hash, field, value)
		if err != nil {
			return
		}
		f2, v2 := store.AppendKill(k)
		again, err := store.ParseKill(hash, f2, string(v2))
		if err != nil || cmp.Diff(k, again) != "" {
			t.Fatalf("%+v became %+v, %v", k, again, err)
		}
	})
}

func FuzzLive(f *testing.F) {
	f.Add(store.AppendLive(store.Live{At: noon, Memory: 5, MemoryMax: 6, Throttled: 0.5, OOMKills: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l store.Live
		if l.Unmarshal(b) != nil {
			return
		}
		if !(l.Throttled >= 0 && l.Throttled <= 1 && l.Memory >= 0) {
			t.Fatalf("accepted %+v", l)
		}
	})
}

func TestFieldNamesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := store.Field{
			Hash: hash, Hour: rapid.Int64().Draw(t, "hour"), Epoch: rapid.Uint64().Draw(t, "epoch"),
			Container: rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`).Draw(t, "container"),
			Agent:     rapid.StringMatching(`[a-z0-9]([-a-z0-9.]{0,100}[a-z0-9])?`).Draw(t, "agent"),
		}
		got, err := store.ParseField(hash, f.Hour, f.Name())
		if err != nil || got != f {
			t.Fatalf("%+v became %+v, %v", f, got, err)
		}
	})
	for _, bad := range []string{"", "a", "a|b", "a|b|1", "|b|0000000000000001", "#v|b|0000000000000001", "a|b|000000000000000g", "a|b|c|d"} {
		if _, err := store.ParseField(hash, 1, bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		halfLife time.Duration
		want     int64
	}{
		"none":      {0, 1007},
		"an hour":   {time.Hour, 1007},
		"a day":     {24 * time.Hour, 1002},
		"two days":  {48 * time.Hour, 996},
		"a month":   {720 * time.Hour, 984},
		"ten hours": {10 * time.Hour, 1006},
	} {
		if got := store.BlockOf(1007, tc.halfLife); got != tc.want {
			t.Errorf("%s: block %d, want %d", name, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		hour := rapid.Int64Range(0, 1e7).Draw(t, "hour")
		halfLife := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "halfLife"))
		if b := store.BlockOf(hour, halfLife); !slices.Contains(store.BlocksOf(hour), b) || b > hour || hour-b >= 24 {
			t.Fatalf("block %d is not among %v", b, store.BlocksOf(hour))
		}
	})
}

func TestKeysArePinned(t *testing.T) {
	for got, want := range map[string]string{
		store.HourKey(hash, 492345):  "plimsoll:1:{0123456789abcdef}:h:492345",
		store.BlockKey(hash, 492342): "plimsoll:1:{0123456789abcdef}:b:492342",
		field(1, 255).Name():         "app|node-1|00000000000000ff",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
