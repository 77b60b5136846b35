package resize

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	plan "plimsoll.dev/pkg/resize"
)

// Metrics are the controller's metrics. Reasons are the constants of
// plimsoll.dev/pkg/resize; a profile's series go with the profile.
type Metrics struct {
	applies   prometheus.Counter
	conflicts *prometheus.CounterVec // by kind
	outcomes  *prometheus.CounterVec // by profile, reason
	pods      *podGauge              // by profile, reason
}

// NewMetrics returns the controller's metrics, registered unless the registry is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		applies: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_resize_applies_total", Help: "Applies sent to pods/resize, whatever came of them.",
		}),
		conflicts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_resize_conflicts_total", Help: "Conflicts on pods/resize, by kind: FieldManager or ResourceVersion.",
		}, []string{"kind"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_resize_outcomes_total", Help: "What came of resizes that were to be made, by profile and reason.",
		}, []string{"profile", "reason"}),
		pods: &podGauge{
			desc: prometheus.NewDesc("plimsoll_resize_pods", "Pods this replica would resize, by profile and why it does not.", []string{"profile", "reason"}, nil),
			by:   map[string]map[plan.Reason]int{},
		},
	}
	if r != nil {
		r.MustRegister(m.applies, m.conflicts, m.outcomes, m.pods)
	}
	return m
}

func (m *Metrics) outcome(profile string, r plan.Reason) {
	m.outcomes.WithLabelValues(profile, string(r)).Inc()
}

// forget drops the series of a profile that is gone.
func (m *Metrics) forget(profile string) {
	m.outcomes.DeletePartialMatch(prometheus.Labels{"profile": profile})
	m.pods.set(profile, nil)
}

// podGauge holds the last cycle's count of each profile.
type podGauge struct {
	desc *prometheus.Desc
	mu   sync.Mutex
	by   map[string]map[plan.Reason]int
}

func (g *podGauge) set(profile string, counts map[plan.Reason]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(counts) == 0 {
		delete(g.by, profile)
		return
	}
	g.by[profile] = counts
}

// Describe implements prometheus.Collector.
func (g *podGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g *podGauge) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for profile, counts := range g.by {
		for reason, n := range counts {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(n), profile, string(reason))
		}
	}
}
