package profile_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clock is the real one and what a test adds to it.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// purger notes what it is asked to remove.
type purger struct {
	mu    sync.Mutex
	calls []string
	err   error
}

func (p *purger) Purge(_ context.Context, hash string, _ time.Time) error {
	return p.note("purge " + hash)
}
func (p *purger) Reset(_ context.Context, hash string, _ time.Time) error {
	return p.note("reset " + hash)
}

func (p *purger) note(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.calls = append(p.calls, call)
	return nil
}

func (p *purger) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *purger) done() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// events keeps what is recorded as "reason about object: note".
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := regarding.(client.Object).GetName()
	e.all = append(e.all, fmt.Sprintf("%s about %s: %s", reason, name, fmt.Sprintf(note, args...)))
}

// about returns the recorded events of a reason about an object.
func (e *events) about(reason, name string) (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.all {
		if strings.HasPrefix(s, reason+" about "+name+":") {
			out = append(out, s)
		}
	}
	return out
}
