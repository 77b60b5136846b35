package policy

import (
	"cmp"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Index answers which policy governs a pod. It is immutable and safe for
// concurrent use; a change of policies makes a new one.
type Index struct {
	namespaced map[string]*scope // ResourcePolicies by their namespace
	cluster    *scope
	byRef      map[v1alpha1.PolicyReference]*Policy
	broken     []Broken
}

// NewIndex compiles the policies. One that does not compile is left out and
// reported by Broken; it changes no other policy's answers.
func NewIndex(rps []v1alpha1.ResourcePolicy, crps []v1alpha1.ClusterResourcePolicy) *Index {
	x := &Index{
		namespaced: map[string]*scope{},
		byRef:      make(map[v1alpha1.PolicyReference]*Policy, len(rps)+len(crps)),
	}
	byNamespace := map[string][]*Policy{}
	for i := range rps {
		ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: rps[i].Namespace, Name: rps[i].Name}
		if p := x.add(ref, &rps[i].ObjectMeta, rps[i].Spec); p != nil {
			byNamespace[ref.Namespace] = append(byNamespace[ref.Namespace], p)
		}
	}
	var cluster []*Policy
	for i := range crps {
		ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: crps[i].Name}
		if p := x.add(ref, &crps[i].ObjectMeta, crps[i].Spec); p != nil {
			cluster = append(cluster, p)
		}
	}
	for namespace, policies := range byNamespace {
		x.namespaced[namespace] = newScope(policies)
	}
	x.cluster = newScope(cluster)
	slices.SortFunc(x.broken, func(a, b Broken) int {
		return cmp.Or(cmp.Compare(a.Ref.Kind, b.Ref.Kind), cmp.Compare(a.Ref.Namespace, b.Ref.Namespace), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	return x
}

func (x *Index) add(ref v1alpha1.PolicyReference, meta *metav1.ObjectMeta, spec v1alpha1.ResourcePolicySpec) *Policy {
	c, err := Compile(spec)
	if err != nil {
		x.broken = append(x.broken, Broken{Ref: ref, UID: meta.UID, Generation: meta.Generation, Err: err})
		return nil
	}
	p := &Policy{Ref: ref, UID: meta.UID, Generation: meta.Generation, Settings: c.Settings, compiled: c}
	x.byRef[ref] = p
	return p
}

// Resolve returns the policy that governs a pod: the first, by rank, of the
// ResourcePolicies of the pod's namespace that match, else of the
// ClusterResourcePolicies. An input without a namespace matches no ResourcePolicy.
func (x *Index) Resolve(in Input) (*Policy, bool) {
	if x == nil || !in.whole {
		return nil, false
	}
	if in.namespace != "" {
		if p := x.namespaced[in.namespace].first(&in); p != nil {
			return p, true
		}
	}
	p := x.cluster.first(&in)
	return p, p != nil
}

// Overlaps returns the governing policy and every other of its scope and
// priority that matches the pod too, so that only the name decided; nil when
// rank alone decided.
func (x *Index) Overlaps(in Input) []*Policy {
	winner, ok := x.Resolve(in)
	if !ok {
		return nil
	}
	if winner.Ref.Kind == v1alpha1.KindResourcePolicy {
		return x.namespaced[winner.Ref.Namespace].equals(&in)
	}
	return x.cluster.equals(&in)
}

// RescopedFrom reports whether the index can answer differently from another about
// which policy governs a pod: a policy came, went, or changed in selector or
// priority. All else a policy says is read from it when it is needed.
func (x *Index) RescopedFrom(other *Index) bool {
	if x == nil || other == nil {
		return x != other
	}
	if len(x.byRef) != len(other.byRef) {
		return true
	}
	for ref, p := range x.byRef {
		q, ok := other.byRef[ref]
		if !ok || p.compiled.Priority != q.compiled.Priority || !equality.Semantic.DeepEqual(p.compiled.spec, q.compiled.spec) {
			return true
		}
	}
	return false
}

// Tied reports whether any two policies of one scope have the same priority, so
// that they may overlap.
func (x *Index) Tied() bool {
	if x == nil {
		return false
	}
	if x.cluster.tied() {
		return true
	}
	for _, s := range x.namespaced {
		if s.tied() {
			return true
		}
	}
	return false
}

// Load returns the policy of a reference recorded earlier; false when there is
// none or it does not compile.
func (x *Index) Load(ref v1alpha1.PolicyReference) (*Policy, bool) {
	if x == nil {
		return nil, false
	}
	p, ok := x.byRef[ref]
	return p, ok
}

// Broken returns the policies that do not compile, sorted by reference.
func (x *Index) Broken() []Broken {
	if x == nil {
		return nil
	}
	return x.broken
}

// Policies returns every policy that compiles, in no particular order.
func (x *Index) Policies() []*Policy {
	if x == nil {
		return nil
	}
	out := make([]*Policy, 0, len(x.byRef))
	for _, p := range x.byRef {
		out = append(out, p)
	}
	return out
}

// Holder hands the current Index from the one that maintains it to everyone who
// asks. The zero Holder holds none: Get returns nil until the first Set.
type Holder struct {
	current atomic.Pointer[Index]
}

// Get returns the current index, nil before the first Set. A nil Index governs
// nothing; whoever acts on an answer waits until there is one.
func (h *Holder) Get() *Index { return h.current.Load() }

// Set replaces the index.
func (h *Holder) Set(x *Index) { h.current.Store(x) }
