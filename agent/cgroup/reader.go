package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// BufferSize is enough for the longest of the files, memory.stat, which is some 2 KiB today.
const BufferSize = 16 << 10

var errTooLong = errors.New("longer than the buffer")

// Reader reads one cgroup. It keeps its files open until Close, reads each with one pread at offset 0 (the kernel
// renders such a file anew for each, as a whole), and does not allocate. It is not safe for concurrent use.
type Reader struct {
	files    []file
	pressure [2]file
	left     func(int64) int64
}

// file is one open file, or, without a descriptor, one to be opened at each reading.
type file struct {
	name, path string
	fd         int
	parse      func([]byte, *Reading) error
}

const noDescriptor = -1

// source names a file of a hierarchy, and whether a kernel or a configuration may do without it.
type source struct {
	dir, name string
	parse     func([]byte, *Reading) error
	optional  bool
}

func (f FS) sources() []source {
	var s []source
	if f.cpuV2 {
		s = append(s, source{f.cpu, "cpu.stat", parseCPUStatV2, false})
	} else {
		s = append(s, source{f.cpuacct, "cpuacct.usage", parseCPUAcctUsage, false})
		if f.cpu != "" {
			s = append(s, source{f.cpu, "cpu.stat", parseCPUStatV1, true})
		}
	}
	if f.memoryV2 {
		return append(s,
			source{f.memory, "memory.current", parseMemoryUsage, false},
			source{f.memory, "memory.stat", parseMemoryStatV2, false},
			source{f.memory, "memory.peak", parseMemoryPeak, true},
			source{f.memory, "memory.events", parseMemoryEvents, false},
			// After memory.events, whose count of limit hits it makes more precise.
			source{f.memory, "memory.events.local", parseMemoryEventsLocal, true},
		)
	}
	return append(s,
		source{f.memory, "memory.usage_in_bytes", parseMemoryUsage, false},
		source{f.memory, "memory.stat", parseMemoryStatV1, false},
		source{f.memory, "memory.max_usage_in_bytes", parseMemoryPeak, true},
		source{f.memory, "memory.oom_control", parseOOMControl, true},
		source{f.memory, "memory.failcnt", parseFailCount, true},
	)
}

// Open opens the files of the cgroup at path, relative to each hierarchy. The error is ErrGone when there is no such
// cgroup, else it names the file that cannot be opened.
func (f FS) Open(path string) (*Reader, error) {
	r := &Reader{left: f.descriptors.Add}
	for _, s := range f.sources() {
		opened, err := r.open(filepath.Join(s.dir, path, s.name))
		if errors.Is(err, unix.ENOENT) && s.optional && f.Exists(path) {
			continue
		}
		if err != nil {
			r.Close()
			return nil, gone(err, f.Exists(path))
		}
		opened.parse = s.parse
		r.files = append(r.files, opened)
	}
	for i, name := range [...]string{"cpu.pressure", "memory.pressure"} {
		r.pressure[i] = file{fd: noDescriptor}
		if f.unified == "" {
			continue
		}
		if opened, err := r.open(filepath.Join(f.unified, path, name)); err == nil {
			r.pressure[i] = opened
		}
	}
	return r, nil
}

// gone turns the absence of a file into ErrGone when its directory went too.
func gone(err error, exists bool) error {
	if errors.Is(err, unix.ENOENT) && !exists {
		return ErrGone
	}
	return err
}

func (r *Reader) open(path string) (file, error) {
	f := file{name: filepath.Base(path), path: path, fd: noDescriptor}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return f, fmt.Errorf("opening %s: %w", f.name, os.NewSyscallError("open", err))
	}
	if r.left(-1) < 0 {
		r.left(1)
		return f, unix.Close(fd)
	}
	f.fd = fd
	return f, nil
}

// Read fills out with the cgroup's present state as of now, using buf (BufferSize is enough) for the files' text. An
// error names the file; it is ErrGone once the cgroup is removed. After an error out is not to be used.
func (r *Reader) Read(now time.Time, buf []byte, out *Reading) error {
	*out = Reading{At: now}
	for i := range r.files {
		f := &r.files[i]
		n, err := f.read(buf)
		if err != nil {
			return err
		}
		if err := f.parse(buf[:n], out); err != nil {
			return fmt.Errorf("parsing %s: %w", f.name, err)
		}
	}
	return nil
}

// ReadPressure returns the stall times, zero where the kernel has none for this cgroup; ErrGone once it is removed.
func (r *Reader) ReadPressure(buf []byte) (Pressure, error) {
	var p Pressure
	for i, to := range [...][2]*time.Duration{{&p.CPUSome, &p.CPUFull}, {&p.MemorySome, &p.MemoryFull}} {
		f := &r.pressure[i]
		if f.path == "" {
			continue
		}
		n, err := f.read(buf)
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return Pressure{}, err
		}
		if *to[0], *to[1], err = parsePressure(buf[:n]); err != nil {
			return Pressure{}, fmt.Errorf("parsing %s: %w", f.name, err)
		}
	}
	return p, nil
}

func (f *file) read(buf []byte) (int, error) {
	fd := f.fd
	if fd == noDescriptor {
		var err error
		if fd, err = unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return 0, f.failed(err)
		}
		defer unix.Close(fd)
	}
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return 0, f.failed(err)
	}
	if n == len(buf) {
		return 0, f.failed(errTooLong)
	}
	return n, nil
}

func (f *file) failed(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return ErrGone
	}
	if errors.Is(err, unix.ENOENT) {
		if _, statErr := os.Stat(filepath.Dir(f.path)); errors.Is(statErr, os.ErrNotExist) {
			return ErrGone
		}
	}
	return fmt.Errorf("reading %s: %w", f.name, err)
}

// Close closes the files. The Reader is not to be used afterwards.
func (r *Reader) Close() {
	for i := range r.files {
		r.close(&r.files[i])
	}
	for i := range r.pressure {
		r.close(&r.pressure[i])
	}
	r.files = nil
}

func (r *Reader) close(f *file) {
	if f.fd == noDescriptor {
		return
	}
	_ = unix.Close(f.fd)
	f.fd = noDescriptor
	r.left(1)
}
