package store

import (
	"context"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"plimsoll.dev/pkg/sketch"
)

// Retention says how much history counts and how fast it fades.
type Retention struct {
	// Window is how far back measurements count, at most MaxWindow.
	Window time.Duration
	// HalfLife is the age at which a measurement counts half; 0 means that none fades.
	HalfLife time.Duration
}

func (r Retention) hours() int64 {
	return int64(max(time.Hour, min(r.Window, MaxWindow)) / time.Hour)
}

// weight returns what an hour's measurements count at a moment, at most 1.
func (r Retention) weight(middle float64, at time.Time) float64 {
	if r.HalfLife <= 0 {
		return 1
	}
	age := float64(at.Unix())/3600 - middle
	return math.Exp2(-max(0, age) / r.HalfLife.Hours())
}

// Window is a profile's history as of one moment. Its sketches may be shared: they are to be read only.
type Window struct {
	// Containers by name.
	Containers map[string]*Container
	// Kills are the OOM kills of the window, oldest first, also of containers without a sample.
	Kills []OOMKill
	// Reset is the last reset that is remembered, or zero.
	Reset time.Time
	// Foldable says that Fold has something to do.
	Foldable bool
	// Unreadable counts the stored values that were left out because they are damaged or of another version.
	Unreadable int
}

// Container is the history of one container name.
type Container struct {
	// Usage and Startup are weighted by time and age; nil where nothing was measured. Weights are as of at most an hour
	// ago, which concerns Weight only.
	Usage, Startup Sketches

	first    int64
	minutes  []Minutes // of hour first+i
	borrowed *Container
}

// CoveredMinutes counts the minutes of the window in which there was a sample, from whatever node.
func (c *Container) CoveredMinutes() int {
	n := 0
	for _, m := range c.minutes {
		n += m.Count()
	}
	return n
}

// CoveredHours counts the hours of the window in which there was a sample.
func (c *Container) CoveredHours() int {
	n := 0
	for _, m := range c.minutes {
		if m != 0 {
			n++
		}
	}
	return n
}

// FirstSample returns the start of the first minute with a sample; zero if there is none.
func (c *Container) FirstSample() time.Time {
	for i, m := range c.minutes {
		for minute := range 60 {
			if m&(1<<minute) != 0 {
				return hourStart(c.first + int64(i)).Add(time.Duration(minute) * time.Minute)
			}
		}
	}
	return time.Time{}
}

// LastSample returns the end of the last minute with a sample that was flushed; zero if there is none.
func (c *Container) LastSample() time.Time {
	for i := len(c.minutes) - 1; i >= 0; i-- {
		for minute := 59; minute >= 0; minute-- {
			if c.minutes[i]&(1<<minute) != 0 {
				return hourStart(c.first + int64(i)).Add(time.Duration(minute+1) * time.Minute)
			}
		}
	}
	return time.Time{}
}

// cover adds covered minutes; hours outside the window do not count.
func (c *Container) cover(hour int64, m Minutes) {
	if i := hour - c.first; i >= 0 && i < int64(len(c.minutes)) {
		c.minutes[i] |= m
	}
}

// merge adds a sketch, copying one that is borrowed first.
func (c *Container) merge(id byte, from *sketch.Sketch, factor float64) {
	in, r := &c.Usage, id%startupID
	if id >= startupID {
		in = &c.Startup
	}
	switch {
	case in[r] == nil:
		in[r] = &sketch.Sketch{}
	case c.borrowed != nil && (in[r] == c.borrowed.Usage[r] || in[r] == c.borrowed.Startup[r]):
		in[r] = in[r].Clone()
	}
	in[r].MergeScaled(from, factor)
}

// base is the part of a window that seldom changes: the blocks, and hours that take nothing any more. It is valid as long
// as the hour, the retention, the reset mark, the versions of recent blocks and the connection are those it was built with.
type base struct {
	retention   Retention
	hour        int64
	connections uint64
	reset       string
	versions    map[int64]string
	origin      time.Time // weights are as of this moment
	marks       marks     // of hours that still take blobs
	window      Window
	used        time.Time
}

// Window returns a profile's history at a moment. Closed blocks are read once and kept, so that in the steady state only
// the hours that still take blobs are read.
func (s *Store) Window(ctx context.Context, hash string, now time.Time, r Retention) (*Window, error) {
	if err := validHash(hash); err != nil {
		return nil, err
	}
	hour := HourOf(now)
	s.mu.Lock()
	b := s.cache[hash]
	s.mu.Unlock()
	if b != nil && b.hour == hour && b.retention == r {
		snap, err := s.readRecent(ctx, hash, hour)
		if err != nil {
			return nil, err
		}
		if b.connections == s.Connections() && b.reset == snap.reset && maps.Equal(b.versions, snap.versions) {
			s.mu.Lock()
			b.used = now
			s.mu.Unlock()
			return b.with(hash, snap, now)
		}
	}
	connections := s.Connections()
	snap, err := s.readAll(ctx, hash, hour, r)
	if err != nil {
		return nil, err
	}
	b = newBase(snap, now, r)
	if s.Connections() != connections {
		// The read itself may have connected; what it read is what there is now.
		connections = s.Connections()
	}
	b.connections = connections
	s.keep(hash, b, now)
	return b.with(hash, snap, now)
}

// unusedFor is how long a profile's cached blocks outlive the last question about it.
const unusedFor = 2 * time.Hour

func (s *Store) keep(hash string, b *base, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.used = now
	s.cache[hash] = b
	// Looking at a few others each time is enough for those nobody asks for to go.
	looked := 0
	for other, o := range s.cache {
		if now.Sub(o.used) > unusedFor {
			delete(s.cache, other)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

// Forget drops what is cached of a profile.
func (s *Store) Forget(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cache, hash)
}

// merger adds encoded blobs to the containers of a window.
type merger struct {
	window  *Window
	first   int64
	hours   int
	scratch sketch.Sketch
	// add is made once: it would be allocated for each blob.
	into   *Container
	factor float64
	add    func(id byte, encoded []byte) error
}

func newMerger(w *Window, first int64, hours int) *merger {
	m := &merger{window: w, first: first, hours: hours}
	m.add = func(id byte, encoded []byte) error {
		if err := m.scratch.UnmarshalBinary(encoded); err != nil {
			return err
		}
		m.into.merge(id, &m.scratch, m.factor)
		return nil
	}
	return m
}

func (m *merger) container(name string) *Container {
	c := m.window.Containers[name]
	if c == nil {
		c = &Container{first: m.first, minutes: make([]Minutes, m.hours)}
		m.window.Containers[name] = c
	}
	return c
}

// sketches adds encoded sketches to a container; damaged ones are left out and counted.
func (m *merger) sketches(c *Container, encoded []byte, factor float64) {
	m.into, m.factor = c, factor
	if err := eachSketch(encoded, m.add); err != nil {
		m.window.Unreadable++
	}
}

// newBase merges all blocks of a snapshot and the hours that take nothing any more.
func newBase(snap *snapshot, now time.Time, r Retention) *base {
	hour := HourOf(now)
	b := &base{
		retention: r, hour: hour, reset: snap.reset, origin: now,
		versions: map[int64]string{}, marks: marksOf(snap.blocks),
		window: Window{Containers: map[string]*Container{}},
	}
	first := hour - r.hours()
	m := newMerger(&b.window, first, int(r.hours())+2)
	recent := recentBlocks(hour)
	for start, fields := range snap.blocks {
		if v := fields[versionField]; v != "" && start >= recent.first && start <= recent.last {
			b.versions[start] = v
		}
		b.addBlock(m, start, fields)
	}
	for h := range snap.hours {
		if h < hour-closeAfter {
			b.addHour(m, h, snap.hours[h])
		}
	}
	for h := range b.marks.fields {
		if h < hour-closeAfter {
			b.window.Foldable = b.window.Foldable || !b.marks.isClosed(h)
			delete(b.marks.fields, h)
		}
	}
	maps.DeleteFunc(b.marks.closed, func(start, _ int64) bool { return start < recent.first })
	return b
}

// addBlock merges a block's containers at the weight of the middle of the hours folded into it.
func (b *base) addBlock(m *merger, start int64, fields map[string]string) {
	first, last := int64(math.MaxInt64), int64(-1)
	if closed, ok := b.marks.closed[start]; ok {
		first, last = start, closed
	}
	for name := range fields {
		if h, ok := parseMark(name); ok {
			first, last = min(first, h), max(last, h)
		}
	}
	if last < m.first {
		return
	}
	middle := float64(first+last+1) / 2
	factor := b.retention.weight(middle, b.origin)
	for name, value := range fields {
		if strings.HasPrefix(name, markPrefix) {
			continue
		}
		covered, sketches, err := decodeBlock([]byte(value), start)
		if err != nil {
			m.window.Unreadable++
			continue
		}
		c := m.container(name)
		for _, h := range covered {
			c.cover(h.hour, h.minutes)
		}
		m.sketches(c, sketches, factor)
	}
}

// addHour merges the fields of an hour that are neither folded nor void.
func (b *base) addHour(m *merger, hour int64, fields map[string]string) {
	folded, err := b.marks.of(hour)
	if err != nil {
		m.window.Unreadable++
		return
	}
	reset, _ := strconv.ParseInt(b.reset, 10, 64)
	factor := b.retention.weight(float64(hour)+0.5, b.origin)
	var blob Blob
	for name, value := range fields {
		f, err := parseField("", hour, name)
		if err != nil {
			m.window.Unreadable++
			continue
		}
		if folded.has(name) {
			m.window.Foldable = true // there is something to remove
			continue
		}
		body, err := blob.decodeHeader([]byte(value))
		if err != nil {
			m.window.Unreadable++
			continue
		}
		if blob.Started.UnixMilli() < reset {
			m.window.Foldable = true
			continue
		}
		if blob.Final || b.hour > hour+foldAfter {
			m.window.Foldable = true
		}
		c := m.container(f.Container)
		c.cover(hour, blob.Minutes)
		m.sketches(c, body, factor)
	}
}

// with returns the window of a base and the recent hours of a snapshot.
func (b *base) with(hash string, snap *snapshot, now time.Time) (*Window, error) {
	w := b.window
	w.Containers = make(map[string]*Container, len(b.window.Containers))
	for name, c := range b.window.Containers {
		borrowed := *c
		borrowed.borrowed = c
		borrowed.minutes = append([]Minutes(nil), c.minutes...)
		w.Containers[name] = &borrowed
	}
	m := newMerger(&w, b.hour-b.retention.hours(), int(b.retention.hours())+2)
	for h, fields := range snap.hours {
		if h >= b.hour-closeAfter {
			b.addHour(m, h, fields)
		}
	}
	if snap.reset != "" {
		w.Reset = parseReset(snap.reset)
		if w.Reset.IsZero() {
			return nil, fmt.Errorf("reading the reset mark: %.40q is not a time: delete key %s", snap.reset, resetKey(hash))
		}
	}
	var surplus []string
	w.Kills, surplus = killsOf(hash, snap.kills, now.Add(-b.retention.Window))
	w.Foldable = w.Foldable || len(surplus) > 0
	return &w, nil
}
