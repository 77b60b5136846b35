// Package storetest puts a network between a store and its Redis that tests can break.
package storetest

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// Proxy forwards connections to a Redis server and breaks them on request.
type Proxy struct {
	target   string
	listener net.Listener

	mu    sync.Mutex
	conns map[net.Conn]bool
	cut   int // replies still to be cut
	keep  int // bytes of them that get through
	down  bool

	trigger []byte
	action  func()
}

// NewProxy starts a proxy to an address; it ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("starting the proxy: %v", err)
	}
	p := &Proxy{target: target, listener: l, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = l.Close()
		p.Down()
	})
	go p.serve()
	return p
}

// Addr returns where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// CutReplies lets the server have the next n requests, but of each answer only the first keep bytes get through before
// the connection breaks.
func (p *Proxy) CutReplies(n, keep int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.keep = n, keep
}

// Before runs an action once, when the next request that contains a text has arrived and before the server gets it.
func (p *Proxy) Before(text string, action func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trigger, p.action = []byte(text), action
}

// Retarget sends connections to another server from now on and breaks those there are, as a failover does.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.breakAll()
}

// Down breaks all connections and refuses new ones until Up.
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.breakAll()
}

// Up lets connections through again.
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down, p.cut = false, 0
}

func (p *Proxy) breakAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target, down := p.target, p.down
		p.mu.Unlock()
		if down {
			_ = client.Close()
			continue
		}
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		go p.copy(client, server, p.inspect)
		go p.copy(server, client, p.allow)
	}
}

// inspect runs the action that waits for a request.
func (p *Proxy) inspect(request []byte) int {
	p.mu.Lock()
	action := p.action
	if action != nil && bytes.Contains(request, p.trigger) {
		p.action = nil
	} else {
		action = nil
	}
	p.mu.Unlock()
	if action != nil {
		action()
	}
	return len(request)
}

// allow returns how much of a reply gets through.
func (p *Proxy) allow(reply []byte) int {
	n := len(reply)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == 0 {
		return n
	}
	p.cut--
	return min(n-1, p.keep)
}

// copy forwards until either side ends or a reply is cut short.
func (p *Proxy) copy(from, to net.Conn, allow func([]byte) int) {
	defer func() {
		p.mu.Lock()
		delete(p.conns, from)
		p.mu.Unlock()
		_, _ = from.Close(), to.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		through := allow(buf[:n])
		if _, err := to.Write(buf[:through]); err != nil || through < n {
			return
		}
	}
}
