package recommend

import (
	"github.com/prometheus/client_golang/prometheus"
)

// The outcomes of computing one profile.
const (
	outcomeComputed   = "computed"
	outcomeUnreadable = "unreadable" // Redis did not answer
	outcomeError      = "error"
)

// Metrics count what the controller does.
type Metrics struct {
	outcomes       *prometheus.CounterVec
	computeSeconds prometheus.Histogram
	statusWrites   prometheus.Counter
	foldFailures   prometheus.Counter
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_recommend_total",
			Help: "Computations of a profile's recommendations by outcome: computed, unreadable, error.",
		}, []string{"outcome"}),
		computeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "plimsoll_recommend_compute_seconds",
			Help:    "Time to compute one profile from what was read.",
			Buckets: prometheus.ExponentialBuckets(5e-6, 4, 10),
		}),
		statusWrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_recommend_status_writes_total",
			Help: "Profile statuses written because they changed by more than noise.",
		}),
		foldFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_recommend_fold_failures_total",
			Help: "Attempts to fold closed hours of a profile that failed and are tried again.",
		}),
	}
	r.MustRegister(m.outcomes, m.computeSeconds, m.statusWrites, m.foldFailures)
	return m
}
