package policy

import (
	"math/bits"
	"strings"
	"sync"
)

// bitset is a set of policies by their rank in a scope.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i int) { b[i/64] |= 1 << (i % 64) }

func (b bitset) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// attribute is one thing selectors ask about, such as the annotation acme.org/unit.
type attribute struct {
	asks   bitset // policies that ask about it
	needed bitset // policies filed under it: without it they cannot match
	test   func(policy int, value string) bool

	mu    sync.RWMutex
	known map[string]bitset
}

// Bounds on what is remembered of an attribute, since pods choose its values.
const (
	mostKnownValues = 1024
	longestKnown    = 256
)

func newAttribute(policies int, test func(int, string) bool) *attribute {
	return &attribute{
		asks: newBitset(policies), needed: newBitset(policies),
		test: test, known: map[string]bitset{},
	}
}

// content returns the policies whose question about the attribute the value
// meets, those that do not ask included. The result is shared: never changed.
func (a *attribute) content(value string) bitset {
	a.mu.RLock()
	b, ok := a.known[value]
	a.mu.RUnlock()
	if ok {
		return b
	}
	b = make(bitset, len(a.asks))
	for w, asks := range a.asks {
		b[w] = ^asks
		for ; asks != 0; asks &= asks - 1 {
			bit := bits.TrailingZeros64(asks)
			if a.test(w*64+bit, value) {
				b[w] |= 1 << bit
			}
		}
	}
	if len(value) > longestKnown {
		return b
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= mostKnownValues {
		clear(a.known)
	}
	a.known[strings.Clone(value)] = b // not the pod it is a part of
	return b
}
