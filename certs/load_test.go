package certs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/certs"
)

// balancer spreads connections over replicas, as a Service does.
type balancer struct {
	addr string
	mu   sync.Mutex
	to   []string
	open map[string]int // connections by replica
}

func balance(t *testing.T) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	b := &balancer{addr: l.Addr().String(), open: map[string]int{}}
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go b.pipe(c, n)
		}
	}()
	return b
}

// use sends connections to these replicas from now on.
func (b *balancer) use(to ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
}

// left is nil once no connection to a replica is open.
func (b *balancer) left(addr string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.open[addr]; n > 0 {
		return fmt.Errorf("%d connections are open", n)
	}
	return nil
}

func (b *balancer) pick(n int) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.to) == 0 {
		return "", false
	}
	to := b.to[n%len(b.to)]
	b.open[to]++
	return to, true
}

func (b *balancer) pipe(c net.Conn, n int) {
	defer c.Close()
	to, ok := b.pick(n)
	if !ok {
		return
	}
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open[to]--
	}()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = io.Copy(s, c); _ = s.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(c, s)
}

// begin forces a rotation.
func (in installation) begin(t *testing.T) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"now"}}}`, certs.AnnotationRotate)
	if _, err := clients.CoreV1().Secrets(in.o.Secret.Namespace).Patch(t.Context(), in.o.Secret.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// rotate forces a rotation and waits until it is over.
func (in installation) rotate(t *testing.T) {
	t.Helper()
	old := in.secret(t).Data["active-ca.crt"]
	in.begin(t)
	wait(t, "the rotation", func() error {
		s := in.secret(t)
		switch _, asked := s.Annotations[certs.AnnotationRotate]; {
		case asked, bytes.Equal(s.Data["active-ca.crt"], old):
			return errors.New("not promoted")
		case len(s.Data["previous-ca.crt"]) > 0, !bytes.Equal(in.bundle(t), s.Data["ca.crt"]):
			return errors.New("not retired")
		}
		return nil
	})
	if strings.Count(string(in.bundle(t)), "BEGIN CERTIFICATE") != 1 || bytes.Contains(in.bundle(t), old) {
		t.Error("the old authority is still trusted")
	}
}

// C54: certificate and authority rotate 20 times under load over two replicas,
// one of which is replaced midway, without a failed call.
func TestC54RotationUnderLoadFailsNoCall(t *testing.T) {
	service := balance(t)
	in := install(t, service.addr)
	a, b := in.replica(t), in.replica(t)
	ready(t, a, b)
	service.use(a.addr, b.addr)
	in.working(t)

	ctx, cancel := context.WithCancel(t.Context())
	var calls, failed atomic.Int64
	var firstFailure atomic.Pointer[error]
	var load sync.WaitGroup
	tick := time.NewTicker(5 * time.Millisecond) // 200 a second
	defer tick.Stop()
	for range 16 {
		load.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := in.call(ctx); err != nil && ctx.Err() == nil {
					failed.Add(1)
					firstFailure.CompareAndSwap(nil, &err)
				}
				calls.Add(1)
			}
		})
	}
	start := time.Now()
	for n := range 20 {
		in.rotate(t)
		if n == 10 {
			c := in.replica(t)
			ready(t, c)
			service.use(c.addr, b.addr)
			wait(t, "the last call of the replaced replica", func() error { return service.left(a.addr) })
			a.drain()
		}
	}
	took := time.Since(start)
	cancel()
	load.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d calls failed, the first with: %v", n, calls.Load(), *firstFailure.Load())
	}
	t.Logf("20 rotations, %d calls, %.0f a second", calls.Load(), float64(calls.Load())/took.Seconds())
}
