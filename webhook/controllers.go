package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/webhook/admission"
	"plimsoll.dev/webhook/controller/podstatus"
	"plimsoll.dev/webhook/controller/profile"
	"plimsoll.dev/webhook/controller/recommend"
	"plimsoll.dev/webhook/controller/resize"
	"plimsoll.dev/webhook/membership"
)

// Paths of the admission server, as the webhook configurations name them.
const (
	pathPods     = "/mutate-pods"
	pathPolicies = "/validate-policies"
)

// Profiles worked on at once: recommending waits for Redis, resizing for the API server.
const (
	recommendWorkers = 4
	resizeWorkers    = 4
)

// alone names a process without a replica name as a field manager.
const alone = "webhook"

// parts is what the controllers share.
type parts struct {
	mgr          manager.Manager
	options      *options
	measurements *store.Store
	policies     *policy.Holder
	resolver     *profile.Resolver
	pods         podsOf
	recorder     events.EventRecorder
	state        *state
	members      *membership.Membership // nil when this process is alone
}

// wire is the one list of what runs.
func wire(ctx context.Context, mgr manager.Manager, o *options, measurements *store.Store, s *state) error {
	p := &parts{mgr: mgr, options: o, measurements: measurements, policies: &policy.Holder{}, state: s}
	p.resolver = profile.NewResolver(mgr, p.policies, o.namespace)
	p.pods = podsOf{mgr.GetClient()}
	p.recorder = mgr.GetEventRecorder("plimsoll")
	for _, part := range []func(context.Context) error{
		p.caches, p.redis, p.admission, p.membership, p.profiles, p.recommendations, p.resizes, p.statuses,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// caches starts the caches that admission reads, and records when they are filled.
func (p *parts) caches(ctx context.Context) error {
	if err := watch(ctx, p.mgr.GetCache()); err != nil {
		return err
	}
	return p.add("the readiness of caches", p.state.waitForCaches(p.mgr.GetCache(), p.policies))
}

// redis keeps an eye on Redis, which nothing but the controllers waits for.
func (p *parts) redis(context.Context) error {
	return p.add("the watch over Redis", newRedisWatch(p.measurements, metrics.Registry).run)
}

func (p *parts) admission(ctx context.Context) error {
	nodes, err := admission.NewNodes(ctx, p.mgr.GetCache())
	if err != nil {
		return err
	}
	pods := &admission.Pods{Resolver: p.resolver, Cache: p.mgr.GetClient(), Synced: p.state.synced.Load, Nodes: nodes}
	m := admission.NewMetrics(metrics.Registry)
	log := ctrl.Log.WithName("admission")
	p.mgr.GetWebhookServer().Register(pathPods, admission.NewServer("pods", pods.Admit, m, log))
	p.mgr.GetWebhookServer().Register(pathPolicies, admission.NewServer("policies", admission.AdmitPolicy, m, log))
	return admission.WatchUnseen(ctx, p.mgr.GetCache(), p.resolver, metrics.Registry, log)
}

// membership shares the work among replicas.
func (p *parts) membership(context.Context) error {
	if p.options.replica == "" {
		ctrl.Log.Info("this process is alone: it works on every profile and pod")
		return nil
	}
	m, err := membership.New(membership.Options{
		Client:    p.mgr.GetClient(),
		Cache:     p.mgr.GetCache(),
		Namespace: p.options.namespace,
		Replica:   p.options.replica,
		PodUID:    types.UID(os.Getenv("POD_UID")),
		Log:       ctrl.Log.WithName("membership"),
	})
	if err != nil {
		return fmt.Errorf("preparing to share the work: %w", err)
	}
	p.members = m
	if err := p.mgr.Add(m); err != nil {
		return fmt.Errorf("adding the membership: %w", err)
	}
	return nil
}

func (p *parts) profiles(context.Context) error {
	return profile.SetupWithManager(p.mgr, profile.Deps{
		Resolver:   p.resolver,
		Purger:     p.measurements,
		Owns:       p.members.Owns,
		Rebalanced: p.members.Subscribe(),
		Recorder:   p.recorder,
	})
}

func (p *parts) recommendations(context.Context) error {
	return recommend.New(recommend.Options{
		Client:       p.mgr.GetClient(),
		Policies:     p.policies,
		Measurements: p.measurements,
		Pods:         p.pods,
		Metrics:      recommend.NewMetrics(metrics.Registry),
		Owns:         p.members.Owns,
		Interval:     p.options.recommendInterval,
		Concurrency:  recommendWorkers,
	}).SetupWithManager(p.mgr)
}

func (p *parts) resizes(ctx context.Context) error {
	name, ring := p.options.replica, resize.Ring(p.members)
	if p.members == nil {
		name, ring = alone, nil
	}
	c, err := resize.New(resize.Options{
		Client:       p.mgr.GetClient(),
		Uncached:     p.mgr.GetAPIReader(),
		Policies:     p.policies,
		Pods:         p.pods,
		Measurements: p.measurements,
		Owners:       p.resolver.Owners,
		Ring:         ring,
		Replica:      name,
		Recorder:     p.recorder,
		Metrics:      resize.NewMetrics(metrics.Registry),
		Interval:     p.options.resizeInterval,
		Concurrency:  resizeWorkers,
	})
	if err != nil {
		return fmt.Errorf("preparing to resize: %w", err)
	}
	return c.SetupWithManager(ctx, p.mgr, p.members.Subscribe())
}

func (p *parts) statuses(ctx context.Context) error {
	d := podstatus.Deps{Policies: p.policies, Namespace: p.options.namespace, Recorder: p.recorder}
	if p.members != nil {
		d.Replica, d.PodUID, d.Ring = p.members.Self(), types.UID(os.Getenv("POD_UID")), p.members
	}
	return podstatus.SetupWithManager(ctx, p.mgr, d)
}

func (p *parts) add(what string, f everyReplica) error {
	if err := p.mgr.Add(f); err != nil {
		return fmt.Errorf("adding %s: %w", what, err)
	}
	return nil
}

// everyReplica is a Runnable that runs without being elected.
type everyReplica func(context.Context) error

func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }
func (everyReplica) NeedLeaderElection() bool          { return false }

// podsOf lists pods by the profile they are stamped with, from the cache. The
// pods are shared with it and must not be changed.
type podsOf struct{ reader client.Reader }

// OfProfile returns the pods stamped with a profile's name.
func (p podsOf) OfProfile(ctx context.Context, name string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := p.reader.List(ctx, &pods, client.MatchingFields{profile.PodsByProfile: name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the pods of profile %s: %w", name, err)
	}
	return pods.Items, nil
}
