package collect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"plimsoll.dev/pkg/store"
)

// ErrTorn means that a checkpoint file is not as it was written: cut off, damaged, or of another version.
var ErrTorn = errors.New("checkpoint file is torn")

// A checkpoint is the magic with its version, a varint count, and for each blob: hash, container, agent, value (each with
// a varint length), hour (varint) and epoch (8 bytes); then a CRC-32C of all that.
const checkpointMagic = "plimsoll-checkpoint-1\n"

// maxCheckpoint is above what an agent writes, DefaultMaxBytes of values, their names and what is open, and fits into its memory.
const maxCheckpoint = 2 * DefaultMaxBytes

var errHuge = fmt.Errorf("it is larger than the %d MiB an agent writes at most", maxCheckpoint>>20)

// lockPoll is how often a second agent looks whether the first has gone.
const lockPoll = 200 * time.Millisecond

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checkpoint is the file that carries measurements not yet recorded over a restart of the agent. It is locked, so that
// two agents on a node, as during an update, never measure the same containers twice.
type Checkpoint struct {
	path string
	lock *os.File
}

// OpenCheckpoint locks the checkpoint file, waiting for another agent that has it until the context ends. waiting is
// called once if it has to.
func OpenCheckpoint(ctx context.Context, path string, waiting func()) (*Checkpoint, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the checkpoint's lock: %w", err)
	}
	for told := false; ; told = true {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &Checkpoint{path: path, lock: lock}, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = lock.Close()
			return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
		}
		if !told && waiting != nil {
			waiting()
		}
		select {
		case <-ctx.Done():
			_ = lock.Close()
			return nil, fmt.Errorf("waiting for the agent that holds %s: %w", lock.Name(), ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// Close releases the lock.
func (c *Checkpoint) Close() error { return c.lock.Close() }

// Load returns what the file holds, nothing if there is none. A file that is torn is set aside and named in an error
// that is ErrTorn; the agent can go on without it.
func (c *Checkpoint) Load() ([]store.Write, error) {
	b, err := readBounded(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil && !errors.Is(err, errHuge) {
		return nil, fmt.Errorf("reading the checkpoint: %w", err)
	}
	var writes []store.Write
	if err == nil {
		writes, err = decodeCheckpoint(b)
	}
	if err == nil {
		return writes, nil
	}
	aside := c.path + ".torn"
	if renameErr := os.Rename(c.path, aside); renameErr != nil {
		return nil, fmt.Errorf("%s: %w: %w; setting it aside: %w", c.path, ErrTorn, err, renameErr)
	}
	return nil, fmt.Errorf("%s, now %s: %w: %w", c.path, aside, ErrTorn, err)
}

// readBounded reads a file unless it is larger than any checkpoint: an agent that
// read it all would be killed for its memory at every start.
func readBounded(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxCheckpoint {
		return nil, errHuge
	}
	return os.ReadFile(path)
}

// Save replaces the file, so that after a crash at any moment it is the old or the new one, whole. If that fails, the old
// file goes: what it holds may be emptier than what has been written to the store since, and must not replace it.
func (c *Checkpoint) Save(writes []store.Write) error {
	if err := c.save(encodeCheckpoint(writes)); err != nil {
		removeErr := os.Remove(c.path)
		if errors.Is(removeErr, fs.ErrNotExist) {
			removeErr = nil
		}
		return fmt.Errorf("writing the checkpoint: %w", errors.Join(err, removeErr))
	}
	return nil
}

func (c *Checkpoint) save(b []byte) error {
	temporary := c.path + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temporary, c.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	dir, err := os.Open(filepath.Dir(c.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func encodeCheckpoint(writes []store.Write) []byte {
	b := []byte(checkpointMagic)
	b = binary.AppendUvarint(b, uint64(len(writes)))
	for _, w := range writes {
		for _, text := range [...]string{w.Field.Hash, w.Field.Container, w.Field.Agent, string(w.Value)} {
			b = binary.AppendUvarint(b, uint64(len(text)))
			b = append(b, text...)
		}
		b = binary.AppendVarint(b, w.Field.Hour)
		b = binary.BigEndian.AppendUint64(b, w.Field.Epoch)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errCut = errors.New("it ends in the middle")

func decodeCheckpoint(b []byte) ([]store.Write, error) {
	if !bytes.HasPrefix(b, []byte(checkpointMagic)) {
		return nil, fmt.Errorf("it does not begin with %q", checkpointMagic)
	}
	if len(b) < len(checkpointMagic)+4 {
		return nil, errCut
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errors.New("its checksum does not match")
	}
	r := cursor{b: body[len(checkpointMagic):]}
	n := r.uvarint()
	if n > uint64(len(body)) {
		return nil, errCut
	}
	writes := make([]store.Write, 0, n)
	for range n {
		var w store.Write
		w.Field.Hash, w.Field.Container, w.Field.Agent = string(r.text()), string(r.text()), string(r.text())
		w.Value = bytes.Clone(r.text())
		hour, size := binary.Varint(r.b)
		r.skip(size)
		if len(r.b) < 8 {
			r.cut = true
		}
		if r.cut {
			return nil, errCut
		}
		w.Field.Hour, w.Field.Epoch = hour, binary.BigEndian.Uint64(r.b)
		r.skip(8)
		writes = append(writes, w)
	}
	if len(r.b) > 0 {
		return nil, fmt.Errorf("%d bytes follow the end", len(r.b))
	}
	return writes, nil
}

// cursor reads on until something is missing, which it remembers.
type cursor struct {
	b   []byte
	cut bool
}

func (r *cursor) skip(n int) {
	if n <= 0 || n > len(r.b) {
		r.cut, r.b = true, nil
		return
	}
	r.b = r.b[n:]
}

func (r *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.skip(n)
	return v
}

func (r *cursor) text() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.cut, r.b = true, nil
		return nil
	}
	text := r.b[:n]
	r.b = r.b[n:]
	return text
}
