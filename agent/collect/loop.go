// Package collect is the agent's loop: it samples the node's containers and hands what they used to an accumulator, from
// which it reaches the store.
package collect

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

// Sink takes measurements: a value of a resource of a container name of a profile, and the time it stands for. startup
// marks what a container did just after its start.
type Sink interface {
	Add(hash, container string, r sample.Resource, value float64, weight time.Duration, startup bool)
}

// Containers says which containers there are; agent/discovery does.
type Containers interface {
	Scan(now time.Time) ([]discovery.Container, bool)
	Lookup(pod types.UID, id string) (discovery.Container, bool)
	Gone(pod types.UID, id string)
	OOMKilled() []discovery.Termination
}

// Policies loads what is recorded about a pod's policy. It never resolves which policy that is.
type Policies interface {
	// Sampling returns how the containers under the policy of a policy-ref are sampled.
	Sampling(policyRef string) policy.Sampling
	// Hash returns the measurement hash of a pod's labels under its policy-ref; empty while it cannot be known.
	Hash(labels map[string]string, policyRef string) string
	// Version changes when an answer to the others may have.
	Version() uint64
}

// Options are the loop's settings.
type Options struct {
	// Interval is the longest time between two looks for new containers, and that between two samples of a container
	// where its policy does not say.
	Interval time.Duration
	// CPUBudget is the share of one core the process may use before it samples less often.
	CPUBudget float64
	// Clock and CPUTime are replaced in tests.
	Clock   func() time.Time
	CPUTime func() time.Duration
}

// Loop samples containers. Its methods are safe for concurrent use.
type Loop struct {
	files      cgroup.FS
	containers Containers
	policies   Policies
	sink       Sink
	options    Options
	log        *slog.Logger
	metrics    *metrics

	mu      sync.Mutex
	buf     []byte
	budget  budget
	targets map[string]*target // by container id
	order   []*target          // targets by cgroup path
	ghosts  []*target          // gone before anybody named them
	kills   killLog
	gone    []store.Gone
	version uint64 // of the policies the targets were described with

	lastTick atomic.Int64                             // Unix ns
	flushes  atomic.Pointer[map[string]time.Duration] // by measurement hash
}

// NewLoop returns a loop that is not running.
func NewLoop(files cgroup.FS, containers Containers, policies Policies, sink Sink, options Options, log *slog.Logger) *Loop {
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.CPUTime == nil {
		options.CPUTime = processCPUTime
	}
	return &Loop{
		files: files, containers: containers, policies: policies, sink: sink, options: options, log: log,
		metrics: newMetrics(),
		buf:     make([]byte, cgroup.BufferSize),
		budget:  budget{share: options.CPUBudget, stretch: 1},
		targets: map[string]*target{},
		kills:   newKillLog(),
	}
}

// Run samples until the context ends.
func (l *Loop) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(l.Tick())
		}
	}
}

// Tick samples what is due and returns how long to wait for the next.
func (l *Loop) Tick() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := l.options.Clock()
	found, changed := l.containers.Scan(began)
	if version := l.policies.Version(); changed || version != l.version {
		l.version = version
		l.sync(found, began)
		l.killsByStatus(began)
	}
	next := began.Add(l.interval(l.options.Interval))
	for _, t := range l.order {
		now := l.options.Clock()
		if t.due.After(now.Add(slack)) {
			next = earlier(next, t.due)
			continue
		}
		l.sample(t, now)
		// Due times keep their rhythm, but one that fell far behind starts anew.
		step := l.interval(t.sampling.Interval)
		if t.due = t.due.Add(step); t.due.Before(now) {
			t.due = now.Add(step)
		}
		next = earlier(next, t.due)
	}
	l.settleGhosts(began)

	ended := l.options.Clock()
	if l.budget.note(ended, l.options.CPUTime()) {
		l.log.Info("sampling intervals changed to keep the CPU budget", "stretch", l.budget.stretch, "cores", l.budget.used)
	}
	l.metrics.tick(ended.Sub(began), l.budget)
	l.lastTick.Store(ended.UnixNano())
	return max(next.Sub(ended), slack)
}

// slack is how much early a sample may be taken, so that those of one rhythm are taken in one go.
const slack = 5 * time.Millisecond

func (l *Loop) interval(d time.Duration) time.Duration {
	return time.Duration(float64(d) * l.budget.stretch)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sync makes the targets those containers.
func (l *Loop) sync(found []discovery.Container, now time.Time) {
	present := make(map[string]bool, len(found))
	order := make([]*target, 0, len(found))
	for _, c := range found {
		present[c.ID] = true
		t := l.targets[c.ID]
		if t == nil {
			t = &target{due: now, startedAt: c.StartedAt}
			l.targets[c.ID] = t
		}
		l.describe(t, c)
		order = append(order, t)
	}
	for id, t := range l.targets {
		if !present[id] {
			l.end(t, now)
		}
	}
	l.order = order
	flushes := make(map[string]time.Duration, len(order))
	for _, t := range order {
		if every, ok := flushes[t.hash]; !ok || t.sampling.Flush < every {
			flushes[t.hash] = t.sampling.Flush
		}
	}
	l.flushes.Store(&flushes)
}

// FlushEvery returns how often the measurements of a profile are to be written; 0 when nothing of it is sampled. It takes
// no lock, so that an accumulator may ask while it holds its own.
func (l *Loop) FlushEvery(hash string) time.Duration {
	if flushes := l.flushes.Load(); flushes != nil {
		return (*flushes)[hash]
	}
	return 0
}

// LastTick returns when containers were last looked at; the zero time before the first.
func (l *Loop) LastTick() time.Time {
	if ns := l.lastTick.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// describe takes over what discovery knows, and sends what was held once it is known where to.
func (l *Loop) describe(t *target, c discovery.Container) {
	t.Container = c
	if c.Name != "" {
		t.startedAt = c.StartedAt
	}
	t.sampling = l.policies.Sampling(c.Pod.PolicyRef)
	if t.sampling.Interval <= 0 {
		t.sampling.Interval = l.options.Interval
	}
	t.hash = ""
	if c.Name != "" && c.Pod.PolicyRef != "" {
		t.hash = l.policies.Hash(c.Pod.Labels, c.Pod.PolicyRef)
	}
	if t.hash != "" {
		t.release(l.sink)
	}
}

// sample reads one container and passes on what it did since its last reading.
func (l *Loop) sample(t *target, now time.Time) {
	if t.reader == nil && !l.open(t, now) {
		return
	}
	err := t.reader.Read(now, l.buf, &t.reading[1-t.current])
	switch {
	case errors.Is(err, cgroup.ErrGone):
		l.vanish(t)
		return
	case err != nil:
		l.unreadable(t, err, now)
		return
	}
	t.problem = ""
	prev, cur := &t.reading[t.current], &t.reading[1-t.current]
	t.current = 1 - t.current
	if prev.At.IsZero() {
		return
	}
	s, err := cgroup.Between(prev, cur)
	if err != nil {
		l.metrics.drop(reasonOf(err), 1)
		return
	}
	l.metrics.samples.Inc()
	if s.OOMKills > 0 {
		l.kills.add(l.killOf(t, prev, cur, s))
	}
	m := measure(t.sampling.Memory, prev, s)
	t.note(cur, s, m)
	l.metrics.drop(t.waitsFor(), t.add(l.sink, m))
	if now.Sub(t.pressureAt) >= pressureEvery {
		t.pressureAt = now
		// A container that goes meanwhile keeps the last.
		if p, err := t.reader.ReadPressure(l.buf); err == nil {
			t.pressure = p
		}
	}
}

// open opens the container's files. A container whose beginning was seen starts from zero, so that what it did before
// the first reading counts.
func (l *Loop) open(t *target, now time.Time) bool {
	if now.Before(t.retry) {
		return false
	}
	reader, err := l.files.Open(t.Path)
	switch {
	case errors.Is(err, cgroup.ErrGone):
		l.vanish(t)
		return false
	case err != nil:
		l.unreadable(t, err, now)
		return false
	}
	t.reader = reader
	if !t.AbsentAt.IsZero() && now.Sub(t.AbsentAt) < fresh && !t.opened {
		t.reading[t.current] = cgroup.Reading{At: t.AbsentAt}
	}
	t.opened = true
	return true
}

const (
	// fresh is how old a cgroup may be for its counters to be taken as beginning at zero when it was last absent.
	fresh = 15 * time.Second
	// pressureEvery is how often stall times are read: they are counters which only the node's own endpoint shows.
	pressureEvery = 10 * time.Second
	// retryAfter is when unreadable files are tried again.
	retryAfter = 10 * time.Second
)

// unreadable sets a container aside for a while. It is told once per reason; the node's other containers go on.
func (l *Loop) unreadable(t *target, err error, now time.Time) {
	if t.problem != err.Error() {
		t.problem = err.Error()
		l.log.Info("container skipped", "namespace", t.Pod.Namespace, "pod", t.Pod.Name, "container", t.Name, "reason", t.problem)
	}
	l.metrics.drop(reasonUnreadable, 1)
	t.close()
	t.retry = now.Add(retryAfter)
}

// vanish is for a cgroup which is gone before discovery knows.
func (l *Loop) vanish(t *target) {
	t.close()
	t.retry = l.options.Clock().Add(time.Hour)
	l.containers.Gone(t.Pod.UID, t.ID)
}

// end takes the last reading of a container that is over, if its cgroup is still there, and settles what it did.
func (l *Loop) end(t *target, now time.Time) {
	if t.reader != nil {
		l.sample(t, now)
	}
	t.close()
	delete(l.targets, t.ID)
	t.endedAt = now
	if t.hash == "" {
		if len(t.held) > 0 {
			l.ghosts = append(l.ghosts, t)
		}
		return
	}
	t.settle(l.sink)
	l.gone = append(l.gone, store.Gone{Hash: t.hash, PodUID: string(t.Pod.UID), Container: t.Name})
}

// settleGhosts asks who the containers were which vanished before their pod's status named them.
func (l *Loop) settleGhosts(now time.Time) {
	kept := l.ghosts[:0]
	for _, t := range l.ghosts {
		if c, ok := l.containers.Lookup(t.Pod.UID, t.ID); ok {
			l.describe(t, c)
		}
		switch {
		case t.hash != "":
			t.settle(l.sink)
		case now.Sub(t.endedAt) > holdFor:
			l.metrics.drop(t.waitsFor(), len(t.held))
		default:
			kept = append(kept, t)
		}
	}
	clear(l.ghosts[len(kept):])
	l.ghosts = kept
}
