package policy

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// selector is a compiled v1alpha1.Selector; all given parts must match.
type selector struct {
	kinds       []string
	include     []pattern
	exclude     []pattern
	annotations []annotation // sorted by key
	labels      labels.Selector
}

type annotation struct {
	key   string
	value pattern
}

func (p *parser) selector(path *field.Path, s v1alpha1.Selector) selector {
	out := selector{kinds: s.Kinds, labels: labels.Everything()}
	if ns := s.Namespaces; ns != nil {
		out.include = p.namespaces(path.Child("namespaces", "include"), ns.Include)
		out.exclude = p.namespaces(path.Child("namespaces", "exclude"), ns.Exclude)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		at := path.Child("annotations").Key(key)
		for _, msg := range validation.IsQualifiedName(key) {
			p.invalid(at, key, "the annotation key can match no pod: "+msg)
		}
		out.annotations = append(out.annotations, annotation{key: key, value: p.pattern(at, s.Annotations[key])})
	}
	if s.LabelSelector != nil {
		out.labels = p.labelSelector(path.Child("labelSelector"), s.LabelSelector)
	}
	return out
}

func (p *parser) pattern(path *field.Path, v v1alpha1.Pattern) pattern {
	c, err := compilePattern(v)
	if err != nil {
		p.invalid(path, string(v), err.Error())
	}
	return c
}

func (p *parser) namespaces(path *field.Path, vs []v1alpha1.Pattern) []pattern {
	out := make([]pattern, 0, len(vs))
	for i, v := range vs {
		if !isRegex(v) && len(validation.IsDNS1123Label(string(v))) > 0 {
			p.invalid(path.Index(i), string(v),
				"can match no namespace: write a namespace's name, or a regular expression between slashes such as \"/shop-.*/\"")
		}
		out = append(out, p.pattern(path.Index(i), v))
	}
	return out
}

func (p *parser) labelSelector(path *field.Path, s *metav1.LabelSelector) labels.Selector {
	before := len(p.errs)
	p.errs = append(p.errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)...)
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		if len(p.errs) == before {
			p.invalid(path, s.String(), err.Error())
		}
		return labels.Nothing()
	}
	return out
}

func (s *selector) matchesNamespace(namespace string) bool {
	return (len(s.include) == 0 || matchAny(s.include, namespace)) && !matchAny(s.exclude, namespace)
}

func (s *selector) matchesKind(kind string) bool {
	return len(s.kinds) == 0 || slices.Contains(s.kinds, kind)
}

func (s *selector) matchesAttributes(in *Input) bool {
	for i := range s.annotations {
		v, ok := in.annotations[s.annotations[i].key]
		if !ok || !s.annotations[i].value.match(v) {
			return false
		}
	}
	return s.labels.Matches(labels.Set(in.labels))
}

// matches is the selector's whole meaning; what the index does beside it only
// leaves out policies that cannot match.
func (s *selector) matches(in *Input) bool {
	return in.whole && s.matchesKind(in.kind) && s.matchesNamespace(in.namespace) && s.matchesAttributes(in)
}
