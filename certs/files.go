package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// The names of the files in a certificate folder, as in a Secret of type
// kubernetes.io/tls that is mounted there.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Files serves the certificate of a folder and loads it anew when it changes.
// A pair that does not load leaves the one before in service.
type Files struct {
	watcher *certwatcher.CertWatcher
	now     func() time.Time
}

// NewFiles loads tls.crt and tls.key of a folder; the error says what to do if
// they cannot be loaded.
func NewFiles(dir string, m *Metrics) (*Files, error) {
	w, err := certwatcher.New(filepath.Join(dir, CertFile), filepath.Join(dir, KeyFile))
	if err != nil {
		return nil, fmt.Errorf("reading the serving certificate: %w: put %s and %s into the folder named by --cert-dir, "+
			"or use --cert-mode=self-signed", err, CertFile, KeyFile)
	}
	f := &Files{watcher: w, now: time.Now}
	w.RegisterCallback(func(c tls.Certificate) { m.expires(servingCertificate, c.Leaf) })
	return f, nil
}

// Start follows changes of the files until ctx is done.
func (f *Files) Start(ctx context.Context) error {
	if err := f.watcher.Start(ctx); err != nil {
		return fmt.Errorf("watching the serving certificate: %w", err)
	}
	return nil
}

// NeedLeaderElection is false: every replica serves.
func (*Files) NeedLeaderElection() bool { return false }

// GetCertificate returns the certificate to serve; it has the form tls.Config wants.
func (f *Files) GetCertificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.watcher.GetCertificate(h)
}

// Loaded is a readiness check: nil while a certificate that has not expired is served.
func (f *Files) Loaded(*http.Request) error {
	c, err := f.watcher.GetCertificate(nil)
	if err != nil {
		return err
	}
	return usable(c, f.now())
}

func usable(c *tls.Certificate, now time.Time) error {
	if c == nil || c.Leaf == nil {
		return errors.New("no serving certificate is loaded")
	}
	if now.After(c.Leaf.NotAfter) {
		return fmt.Errorf("the serving certificate expired at %s", c.Leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
