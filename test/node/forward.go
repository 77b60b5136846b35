package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Forward listens on a free port of the machine's loopback and passes each
// connection on to an address inside the cluster's network namespace. It
// returns the local address; Stop ends it.
func (c *Cluster) Forward(address string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listening for connections to %s: %w", address, err)
	}
	c.mu.Lock()
	c.forwards = append(c.forwards, l)
	c.mu.Unlock()
	go func() {
		for {
			local, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go c.pass(local, address)
			}
		}
	}()
	return l.Addr().String(), nil
}

// pass copies in both directions until either side has ended.
func (c *Cluster) pass(local net.Conn, address string) {
	defer local.Close()
	remote, err := c.sandbox.dial(context.Background(), "tcp", address)
	if err != nil {
		return // the client sees its connection closed
	}
	var once sync.Once
	end := func() { local.Close(); remote.Close() }
	go func() {
		_, _ = io.Copy(remote, local) // either side may end it
		once.Do(end)
	}()
	_, _ = io.Copy(local, remote)
	once.Do(end)
}
