package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
)

// redisPing is how often Redis is asked whether it is there.
const redisPing = 15 * time.Second

// pinger is the part of the store that is watched.
type pinger interface{ Ping(context.Context) error }

// redisWatch says once when Redis goes and once when it is back.
type redisWatch struct {
	redis pinger
	up    prometheus.Gauge
	every time.Duration
}

func newRedisWatch(redis pinger, r prometheus.Registerer) *redisWatch {
	w := &redisWatch{redis: redis, every: redisPing, up: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "plimsoll_redis_up",
		Help: "1 while Redis answers this replica, 0 while it does not; admission does not need it.",
	})}
	r.MustRegister(w.up)
	return w
}

// run asks until ctx is done.
func (w *redisWatch) run(ctx context.Context) error {
	log := ctrl.Log.WithName("redis")
	known, up := false, false
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		err := w.redis.Ping(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && (!known || !up):
			log.Info("Redis answers")
			w.up.Set(1)
		case err != nil && (!known || up):
			log.Error(err, "Redis does not answer: pods are admitted, recommendations keep their last values until it is back")
			w.up.Set(0)
		}
		known, up = true, err == nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
