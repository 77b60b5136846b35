package profile

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// Resolver answers everything about a pod's identity, the same at admission and
// in the controllers: is it enrolled, which policy governs it, which profile is its own.
type Resolver struct {
	Policies     *policy.Holder
	Owners       *Owners
	Reader       client.Reader // cached: namespaces' metadata, the PlimsollConfig
	Live         client.Reader // not cached: for a namespace made a moment ago
	OwnNamespace string        // Plimsoll's own; empty outside a cluster

	hadConfig atomic.Bool // a PlimsollConfig was there when it was last asked for
}

// Answer is what a Resolver says about a pod.
type Answer struct {
	Mode   v1alpha1.Mode
	Reason profile.Reason // why in that mode, or why not enrolled
	// Labels to change so that the pod's copy of the namespace's mode is right.
	Labels map[string]*string

	// Known is false when the governing policy cannot be told yet: the owner or
	// the policies have not been seen. The fields below are then empty.
	Known  bool
	Policy *policy.Policy // nil when no policy governs
	Key    profile.Key
	Kind   string // of the top-level owner
	Owner  string // the top-level owner's name
}

// Ref returns the governing policy's reference, zero when none governs.
func (a Answer) Ref() v1alpha1.PolicyReference {
	if a.Policy == nil {
		return v1alpha1.PolicyReference{}
	}
	return a.Policy.Ref
}

// Stamps returns the two annotations that record the answer on the pod.
func (a Answer) Stamps() map[string]string {
	return map[string]string{
		v1alpha1.AnnotationPolicyRef:  profile.FormatRef(a.Ref()),
		v1alpha1.AnnotationProfileRef: a.Key.Name(),
	}
}

// Resolve answers about a pod that lives, or is to be created, in the
// namespace. A pod that is not enrolled gets no more than its mode and reason.
func (r *Resolver) Resolve(ctx context.Context, pod *corev1.Pod, namespace string) (Answer, error) {
	site, err := r.Site(ctx, pod, namespace)
	if err != nil {
		return Answer{Mode: v1alpha1.ModeOff}, err
	}
	mode, reason := profile.Enrolment(pod, site)
	a := Answer{Mode: mode, Reason: reason, Labels: profile.ModeLabels(pod, site)}
	if mode == v1alpha1.ModeOff {
		return a, nil
	}
	index := r.Policies.Get()
	kind, name, known, err := r.Owners.Top(ctx, pod, namespace)
	if err != nil {
		return a, err
	}
	a.Kind, a.Owner = kind, name
	if index == nil {
		return a, nil
	}
	a.Policy, _ = index.Resolve(policy.NewInput(pod, namespace, kind))
	a.Key = profile.KeyOf(pod.Labels, site.IdentityLabels, a.Ref())
	a.Known = known
	return a, nil
}

// Site gathers what enrolment depends on beside the pod, which may be nil.
func (r *Resolver) Site(ctx context.Context, pod *corev1.Pod, namespace string) (profile.Site, error) {
	config, err := r.Config(ctx)
	if err != nil {
		return profile.Site{}, err
	}
	labels, err := r.namespaceLabels(ctx, pod, namespace)
	if err != nil {
		return profile.Site{}, err
	}
	return profile.Site{
		Namespace:       namespace,
		NamespaceLabels: labels,
		OwnNamespace:    r.OwnNamespace,
		IdentityLabels:  profile.IdentityLabels(config),
	}, nil
}

// namespaceLabels asks the API server about a namespace that is not in the cache
// (yet), and about one whose mode is missing there though nothing but it can
// enrol the pod: a pod comes to admission only if the pod or its namespace has a mode.
func (r *Resolver) namespaceLabels(ctx context.Context, pod *corev1.Pod, namespace string) (map[string]string, error) {
	if namespace == "" {
		return nil, nil
	}
	key := types.NamespacedName{Name: namespace}
	ns := namespaceMetadata()
	err := r.Reader.Get(ctx, key, ns)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	_, has := ns.Labels[v1alpha1.LabelMode]
	if err == nil && (has || pod == nil || profile.OwnMode(pod)) {
		return ns.Labels, nil
	}
	ns = namespaceMetadata()
	if err := r.Live.Get(ctx, key, ns); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading namespace %s from the API server: %w", namespace, err)
	}
	return ns.Labels, nil
}

// Config returns the spec of the PlimsollConfig, empty when there is none. One
// that was there and has left the cache is looked for at the API server: without
// its identity labels every pod would change its profile.
func (r *Resolver) Config(ctx context.Context) (v1alpha1.PlimsollConfigSpec, error) {
	config, err := Config(ctx, r.Reader)
	if err == nil && config.Name == "" && r.hadConfig.Load() {
		config, err = Config(ctx, r.Live)
	}
	if err != nil {
		return v1alpha1.PlimsollConfigSpec{}, err
	}
	r.hadConfig.Store(config.Name != "")
	return config.Spec, nil
}

// Config returns the PlimsollConfig, a nameless one without settings when there is none.
func Config(ctx context.Context, reader client.Reader) (*v1alpha1.PlimsollConfig, error) {
	config := &v1alpha1.PlimsollConfig{}
	err := reader.Get(ctx, types.NamespacedName{Name: v1alpha1.ConfigName}, config)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading PlimsollConfig %s: %w", v1alpha1.ConfigName, err)
	}
	return config, nil
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	return metadataOf(corev1.SchemeGroupVersion.WithKind("Namespace"))
}
