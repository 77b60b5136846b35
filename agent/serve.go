package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"plimsoll.dev/agent/collect"
)

// Names of the checks of readiness.
const (
	readyRedis = "redis"
	readyAPI   = "api server"
)

// health answers for the parts of the agent: each check is nil or says what is wrong and what to do.
type health struct {
	alive func() error
	ready map[string]func() error
}

// newHandler serves what the node itself may ask the agent.
func newHandler(registry *prometheus.Registry, loop *collect.Loop, h health) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.alive()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		var errs []error
		for name, check := range h.ready {
			if err := check(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
		answer(w, errors.Join(errs...))
	})
	mux.HandleFunc("GET /debug/containers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		// A client that went away is its own business.
		_ = encoder.Encode(loop.View())
	})
	return mux
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// listen opens the address of --listen; nil when nothing is to be served.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "0" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen=%s: %w: give another port, or 0 to serve nothing", address, err)
	}
	return l, nil
}

// serve answers requests until the context ends.
func serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
		// Nobody waits for an answer that takes longer.
		closing, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := server.Shutdown(closing); err != nil {
			return server.Close()
		}
		return nil
	}
}
