package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"plimsoll.dev/agent/collect"
)

// spool shows what waits to be written.
type spool struct{ accumulator *collect.Accumulator }

var (
	descBlobs   = prometheus.NewDesc("plimsoll_agent_spool_blobs", "Blobs of an hour and container that are not yet known to be folded.", nil, nil)
	descBytes   = prometheus.NewDesc("plimsoll_agent_spool_bytes", "Size of those blobs.", nil, nil)
	descDropped = prometheus.NewDesc("plimsoll_agent_spool_dropped_samples_total", "Samples given up because Redis was away for too long or too much was kept.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s spool) Describe(ch chan<- *prometheus.Desc) {
	ch <- descBlobs
	ch <- descBytes
	ch <- descDropped
}

// Collect implements prometheus.Collector.
func (s spool) Collect(ch chan<- prometheus.Metric) {
	stats := s.accumulator.Stats()
	ch <- prometheus.MustNewConstMetric(descBlobs, prometheus.GaugeValue, float64(stats.Kept))
	ch <- prometheus.MustNewConstMetric(descBytes, prometheus.GaugeValue, float64(stats.Bytes))
	ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(stats.Dropped))
}
