package admission

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcome is how a request ended; the closed set of a metric label.
type Outcome string

// The outcomes of a request.
const (
	OutcomeStamped     Outcome = "stamped"     // policy and profile recorded, values left alone
	OutcomeSized       Outcome = "sized"       // recommended values set
	OutcomeNotEnrolled Outcome = "notEnrolled" // passed untouched: not asked for, or never enrolled
	OutcomeSuspended   Outcome = "suspended"   // passed untouched: the kill switch is on
	OutcomeUndecided   Outcome = "undecided"   // passed for the controllers to resolve: caches or owner not known in time
	OutcomeValid       Outcome = "valid"       // a policy that compiles
	OutcomeDenied      Outcome = "denied"      // refused with a message
	OutcomeMalformed   Outcome = "malformed"   // not an AdmissionReview, or too large
	OutcomeFailed      Outcome = "failed"      // an error; the API server goes on without us
	OutcomePanic       Outcome = "panic"       // a bug; the API server goes on without us
)

// Metrics count admission requests and how long they took.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_admission_requests_total",
			Help: "Admission requests by webhook (pods, policies) and outcome.",
		}, []string{"webhook", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "plimsoll_admission_duration_seconds",
			Help:    "Time from an admission request's headers to its answer, by webhook.",
			Buckets: []float64{.0001, .0002, .0005, .001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"webhook"}),
	}
	r.MustRegister(m.requests, m.duration)
	return m
}

func (m *Metrics) observe(webhook string, o Outcome, took time.Duration) {
	m.requests.WithLabelValues(webhook, string(o)).Inc()
	m.duration.WithLabelValues(webhook).Observe(took.Seconds())
}
