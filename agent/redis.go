package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"plimsoll.dev/pkg/store"
)

// measurements is the store the agent writes to; store.Store is it.
type measurements interface {
	Flush(context.Context, store.Batch) (store.Reply, error)
	Connections() uint64
	Ping(context.Context) error
}

// watchedStore passes flushes on and knows whether the store answers.
type watchedStore struct {
	measurements
	log *slog.Logger

	mu      sync.Mutex
	err     error
	flushed time.Time // when the store last took everything

	duration prometheus.Histogram
	failures prometheus.Counter
	up       prometheus.Gauge
	success  prometheus.Gauge
}

// errNotAsked stands until the store has answered or failed for the first time.
var errNotAsked = errors.New("not connected yet")

func newWatchedStore(m measurements, registry prometheus.Registerer, log *slog.Logger) *watchedStore {
	s := &watchedStore{
		measurements: m, log: log, err: errNotAsked,
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "plimsoll_agent_flush_duration_seconds",
			Help:    "Time of one write of measurements to Redis.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 13),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_agent_flush_failures_total",
			Help: "Writes to Redis that failed, in part or whole; what they held is written again.",
		}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "plimsoll_agent_redis_up",
			Help: "1 if the last write to Redis succeeded, else 0.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "plimsoll_agent_last_flush_timestamp_seconds",
			Help: "When Redis last took everything, in Unix time; 0: not yet.",
		}),
	}
	registry.MustRegister(s.duration, s.failures, s.up, s.success)
	return s
}

// Flush implements collect.Flusher.
func (s *watchedStore) Flush(ctx context.Context, batch store.Batch) (store.Reply, error) {
	began := time.Now()
	reply, err := s.measurements.Flush(ctx, batch)
	if err == nil && len(batch.Writes)+len(batch.Check)+len(batch.Live)+len(batch.Gone)+len(batch.OOMKills) == 0 {
		// Nothing was asked of the store, so it has not said that it is there.
		err = s.Ping(ctx)
	}
	s.duration.Observe(time.Since(began).Seconds())
	if err == nil {
		s.note(nil)
		return reply, nil
	}
	s.failures.Inc()
	// What the ping says tells what to do; if it succeeds, the write itself is what is wrong.
	cause := err
	if pingErr := s.Ping(ctx); pingErr != nil {
		cause = pingErr
	}
	s.note(cause)
	return reply, err
}

// connect asks once whether the store is there, so that a wrong address is told at the start.
func (s *watchedStore) connect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.note(s.Ping(ctx))
}

func (s *watchedStore) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && s.err != nil:
		s.log.Info("redis answers")
	case err != nil && (s.err == nil || errors.Is(s.err, errNotAsked)):
		s.log.Error("redis is away: measuring on, nothing is lost for six hours", "error", err)
	}
	s.err = err
	if err != nil {
		s.up.Set(0)
		return
	}
	s.up.Set(1)
	s.success.SetToCurrentTime()
	s.flushed = time.Now()
}

// lastFlush returns when the store last took everything, zero for not yet.
func (s *watchedStore) lastFlush() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushed
}

// ready says why nothing can be written.
func (s *watchedStore) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
