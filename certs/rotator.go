package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Options of the self-signed mode.
type Options struct {
	// Secret holds the authority and the leaf that all replicas share.
	Secret types.NamespacedName
	// Configuration is the name of both webhook configurations; one that does
	// not exist is left out.
	Configuration string
	// Hosts are the names and addresses API servers call the webhook by.
	Hosts []string
	// AuthorityValidity and LeafValidity: renewed after two thirds.
	// Defaults 8760h and 2160h.
	AuthorityValidity, LeafValidity time.Duration
	// Propagation is how long API servers get to learn of a new authority
	// before anything is signed with it. It has to outlast the longest call,
	// which ends with the trust it began with: 30s, the most that API servers
	// let a webhook take. Default 10m.
	Propagation time.Duration
	// Overlap is how long the authority before stays trusted, for replicas to
	// change over. One that could not read the Secret for half of it is not
	// ready. Default 24h.
	Overlap time.Duration
	// Poll is how often the Secret and the configurations are looked at. Default 5s.
	Poll time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.AuthorityValidity, 8760*time.Hour)
	set(&o.LeafValidity, 2160*time.Hour)
	set(&o.Propagation, 10*time.Minute)
	set(&o.Overlap, 24*time.Hour)
	set(&o.Poll, 5*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Rotator keeps a certificate authority and a serving certificate in a Secret
// that all replicas share, and the authority in the webhook configurations.
// There is no leader: each step is one write to the Secret, refused by the API
// server if another replica was faster.
type Rotator struct {
	client  client.Client // not cached: a step must not follow from a stale read
	o       Options
	metrics *Metrics
	served  atomic.Pointer[served]
}

// served is what this replica hands out, and when the Secret was last seen to agree.
type served struct {
	chain *chain
	seen  time.Time
}

// NewRotator makes a rotator; it is a Runnable of every replica. The client must
// not read from a cache.
func NewRotator(c client.Client, o Options, m *Metrics) *Rotator {
	return &Rotator{client: c, o: o.withDefaults(), metrics: m}
}

// NeedLeaderElection is false: every replica serves, and any may take a step.
func (*Rotator) NeedLeaderElection() bool { return false }

// Start looks at the Secret and the webhook configurations until ctx is done. It
// asks for them instead of watching, so that it needs no right but to get them.
func (r *Rotator) Start(ctx context.Context) error {
	failing := false
	for {
		wait, err := r.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the error is that of a read that was ended
		case err != nil && !failing:
			log.FromContext(ctx).Error(err, "the serving certificate cannot be looked after; trying again", "secret", r.o.Secret)
		case err == nil && failing:
			log.FromContext(ctx).Info("the serving certificate is looked after again", "secret", r.o.Secret)
		}
		failing = err != nil
		if failing {
			wait = min(time.Second, r.o.Poll)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(wait, r.o.Poll)):
		}
	}
}

// step reads the Secret, serves what it holds, publishes its bundle and takes
// the next step if one is due. It returns when to look again.
func (r *Rotator) step(ctx context.Context) (time.Duration, error) {
	// The order of the reads keeps a slow replica from publishing an old
	// bundle: whoever wrote a configuration after this read wins by its
	// resourceVersion, whoever wrote before it had written the Secret first.
	configurations, err := r.configurations(ctx)
	if err != nil {
		return 0, err
	}
	secret, c, err := r.load(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return retry, nil // another replica was faster
	}
	if err != nil {
		return 0, err
	}
	r.serve(c)
	next := *c // handshakes read what is served; a step not yet stored is not
	if !c.since.IsZero() && c.next != nil && !hold(configurations, c.bundle()) {
		// Somebody reset a configuration. It is mended after this is stored, so
		// that no replica counts the time before.
		next.since = time.Time{}
		return retry, r.writeUnlessChanged(ctx, secret, &next, stepAnnounced)
	}
	for _, conf := range configurations {
		if err := r.publish(ctx, conf, c.bundle()); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return retry, nil
		} else if err != nil {
			return 0, err
		}
	}
	step, wait, err := next.advance(r.o, r.o.Now())
	if err != nil || step == "" {
		return wait, err
	}
	return retry, r.writeUnlessChanged(ctx, secret, &next, step)
}

// retry is the pause before reading again what another replica has changed.
const retry = 50 * time.Millisecond

// load returns the Secret and its chain, and makes both where they are missing
// or damaged: from what is served here, so that nobody loses trust, or anew.
func (r *Rotator) load(ctx context.Context) (*corev1.Secret, *chain, error) {
	secret := &corev1.Secret{}
	err := r.client.Get(ctx, r.o.Secret, secret)
	switch {
	case err == nil:
		c, err := parseChain(secret)
		if err == nil {
			return secret, c, nil
		}
		log.FromContext(ctx).Error(err, "the certificate Secret is damaged and will be written anew", "secret", r.o.Secret)
	case apierrors.IsNotFound(err):
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: r.o.Secret.Namespace, Name: r.o.Secret.Name},
			Type:       corev1.SecretTypeTLS,
		}
	default:
		return nil, nil, fmt.Errorf("reading the certificate Secret %s: %w", r.o.Secret, err)
	}
	var c *chain
	if s := r.served.Load(); s != nil {
		c = s.chain
	} else if c, err = newChain(r.o, r.o.Now()); err != nil {
		return nil, nil, err
	}
	copied := *c
	return secret, &copied, r.write(ctx, secret, &copied, stepCreated)
}

// write stores the chain after a step; a conflict is returned as it is.
func (r *Rotator) write(ctx context.Context, secret *corev1.Secret, c *chain, step string) error {
	changed, err := c.store(secret)
	if err != nil {
		return err
	}
	switch {
	case secret.ResourceVersion == "":
		err = r.client.Create(ctx, secret)
	case changed:
		err = r.client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("writing the certificate Secret %s: %w", r.o.Secret, err)
	}
	r.metrics.steps.WithLabelValues(step).Inc()
	log.FromContext(ctx).Info("certificates went a step further", "step", step, "secret", r.o.Secret)
	return nil
}

// writeUnlessChanged leaves the Secret as it is if another replica was faster.
func (r *Rotator) writeUnlessChanged(ctx context.Context, secret *corev1.Secret, c *chain, step string) error {
	if err := r.write(ctx, secret, c, step); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

func (r *Rotator) serve(c *chain) {
	r.served.Store(&served{chain: c, seen: r.o.Now()})
	r.metrics.expires(servingCertificate, c.leafCert.Leaf)
	r.metrics.expires(caCertificate, c.active.Cert)
}

// GetCertificate returns the certificate to serve; it has the form tls.Config wants.
func (r *Rotator) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s := r.served.Load()
	if s == nil {
		return nil, fmt.Errorf("no serving certificate yet: Secret %s was not read or made", r.o.Secret)
	}
	return &s.chain.leafCert, nil
}

// Loaded is a readiness check: nil while the certificate served is known to be
// the Secret's, or was so recently enough for its authority to be trusted.
func (r *Rotator) Loaded(*http.Request) error {
	s := r.served.Load()
	if s == nil {
		return fmt.Errorf("no serving certificate yet: Secret %s was not read or made", r.o.Secret)
	}
	now := r.o.Now()
	if age := now.Sub(s.seen); age > r.o.Overlap/2 {
		return fmt.Errorf("the certificate Secret %s could not be read for %s", r.o.Secret, age.Round(time.Second))
	}
	return usable(&s.chain.leafCert, now)
}
