package env

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
)

// TB is what this package needs of a *testing.T or *testing.B; Main and Run
// give one to code that runs outside a test.
type TB interface {
	Helper()
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Context() context.Context
}

// Main starts what a test package shares, runs its tests, stops what was
// started and exits with the tests' code; call it from TestMain. A method of
// something shared that fails ends the run of the whole package.
func Main(m *testing.M, start func(TB)) {
	code := 1
	err := Run(context.Background(), func(t TB) {
		start(t)
		code = m.Run()
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "test environment:", err)
		code = 1
	}
	os.Exit(code)
}

// Run calls f with a TB that is not a test and then runs its cleanups, last
// first; it returns the error of the first Fatalf.
func Run(ctx context.Context, f func(TB)) (err error) {
	s := &session{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	defer func() {
		stopped := s.cleanUp()
		switch v := recover().(type) {
		case nil:
			err = stopped
		case fatal:
			err = v.error
		default:
			panic(v)
		}
	}()
	f(s)
	return nil
}

// fatal carries a session's Fatalf up to Run.
type fatal struct{ error }

type session struct {
	ctx      context.Context
	cancel   context.CancelFunc
	cleanups []func()
}

func (*session) Helper()                           {}
func (s *session) Context() context.Context        { return s.ctx }
func (s *session) Cleanup(f func())                { s.cleanups = append(s.cleanups, f) }
func (*session) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (*session) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

// cleanUp runs every cleanup even if one of them fails, as testing does.
func (s *session) cleanUp() (err error) {
	s.cancel()
	for _, f := range slices.Backward(s.cleanups) {
		func() {
			defer func() {
				if v := recover(); v != nil && err == nil {
					err = fmt.Errorf("stopping: %v", v)
				}
			}()
			f()
		}()
	}
	s.cleanups = nil
	return err
}
