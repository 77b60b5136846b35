package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// policies keeps what the agent needs of policies and of the configuration. It loads what is recorded and resolves
// nothing. It is safe for concurrent use.
type policies struct {
	mu       sync.RWMutex
	sampling map[v1alpha1.PolicyReference]policy.Sampling
	identity []string
	known    bool // the configuration, or that there is none
	version  uint64
	defaults policy.Sampling
}

// newPolicies returns policies that know none yet; interval and flush hold where a policy does not say.
func newPolicies(interval, flush time.Duration) *policies {
	p := &policies{
		sampling: map[v1alpha1.PolicyReference]policy.Sampling{},
		identity: profile.IdentityLabels(v1alpha1.PlimsollConfigSpec{}),
		defaults: policy.DefaultSettings().Sampling,
	}
	p.defaults.Interval, p.defaults.Flush = interval, flush
	return p
}

// Sampling implements collect.Policies. A policy that is not there, or not yet, samples by the defaults.
func (p *policies) Sampling(policyRef string) policy.Sampling {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ref, err := profile.ParseRef(policyRef)
	if err != nil {
		return p.defaults
	}
	if s, ok := p.sampling[ref]; ok {
		return s
	}
	return p.defaults
}

// Hash implements collect.Policies.
func (p *policies) Hash(labels map[string]string, policyRef string) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	ref, err := profile.ParseRef(policyRef)
	if err != nil || !p.known {
		return ""
	}
	key := profile.KeyOf(labels, p.identity, ref)
	if !key.Identified() {
		return ""
	}
	return key.MeasurementHash()
}

// Version implements collect.Policies.
func (p *policies) Version() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version
}

// watch keeps the policies current from a cache.
func (p *policies) watch(ctx context.Context, c cache.Informers) error {
	for _, object := range []client.Object{&v1alpha1.ResourcePolicy{}, &v1alpha1.ClusterResourcePolicy{}, &v1alpha1.PlimsollConfig{}} {
		informer, err := c.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    p.set,
			UpdateFunc: func(_, object any) { p.set(object) },
			DeleteFunc: p.delete,
		})
		if err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
		if _, ok := object.(*v1alpha1.PlimsollConfig); ok {
			go p.awaitConfig(ctx, registration)
		}
	}
	return nil
}

// awaitConfig waits until it is known whether there is a configuration: until then no hash may be made, for it could be
// another workload's.
func (p *policies) awaitConfig(ctx context.Context, registration toolscache.ResourceEventHandlerRegistration) {
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
	p.version++
}

func (p *policies) set(object any) {
	switch o := object.(type) {
	case *v1alpha1.ResourcePolicy:
		p.setPolicy(v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: o.Namespace, Name: o.Name}, o.Spec)
	case *v1alpha1.ClusterResourcePolicy:
		p.setPolicy(v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: o.Name}, o.Spec)
	case *v1alpha1.PlimsollConfig:
		p.setConfig(o, o.Spec)
	}
}

func (p *policies) setPolicy(ref v1alpha1.PolicyReference, spec v1alpha1.ResourcePolicySpec) {
	// A field that is wrong has its default in the settings; the webhook reports it on the policy.
	settings, _ := policy.SettingsOf(spec)
	sampling := settings.Sampling
	if spec.Sampling == nil || spec.Sampling.Interval == nil {
		sampling.Interval = p.defaults.Interval
	}
	if spec.Sampling == nil || spec.Sampling.Flush == nil {
		sampling.Flush = p.defaults.Flush
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.sampling[ref]; ok && old == sampling {
		return
	}
	p.sampling[ref] = sampling
	p.version++
}

func (p *policies) setConfig(object client.Object, spec v1alpha1.PlimsollConfigSpec) {
	if object.GetName() != v1alpha1.ConfigName {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.identity = profile.IdentityLabels(spec)
	p.version++
}

func (p *policies) delete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch o := object.(type) {
	case *v1alpha1.ResourcePolicy:
		delete(p.sampling, v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: o.Namespace, Name: o.Name})
	case *v1alpha1.ClusterResourcePolicy:
		delete(p.sampling, v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: o.Name})
	case *v1alpha1.PlimsollConfig:
		if o.Name == v1alpha1.ConfigName {
			p.identity = profile.IdentityLabels(v1alpha1.PlimsollConfigSpec{})
		}
	}
	p.version++
}
