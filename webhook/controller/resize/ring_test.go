package resize_test

import (
	"sync"

	"plimsoll.dev/pkg/hashring"
)

// members is what all replicas of a test agree on.
type members struct {
	mu   sync.Mutex
	ring hashring.Ring
	subs []chan struct{}
}

func newMembers(names ...string) *members { return &members{ring: hashring.New(names...)} }

func (m *members) set(names ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ring = hashring.New(names...)
	for _, s := range m.subs {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}

// fakeRing is one replica's view of them.
type fakeRing struct {
	self string
	*members
}

func (r *fakeRing) Self() string { return r.self }

func (r *fakeRing) Active() bool { return true }

func (r *fakeRing) Owner(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.Owner(key)
}

func (r *fakeRing) Live(replica string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ring.Has(replica)
}

func (r *fakeRing) subscribe() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan struct{}, 1)
	r.subs = append(r.subs, c)
	return c
}
