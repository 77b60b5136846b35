package collect_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"plimsoll.dev/agent/collect"
	"plimsoll.dev/pkg/store"
)

func openCheckpoint(t testing.TB, path string) *collect.Checkpoint {
	t.Helper()
	c, err := collect.OpenCheckpoint(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

var checkpointed = []store.Write{
	{Field: store.Field{Hash: hash, Hour: 492000, Container: "app", Agent: "node-1", Epoch: 7}, Value: []byte("one")},
	{Field: store.Field{Hash: hash, Hour: -3, Container: "side", Agent: "node-1", Epoch: 1 << 63}, Value: bytes.Repeat([]byte{0xff}, 300)},
}

func TestCheckpointRoundTrip(t *testing.T) {
	c := openCheckpoint(t, filepath.Join(t.TempDir(), "c"))
	if w, err := c.Load(); err != nil || len(w) != 0 {
		t.Fatalf("without a file: %v, %v", w, err)
	}
	for range 2 {
		if err := c.Save(checkpointed); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(checkpointed, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTornCheckpointIsDetectedAndNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	c := openCheckpoint(t, path)
	if err := c.Save(checkpointed); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	torn := map[string][]byte{
		"cut in half":    whole[:len(whole)/2],
		"empty":          {},
		"a flipped bit":  append(append(bytes.Clone(whole[:40]), whole[40]^4), whole[41:]...),
		"zeros at end":   append(bytes.Clone(whole), make([]byte, 512)...),
		"a later format": bytes.Replace(whole, []byte("checkpoint-1"), []byte("checkpoint-2"), 1),
	}
	for name, b := range torn {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			w, err := c.Load()
			if !errors.Is(err, collect.ErrTorn) || !strings.Contains(err.Error(), path) || len(w) != 0 {
				t.Fatalf("%d writes, error %v", len(w), err)
			}
			if again, err := c.Load(); err != nil || len(again) != 0 {
				t.Errorf("the torn file is still there: %v", err)
			}
			if kept, err := os.ReadFile(path + ".torn"); err != nil || !bytes.Equal(kept, b) {
				t.Errorf("the torn file was not kept aside: %v", err)
			}
		})
	}
}

// A file of a damaged disk can be of any size; it is not read into memory.
func TestHugeCheckpointIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	c := openCheckpoint(t, path)
	if err := c.Save(checkpointed); err != nil {
		t.Fatal(err)
	}
	const size = 512 << 20 // sparse
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w, err := c.Load()
	runtime.ReadMemStats(&after)
	if !errors.Is(err, collect.ErrTorn) || !strings.Contains(err.Error(), path) || len(w) != 0 {
		t.Fatalf("%d writes, error %v", len(w), err)
	}
	if read := after.TotalAlloc - before.TotalAlloc; read > size/4 {
		t.Errorf("%d MiB were allocated", read>>20)
	}
	if st, err := os.Stat(path + ".torn"); err != nil || st.Size() != size {
		t.Errorf("it was not set aside: %v", err)
	}
}

func TestAgentStartsWithATornCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	if err := os.WriteFile(path, []byte("plimsoll"), 0o600); err != nil {
		t.Fatal(err)
	}
	acc, err := collect.NewAccumulator(collect.AccumulatorOptions{Agent: "n", Store: &awayStore{}, Checkpoint: openCheckpoint(t, path)})
	if !errors.Is(err, collect.ErrTorn) || acc == nil {
		t.Errorf("accumulator %v, error %v", acc, err)
	}
}

func TestCheckpointThatCannotBeWrittenLeavesNoOldOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c")
	c := openCheckpoint(t, path)
	if err := c.Save(checkpointed); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".new", 0o700); err != nil { // in the way of the temporary file
		t.Fatal(err)
	}
	if err := c.Save(checkpointed); err == nil || !strings.Contains(err.Error(), "writing the checkpoint") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old file is still there: %v", err)
	}
}

func TestSecondAgentWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	first := openCheckpoint(t, path)

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := collect.OpenCheckpoint(short, path, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}

	waiting, got := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := collect.OpenCheckpoint(context.Background(), path, func() { close(waiting) })
		if err == nil {
			err = c.Close()
		}
		got <- err
	}()
	<-waiting
	select {
	case err := <-got:
		t.Fatalf("the second agent did not wait: %v", err)
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func FuzzCheckpoint(f *testing.F) {
	dir := f.TempDir()
	c := openCheckpoint(f, filepath.Join(dir, "seed"))
	if err := c.Save(checkpointed); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "seed"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:len(whole)-4])
	f.Add([]byte("plimsoll-checkpoint-1\n\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		// With a right checksum, so that what is behind it is reached.
		writes, err := collect.DecodeCheckpoint(collect.Checksummed(body))
		if err != nil {
			return
		}
		again, err := collect.DecodeCheckpoint(collect.EncodeCheckpoint(writes))
		if err != nil {
			t.Fatalf("what was accepted does not round-trip: %v", err)
		}
		if diff := cmp.Diff(writes, again); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}

func TestAnyDamageToACheckpointIsDetected(t *testing.T) {
	whole := collect.EncodeCheckpoint(checkpointed)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(whole)
		if rapid.Bool().Draw(t, "cut") {
			b = b[:rapid.IntRange(0, len(b)-1).Draw(t, "length")]
		} else {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] ^= rapid.ByteRange(1, 255).Draw(t, "with")
		}
		if _, err := collect.DecodeCheckpoint(b); err == nil {
			t.Fatal("damage was not detected")
		}
	})
}
