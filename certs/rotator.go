package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
	// before anything is signed with it. Default 10m.
	Propagation time.Duration
	// Overlap is how long the authority before stays trusted, for replicas to
	// change over. One that could not read the Secret for half of it is not
	// ready. Default 24h.
	Overlap time.Duration
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
	reader  client.Reader // live: a step must not follow from a stale read
	client  client.Client
	o       Options
	metrics *Metrics
	served  atomic.Pointer[served]
}

// served is what this replica hands out, and when the Secret was last seen to agree.
type served struct {
	chain *chain
	seen  time.Time
}

// NewRotator makes a rotator; SetupWithManager starts it.
func NewRotator(mgr ctrl.Manager, o Options, m *Metrics) *Rotator {
	return &Rotator{reader: mgr.GetAPIReader(), client: mgr.GetClient(), o: o.withDefaults(), metrics: m}
}

// CacheOptions narrow the manager's caches to the three objects watched here.
func (o Options) CacheOptions() map[client.Object]cache.ByObject {
	secret := fields.OneTermEqualSelector(metav1.ObjectNameField, o.Secret.Name)
	configuration := fields.OneTermEqualSelector(metav1.ObjectNameField, o.Configuration)
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{o.Secret.Namespace: {FieldSelector: secret}}},
		&admissionregistrationv1.MutatingWebhookConfiguration{}:   {Field: configuration},
		&admissionregistrationv1.ValidatingWebhookConfiguration{}: {Field: configuration},
	}
}

// SetupWithManager runs the rotator whenever one of its three objects changes
// and when a step falls due.
func (r *Rotator) SetupWithManager(mgr ctrl.Manager) error {
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: r.o.Secret}}
	})
	everyReplica := false
	c := ctrl.NewControllerManagedBy(mgr).Named("certificates").
		WithOptions(controller.Options{NeedLeaderElection: &everyReplica}).
		Watches(&corev1.Secret{}, one).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{}, one).
		Watches(&admissionregistrationv1.ValidatingWebhookConfiguration{}, one)
	if err := mgr.Add(everyReplicaFunc(r.first)); err != nil {
		return fmt.Errorf("adding the first certificate: %w", err)
	}
	if err := c.Complete(r); err != nil {
		return fmt.Errorf("starting the certificate controller: %w", err)
	}
	return nil
}

// everyReplicaFunc is a Runnable that does not wait to be elected.
type everyReplicaFunc func(context.Context) error

func (f everyReplicaFunc) Start(ctx context.Context) error { return f(ctx) }
func (everyReplicaFunc) NeedLeaderElection() bool          { return false }

// first makes the certificate when there is no Secret to send an event.
func (r *Rotator) first(ctx context.Context) error {
	for {
		_, err := r.Reconcile(ctx, reconcile.Request{NamespacedName: r.o.Secret})
		if r.served.Load() != nil || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "there is no serving certificate yet", "secret", r.o.Secret)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// Reconcile reads the Secret, serves what it holds, publishes its bundle and
// takes the next step if one is due.
func (r *Rotator) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	// The order of the reads keeps a slow replica from publishing an old
	// bundle: whoever wrote a configuration after this read wins by its
	// resourceVersion, whoever wrote before it had written the Secret first.
	configurations, err := r.configurations(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	secret, c, err := r.load(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: retry}, nil // another replica was faster
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	r.serve(c)
	for _, conf := range configurations {
		if err := r.publish(ctx, conf, c.bundle()); apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: retry}, nil
		} else if err != nil {
			return reconcile.Result{}, err
		}
	}
	step, wait, err := c.advance(r.o, r.o.Now())
	if err != nil {
		return reconcile.Result{}, err
	}
	if step == "" {
		return reconcile.Result{RequeueAfter: min(wait+time.Millisecond, r.o.Overlap/4)}, nil
	}
	if err := r.write(ctx, secret, c, step); err != nil && !apierrors.IsConflict(err) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: retry}, nil
}

// retry is the pause before reading again what another replica has changed.
const retry = 50 * time.Millisecond

// load returns the Secret and its chain, and makes both where they are missing
// or damaged: from what is served here, so that nobody loses trust, or anew.
func (r *Rotator) load(ctx context.Context) (*corev1.Secret, *chain, error) {
	secret := &corev1.Secret{}
	err := r.reader.Get(ctx, r.o.Secret, secret)
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
