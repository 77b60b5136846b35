package policy

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Compiled is a policy's spec, read once: whom it governs, how it ranks, what it says.
type Compiled struct {
	Priority int32
	Settings Settings
	selector selector
	spec     v1alpha1.Selector // as it was written, to tell whether it changed
}

// Matches reports whether the selector matches; scope and rank are the Index's business.
func (c *Compiled) Matches(in Input) bool { return c.selector.matches(&in) }

// Compile reads a policy's spec. The error names every field that is wrong.
func Compile(spec v1alpha1.ResourcePolicySpec) (*Compiled, error) {
	c, errs := compile(spec)
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return c, nil
}

// Validate returns what is wrong with a policy's spec, by field: all that the
// CRD refuses and what it cannot see, such as an expression that does not compile.
func Validate(spec v1alpha1.ResourcePolicySpec) field.ErrorList {
	_, errs := compile(spec)
	return errs
}

const mostPriority = 1_000_000

func compile(spec v1alpha1.ResourcePolicySpec) (*Compiled, field.ErrorList) {
	var p parser
	root := field.NewPath("spec")
	c := &Compiled{
		Priority: orZero(spec.Priority),
		spec:     *spec.Selector.DeepCopy(),
		selector: p.selector(root.Child("selector"), spec.Selector),
		Settings: p.settings(root, spec),
	}
	if c.Priority < -mostPriority || c.Priority > mostPriority {
		p.invalid(root.Child("priority"), c.Priority, "must lie between -1000000 and 1000000")
	}
	return c, p.errs
}

// Policy is what the index knows about a policy that compiles.
type Policy struct {
	Ref        v1alpha1.PolicyReference
	UID        types.UID
	Generation int64
	Settings   Settings

	compiled *Compiled
}

// Broken is a policy that does not compile: it governs nothing until it is corrected.
type Broken struct {
	Ref        v1alpha1.PolicyReference
	UID        types.UID
	Generation int64
	Err        error // names the fields
}
