package certs_test

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"plimsoll.dev/certs"
)

// pair returns a certificate valid for the given time from a minute ago.
func pair(t testing.TB, valid time.Duration) certs.Pair {
	t.Helper()
	from := time.Now().Add(-time.Minute)
	ca, err := certs.NewAuthority(from, from.Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ca.Issue([]string{"127.0.0.1", "webhook.example.org"}, from, from.Add(valid))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t testing.TB, dir string, p certs.Pair) {
	t.Helper()
	for name, b := range map[string][]byte{certs.CertFile: p.Cert, certs.KeyFile: p.Key} {
		// Renamed, as a mounted Secret changes: no reader sees half a file.
		tmp := filepath.Join(dir, name+".new")
		if err := os.WriteFile(tmp, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesThatDoNotLoadSayWhatToDo(t *testing.T) {
	other := pair(t, time.Hour)
	tests := map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"missing": {func(*testing.T, string) {}, "no such file"},
		"not a pair": {func(t *testing.T, dir string) {
			write(t, dir, certs.Pair{Cert: pair(t, time.Hour).Cert, Key: other.Key})
		}, "private key does not match"},
		"not PEM":     {func(t *testing.T, dir string) { write(t, dir, certs.Pair{Cert: []byte("x"), Key: []byte("y")}) }, "failed to find any PEM data"},
		"no key file": {func(t *testing.T, dir string) { write(t, dir, other); _ = os.Remove(filepath.Join(dir, certs.KeyFile)) }, "no such file"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tc.prepare(t, dir)
			_, err := certs.NewFiles(dir, certs.NewMetrics(prometheus.NewRegistry()))
			if err == nil {
				t.Fatal("it was loaded")
			}
			for _, want := range []string{tc.want, "put tls.crt and tls.key into the folder named by --cert-dir"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error is %q, want it to hold %q", err, want)
				}
			}
		})
	}
}

func TestFilesLoadAChangedCertificateWithoutARestart(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, pair(t, time.Hour))
	f, err := certs.NewFiles(dir, certs.NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	serial := func() string {
		c, err := f.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	first := serial()
	write(t, dir, pair(t, time.Hour))
	wait(t, "the new certificate", func() error {
		if serial() == first {
			return errors.New("still the old one")
		}
		return nil
	})
	// A broken pair leaves the one before in service.
	second := serial()
	if err := os.WriteFile(filepath.Join(dir, certs.CertFile), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if serial() != second || f.Loaded(nil) != nil {
		t.Errorf("the certificate in service is gone: %v", f.Loaded(nil))
	}
}

func TestExpiredCertificateIsNotReady(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, pair(t, 30*time.Second)) // ended half a minute ago
	f, err := certs.NewFiles(dir, certs.NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Loaded(nil); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("readiness says %v", err)
	}
}

func wait(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	err := f()
	for ; err != nil && time.Now().Before(deadline); err = f() {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}
