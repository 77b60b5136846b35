package policy

import (
	"cmp"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// scope holds the policies that compete for a pod, highest rank first, and finds
// the first match without trying each.
//
// A selector is a conjunction of questions about single attributes: the
// namespace, the owner's kind, one label, one annotation. For each attribute that
// any policy asks about, the set of policies content with a value is a bit set,
// computed once per value. A pod's candidates are the intersection of the sets of
// its values, taken word by word from the highest rank; only on those few the
// whole selector is tried.
type scope struct {
	policies    []*Policy
	namespaces  *attribute
	kinds       *attribute
	labels      map[string]*attribute
	annotations map[string]*attribute
	// anywhere holds the policies that need no label or annotation to be there.
	// Any other policy needs at least one and is filed under it (attribute.needed).
	anywhere bitset
}

func newScope(policies []*Policy) *scope {
	slices.SortFunc(policies, func(a, b *Policy) int {
		return cmp.Or(-cmp.Compare(a.compiled.Priority, b.compiled.Priority), cmp.Compare(a.Ref.Name, b.Ref.Name))
	})
	n := len(policies)
	s := &scope{
		policies:    policies,
		namespaces:  newAttribute(n, func(i int, v string) bool { return policies[i].compiled.selector.matchesNamespace(v) }),
		kinds:       newAttribute(n, func(i int, v string) bool { return policies[i].compiled.selector.matchesKind(v) }),
		labels:      map[string]*attribute{},
		annotations: map[string]*attribute{},
		anywhere:    newBitset(n),
	}
	for i, p := range policies {
		s.askers(i, &p.compiled.selector)
	}
	for i, p := range policies {
		s.file(i, &p.compiled.selector)
	}
	return s
}

// askers records which attributes policy i asks about.
func (s *scope) askers(i int, sel *selector) {
	if len(sel.include)+len(sel.exclude) > 0 {
		s.namespaces.asks.set(i)
	}
	if len(sel.kinds) > 0 {
		s.kinds.asks.set(i)
	}
	n := len(s.policies)
	for _, a := range sel.annotations {
		key := a.key
		if s.annotations[key] == nil {
			s.annotations[key] = newAttribute(n, func(i int, v string) bool {
				return s.policies[i].compiled.selector.annotationContent(key, v)
			})
		}
		s.annotations[key].asks.set(i)
	}
	requirements, _ := sel.labels.Requirements()
	for _, r := range requirements {
		key := r.Key()
		if s.labels[key] == nil {
			s.labels[key] = newAttribute(n, func(i int, v string) bool {
				return s.policies[i].compiled.selector.labelContent(key, v)
			})
		}
		s.labels[key].asks.set(i)
	}
}

// file puts policy i under the rarest attribute that must be there for it to match.
func (s *scope) file(i int, sel *selector) {
	var rarest *attribute
	consider := func(a *attribute) {
		if rarest == nil || a.asks.count() < rarest.asks.count() {
			rarest = a
		}
	}
	for _, a := range sel.annotations {
		consider(s.annotations[a.key])
	}
	requirements, _ := sel.labels.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals, selection.Exists:
			consider(s.labels[r.Key()])
		}
	}
	if rarest == nil {
		s.anywhere.set(i)
		return
	}
	rarest.needed.set(i)
}

// annotationContent reports whether the selector's question about one annotation is met by a value.
func (s *selector) annotationContent(key, value string) bool {
	for i := range s.annotations {
		if s.annotations[i].key == key && !s.annotations[i].value.match(value) {
			return false
		}
	}
	return true
}

// labelContent reports whether the selector's questions about one label are met by a value.
func (s *selector) labelContent(key, value string) bool {
	requirements, selectable := s.labels.Requirements()
	if !selectable {
		return false
	}
	set := labels.Set{key: value}
	for i := range requirements {
		if requirements[i].Key() == key && !requirements[i].Matches(set) {
			return false
		}
	}
	return true
}

// narrowing is what a pod's values leave of a scope's policies.
type narrowing struct {
	content [mostNarrowing]bitset
	needed  [mostNarrowing]bitset
	n       int
	more    bool // the pod has more attributes that policies ask about
}

// mostNarrowing bounds the attributes of a pod that narrow; the whole selector looks at the rest.
const mostNarrowing = 32

func (c *narrowing) add(a *attribute, value string) {
	if c.n == mostNarrowing {
		c.more = true
		return
	}
	c.content[c.n] = a.content(value)
	c.needed[c.n] = a.needed
	c.n++
}

func (c *narrowing) addAll(attributes map[string]*attribute, values map[string]string) {
	if len(attributes) < len(values) {
		for key, a := range attributes {
			if v, ok := values[key]; ok {
				c.add(a, v)
			}
		}
		return
	}
	for key, v := range values {
		if a := attributes[key]; a != nil {
			c.add(a, v)
		}
	}
}

// word returns 64 candidates, bit 0 the highest in rank.
func (c *narrowing) word(s *scope, w int) uint64 {
	present := s.anywhere[w]
	if c.more {
		present = ^uint64(0)
	}
	and := ^uint64(0)
	for i := range c.n {
		present |= c.needed[i][w]
		and &= c.content[i][w]
	}
	return present & and
}

// narrow returns what the input's values leave of the scope's policies.
func (s *scope) narrow(in *Input, c *narrowing) {
	c.add(s.namespaces, in.namespace)
	c.add(s.kinds, in.kind)
	c.addAll(s.labels, in.labels)
	c.addAll(s.annotations, in.annotations)
}

// next returns the rank of the first policy from one rank on that matches, -1 for none.
func (s *scope) next(in *Input, c *narrowing, from int) int {
	for w := from / 64; w < len(s.anywhere); w++ {
		candidates := c.word(s, w)
		if w == from/64 {
			candidates &= ^uint64(0) << (from % 64)
		}
		for ; candidates != 0; candidates &= candidates - 1 {
			i := w*64 + bits.TrailingZeros64(candidates)
			if i >= len(s.policies) {
				break
			}
			if s.policies[i].compiled.selector.matches(in) {
				return i
			}
		}
	}
	return -1
}

// first returns the highest-ranking policy that matches, nil when none does.
func (s *scope) first(in *Input) *Policy {
	if s == nil || len(s.policies) == 0 {
		return nil
	}
	var c narrowing
	s.narrow(in, &c)
	if i := s.next(in, &c, 0); i >= 0 {
		return s.policies[i]
	}
	return nil
}

// equals returns the highest-ranking policy that matches and all of its
// priority that do, by name; nil when it is the only one.
func (s *scope) equals(in *Input) []*Policy {
	if s == nil || len(s.policies) == 0 {
		return nil
	}
	var c narrowing
	s.narrow(in, &c)
	var out []*Policy
	for i := s.next(in, &c, 0); i >= 0; i = s.next(in, &c, i+1) {
		p := s.policies[i]
		if len(out) > 0 && p.compiled.Priority != out[0].compiled.Priority {
			break
		}
		out = append(out, p)
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

// tied reports whether two policies have the same priority.
func (s *scope) tied() bool {
	for i := 1; i < len(s.policies); i++ {
		if s.policies[i].compiled.Priority == s.policies[i-1].compiled.Priority {
			return true
		}
	}
	return false
}
