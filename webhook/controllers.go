package main

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/webhook/admission"
	"plimsoll.dev/webhook/controller/profile"
)

// Paths of the admission server, as the webhook configurations name them.
const (
	pathPods     = "/mutate-pods"
	pathPolicies = "/validate-policies"
)

// wire is the one list of what runs.
func wire(ctx context.Context, mgr manager.Manager, o *options, measurements *store.Store, s *state) error {
	policies := &policy.Holder{}
	resolver := profile.NewResolver(mgr, policies, o.namespace)
	if err := watch(ctx, mgr.GetCache()); err != nil {
		return err
	}
	if err := mgr.Add(everyReplica(s.waitForCaches(mgr.GetCache()))); err != nil {
		return fmt.Errorf("adding the readiness of caches: %w", err)
	}
	return serveAdmission(ctx, mgr, resolver, s)
}

func serveAdmission(ctx context.Context, mgr manager.Manager, resolver *profile.Resolver, s *state) error {
	nodes, err := admission.NewNodes(ctx, mgr.GetCache())
	if err != nil {
		return err
	}
	pods := &admission.Pods{Resolver: resolver, Cache: mgr.GetClient(), Synced: s.synced.Load, Nodes: nodes}
	m := admission.NewMetrics(metrics.Registry)
	log := ctrl.Log.WithName("admission")
	mgr.GetWebhookServer().Register(pathPods, admission.NewServer("pods", pods.Admit, m, log))
	mgr.GetWebhookServer().Register(pathPolicies, admission.NewServer("policies", admission.AdmitPolicy, m, log))
	return nil
}

// everyReplica is a Runnable that runs without being elected.
type everyReplica func(context.Context) error

func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }
func (everyReplica) NeedLeaderElection() bool          { return false }
