package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"plimsoll.dev/certs"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/version"
)

// certificate is a source of the serving certificate.
type certificate interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Loaded(*http.Request) error
}

// source is a certificate that is set once the manager exists; the server that
// uses it is made before.
type source struct{ atomic.Pointer[certificate] }

func (s *source) get(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.Load()
	if c == nil {
		return nil, errors.New("no serving certificate yet")
	}
	return (*c).GetCertificate(h)
}

// run serves until ctx is done, then drains.
func run(ctx context.Context, o *options) error {
	measurements, err := o.openStore()
	if err != nil {
		return err
	}
	defer measurements.Close()
	config, err := restConfig(o.kubeconfig)
	if err != nil {
		return err
	}
	var src source
	mgr, err := newManager(config, o, &src)
	if err != nil {
		return err
	}
	cert, err := newCertificate(mgr, o)
	if err != nil {
		return err
	}
	src.Store(&cert)

	// The manager outlives ctx by the drain.
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	state := &state{}
	if err := wire(serving, mgr, o, measurements, state); err != nil {
		return err
	}
	if err := addChecks(mgr, state, cert); err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		state.draining.Store(true)
		ctrl.Log.Info("going: not ready any more, serving what is still sent", "for", o.shutdownDelay.String())
		time.Sleep(o.shutdownDelay)
		stop()
	}()
	ctrl.Log.Info("starting", "version", version.Version, "certMode", o.certMode)
	if err := mgr.Start(serving); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

// state is what readiness is made of.
type state struct {
	synced   atomic.Bool // every cache holds what the API server has
	draining atomic.Bool
}

func addChecks(mgr manager.Manager, s *state, cert certificate) error {
	checks := map[string]func(*http.Request) error{
		"certificate": cert.Loaded,
		"caches": func(*http.Request) error {
			if !s.synced.Load() {
				return errors.New("the caches are not filled yet")
			}
			return nil
		},
		"shutdown": func(*http.Request) error {
			if s.draining.Load() {
				return errors.New("shutting down")
			}
			return nil
		},
		"server": mgr.GetWebhookServer().StartedChecker(),
	}
	for name, check := range checks {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return fmt.Errorf("adding readiness check %s: %w", name, err)
		}
	}
	if err := mgr.AddHealthzCheck("process", func(*http.Request) error { return nil }); err != nil {
		return fmt.Errorf("adding the liveness check: %w", err)
	}
	return nil
}

func newManager(config *rest.Config, o *options, src *source) (manager.Manager, error) {
	drain := 30 * time.Second
	server := webhook.NewServer(webhook.Options{
		Host: o.bind, Port: o.port,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS12
			c.GetCertificate = src.get
			c.NextProtos = []string{"h2", "http/1.1"}
		}},
	})
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                  newScheme(),
		Cache:                   cacheOptions(o),
		WebhookServer:           server,
		Metrics:                 metricsserver.Options{BindAddress: o.metricsAddr},
		HealthProbeBindAddress:  o.healthAddr,
		GracefulShutdownTimeout: &drain,
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to run: %w", err)
	}
	return mgr, nil
}

func newCertificate(mgr manager.Manager, o *options) (certificate, error) {
	m := certs.NewMetrics(metrics.Registry)
	if o.certMode == certSelfSigned {
		direct, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
		if err != nil {
			return nil, fmt.Errorf("preparing the self-signed certificate: %w", err)
		}
		r := certs.NewRotator(direct, o.certificates(), m)
		return r, mgr.Add(r)
	}
	f, err := certs.NewFiles(o.certDir, m)
	if err != nil {
		return nil, err
	}
	return f, mgr.Add(f)
}

// restConfig reads a kubeconfig, or the service account where none is named.
func restConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		if kubeconfig == "" {
			return nil, fmt.Errorf("finding the API server: %w: outside a cluster give --kubeconfig", err)
		}
		return nil, fmt.Errorf("reading --kubeconfig %s: %w", kubeconfig, err)
	}
	// The API server's own fairness limits us, better than a guess here can.
	config.QPS = -1
	config.UserAgent = "plimsoll-webhook/" + version.Version
	return config, nil
}

// waitForCaches returns a runnable that records when the caches are filled and
// the policies in them are compiled.
func (s *state) waitForCaches(c cache.Cache, policies *policy.Holder) everyReplica {
	return func(ctx context.Context) error {
		if !c.WaitForCacheSync(ctx) {
			return nil
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for policies.Get() == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
		s.synced.Store(true)
		ctrl.Log.Info("the caches are filled")
		return nil
	}
}
