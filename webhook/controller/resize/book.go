package resize

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	plan "plimsoll.dev/pkg/resize"
)

// book is what this process remembers of pods beside what stands on them:
// which it is working on, what it has sent and not recorded, what was refused.
type book struct {
	mu       sync.Mutex
	reserved map[types.UID]struct{}
	pods     map[types.UID]sent
	refused  map[types.UID]refusal
	waiting  map[types.UID]time.Time
	static   map[string]struct{} // nodes whose kubelet said it pins cores
	parsed   map[types.UID]parsed
	last     time.Time       // when this process last sent a resize
	queued   map[string]bool // profiles with candidates beyond their budget
}

// parsed is an annotation as it was last read: most stay the same for long.
type parsed struct {
	text   string
	record plan.Record
}

// sent is a resize that this process sent.
type sent struct {
	record     plan.Record
	generation int64 // of the pod once the change was in it
	pod        types.NamespacedName
	profile    string
	written    bool // the record stands on the pod
}

// refusal is a change the API server would not take.
type refusal struct {
	generation int64
	until      time.Time
}

func newBook() *book {
	return &book{
		reserved: map[types.UID]struct{}{}, pods: map[types.UID]sent{}, refused: map[types.UID]refusal{},
		waiting: map[types.UID]time.Time{}, static: map[string]struct{}{},
		parsed: map[types.UID]parsed{}, queued: map[string]bool{},
	}
}

// reserve takes a pod for one goroutine; the caller releases it after its API
// call has finished. It fails when another goroutine has the pod.
func (b *book) reserve(uid types.UID) (release func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.reserved[uid]; taken {
		return nil, false
	}
	b.reserved[uid] = struct{}{}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.reserved, uid)
	}, true
}

func (b *book) sent(uid types.UID) (sent, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.pods[uid]
	return s, ok
}

func (b *book) put(uid types.UID, s sent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[uid] = s
}

func (b *book) sentAt(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = now
}

func (b *book) lastSent() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// queue notes whether a profile has more candidates than it may start now: the
// next one has to start when one of them is done.
func (b *book) queue(profile string, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if more {
		b.queued[profile] = true
	} else {
		delete(b.queued, profile)
	}
}

func (b *book) hasQueue(profile string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.queued[profile]
}

// untold returns what was sent and does not stand on the pods yet.
func (b *book) untold() map[types.UID]sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[types.UID]sent{}
	for uid, s := range b.pods {
		if !s.written {
			out[uid] = s
		}
	}
	return out
}

// settle forgets what was sent once the record stands on the pod.
func (b *book) settle(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
}

// forget drops everything about a pod that is gone.
func (b *book) forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
	delete(b.refused, uid)
	delete(b.waiting, uid)
	delete(b.parsed, uid)
}

// newest returns the newest word on a pod's last resize: what this process
// sent, or what the annotation says.
func (b *book) newest(uid types.UID, text string) plan.Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parsed[uid]
	if text != p.text {
		r, err := plan.ParseRecord(text)
		if err != nil {
			r = plan.Record{} // somebody wrote there; the next outcome replaces it
		}
		p = parsed{text: text, record: r}
		b.parsed[uid] = p
	}
	s, ok := b.pods[uid]
	if ok && (s.record.At.After(p.record.At) || s.record.At.Equal(p.record.At) && !s.record.Since.Before(p.record.Since)) {
		return s.record
	}
	return p.record
}

// refusedUntil returns until when a pod of this generation is left alone.
func (b *book) refusedUntil(uid types.UID, generation int64) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := b.refused[uid]; ok && r.generation == generation {
		return r.until
	}
	return time.Time{}
}

func (b *book) refuse(uid types.UID, generation int64, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[uid] = refusal{generation, until}
}

// waits returns since when a pod that another replica should resize is seen
// waiting for it.
func (b *book) waits(uid types.UID, now time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	since, ok := b.waiting[uid]
	if !ok {
		since, b.waiting[uid] = now, now
	}
	return since
}

func (b *book) served(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, uid)
}

func (b *book) pinsCores(node string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.static[node]
	return ok
}

func (b *book) learnPinning(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.static[node] = struct{}{}
}

// flying counts a profile's resizes that this process sent and the kubelet has
// not finished.
func (b *book) flying(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.pods[uid]
	return ok && s.record.State == plan.StateRequested
}
