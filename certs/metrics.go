package certs

import (
	"crypto/x509"

	"github.com/prometheus/client_golang/prometheus"
)

// The values of the metrics' label "certificate".
const (
	servingCertificate = "serving"
	caCertificate      = "ca"
)

// Metrics say when certificates expire and which steps of a rotation were
// taken; their label values come from this package alone.
type Metrics struct {
	expiry *prometheus.GaugeVec
	steps  *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		expiry: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "plimsoll_webhook_certificate_expiry_timestamp_seconds",
			Help: "When a certificate in use expires, in Unix time; certificate is serving or ca (self-signed mode only).",
		}, []string{"certificate"}),
		steps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_webhook_certificate_steps_total",
			Help: "Steps of certificate upkeep this replica took, by step: created, reissued, announced, published, promoted, retired.",
		}, []string{"step"}),
	}
	r.MustRegister(m.expiry, m.steps)
	return m
}

func (m *Metrics) expires(certificate string, c *x509.Certificate) {
	if c != nil {
		m.expiry.WithLabelValues(certificate).Set(float64(c.NotAfter.Unix()))
	}
}
