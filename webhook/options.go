package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/certs"
	"plimsoll.dev/pkg/store"
)

// The values of --cert-mode.
const (
	certFiles      = "files"
	certSelfSigned = "self-signed"
)

// envRedis is the variable that --redis falls back to, so that a password in
// the URL stands in no process list.
const envRedis = "PLIMSOLL_REDIS_URL"

// options are what the command line says.
type options struct {
	kubeconfig string
	namespace  string
	replica    string

	redis string

	bind          string
	port          int
	metricsAddr   string
	healthAddr    string
	certMode      string
	certDir       string
	certHosts     []string
	service       string
	configuration string

	recommendInterval time.Duration
	resizeInterval    time.Duration
	resync            time.Duration
	shutdownDelay     time.Duration

	logLevel  slog.Level
	logFormat string
}

func (o *options) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file; in a pod leave it empty to use the service account")
	f.StringVar(&o.namespace, "namespace", "plimsoll-system", "Plimsoll's own namespace: Leases and the certificate Secret live here, and its pods are never enrolled")
	f.StringVar(&o.replica, "replica", os.Getenv("POD_NAME"), "name of this replica, its pod's; replicas share the work through Leases of their names. Empty: this process is alone and does it all")
	f.StringVar(&o.redis, "redis", os.Getenv(envRedis), "Redis that holds the measurements: redis://host:6379, rediss:// for TLS, several hosts for a cluster, "+
		"?master=NAME for Sentinels; better given in "+envRedis+" if it holds a password")

	f.StringVar(&o.bind, "bind-address", "", "address to serve admission on; empty is every address")
	f.IntVar(&o.port, "port", 9443, "port to serve admission on")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "address and port to serve /metrics on; 0 serves none")
	f.StringVar(&o.healthAddr, "health-addr", ":8081", "address and port to serve /healthz and /readyz on; 0 serves none")
	f.StringVar(&o.certMode, "cert-mode", "", certSelfSigned+": make a certificate authority, keep it in a Secret, publish and rotate it; "+
		certFiles+": serve what is in --cert-dir. Default "+certFiles+" if --cert-dir is given, else "+certSelfSigned)
	f.StringVar(&o.certDir, "cert-dir", "", "folder with tls.crt and tls.key, as cert-manager or you provide them; changes are loaded without a restart")
	f.StringSliceVar(&o.certHosts, "cert-host", nil, "further host name or IP address that the self-signed certificate is valid for")
	f.StringVar(&o.service, "service", "plimsoll-webhook", "Service the API server calls; the self-signed certificate is made for it and kept in Secret <service>-certs")
	f.StringVar(&o.configuration, "webhook-configuration", "plimsoll", "name of the mutating and validating webhook configurations to publish the authority in")

	f.DurationVar(&o.recommendInterval, "recommend-interval", time.Minute, "how often each profile's recommendations are computed anew")
	f.DurationVar(&o.resizeInterval, "resize-interval", 10*time.Second, "how often each profile's running pods are compared with its recommendations")
	f.DurationVar(&o.resync, "resync", 10*time.Hour, "how often everything is looked at again though nothing changed")
	f.DurationVar(&o.shutdownDelay, "shutdown-delay", 3*time.Second, "how long admission is served after SIGTERM, unready, until no API server sends to this replica any more")

	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
}

// complete fills in what follows from other flags and refuses what makes no
// sense, naming the flag.
func (o *options) complete() error {
	if o.certMode == "" {
		o.certMode = certSelfSigned
		if o.certDir != "" {
			o.certMode = certFiles
		}
	}
	switch {
	case o.redis == "":
		return fmt.Errorf("--redis is not set: give it, or %s, such as redis://127.0.0.1:6379", envRedis)
	case o.certMode != certFiles && o.certMode != certSelfSigned:
		return fmt.Errorf("--cert-mode=%s: use %s or %s", o.certMode, certFiles, certSelfSigned)
	case o.certMode == certFiles && o.certDir == "":
		return fmt.Errorf("--cert-mode=%s needs --cert-dir, a folder with %s and %s", certFiles, certs.CertFile, certs.KeyFile)
	case o.certMode == certSelfSigned && o.certDir != "":
		return fmt.Errorf("--cert-dir has no use with --cert-mode=%s: leave one of them out", certSelfSigned)
	case o.port < 1 || o.port > 65535:
		return fmt.Errorf("--port=%d: use a port from 1 to 65535", o.port)
	case o.namespace == "":
		return errors.New("--namespace is empty: give the namespace Plimsoll is installed in")
	case o.logFormat != "json" && o.logFormat != "text":
		return fmt.Errorf("--log-format=%s: use json or text", o.logFormat)
	}
	for flag, d := range map[string]time.Duration{"--recommend-interval": o.recommendInterval, "--resize-interval": o.resizeInterval, "--resync": o.resync} {
		if d < time.Second {
			return fmt.Errorf("%s=%s: use at least 1s", flag, d)
		}
	}
	if o.shutdownDelay < 0 {
		return fmt.Errorf("--shutdown-delay=%s: use 0s or more", o.shutdownDelay)
	}
	return nil
}

// openStore opens the store without connecting: Redis may be away.
func (o *options) openStore() (*store.Store, error) {
	s, err := store.Open(store.Config{URL: o.redis})
	if err != nil {
		return nil, fmt.Errorf("--redis (or %s): %w", envRedis, err)
	}
	return s, nil
}

// certificates are the options of the self-signed mode.
func (o *options) certificates() certs.Options {
	host := o.service + "." + o.namespace + ".svc"
	return certs.Options{
		Secret:        types.NamespacedName{Namespace: o.namespace, Name: o.service + "-certs"},
		Configuration: o.configuration,
		Hosts:         append([]string{host, host + ".cluster.local"}, o.certHosts...),
	}
}

func (o *options) logger() *slog.Logger {
	h := &slog.HandlerOptions{Level: o.logLevel}
	if strings.EqualFold(o.logFormat, "text") {
		return slog.New(slog.NewTextHandler(os.Stderr, h))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, h))
}
