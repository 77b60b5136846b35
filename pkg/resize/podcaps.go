package resize

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// podCap bounds the sum of a field over a pod.
type podCap struct {
	res    corev1.ResourceName
	field  v1alpha1.ResourceField
	max    int64
	reason Reason
}

// podLayout knows how a pod's containers add up: init containers run one after
// another, beside the restartable ones before them.
type podLayout struct {
	pod    *corev1.Pod
	pairs  []*pair
	ranges []podRange
}

// total returns the pod's request or limit of a resource as the scheduler and
// quotas count it, before (was) or after the changes.
func (l podLayout) total(res corev1.ResourceName, f v1alpha1.ResourceField, was bool) int64 {
	return l.sum(res, f, was) + l.overhead(res, f)
}

// overhead is what the pod's sandbox adds; LimitRanges leave it out.
func (l podLayout) overhead(res corev1.ResourceName, f v1alpha1.ResourceField) int64 {
	if f == v1alpha1.FieldRequest {
		return max(0, amountIn(l.pod.Spec.Overhead, res))
	}
	return 0
}

// sum returns what the pod's containers add up to.
func (l podLayout) sum(res corev1.ResourceName, f v1alpha1.ResourceField, was bool) int64 {
	running, peak := l.parts(res, f, was)
	return max(running, peak)
}

// parts returns what runs as long as the pod, and the most while it starts.
func (l podLayout) parts(res corev1.ResourceName, f v1alpha1.ResourceField, was bool) (running, peak int64) {
	of := func(c *corev1.Container) int64 {
		for _, p := range l.pairs {
			if p.ctr == c && p.res == res {
				if f == v1alpha1.FieldLimit {
					return max(0, p.limit(was))
				}
				return max(0, p.request(was))
			}
		}
		v := newValue(c, res, f).was
		if v == unset && f == v1alpha1.FieldRequest {
			v = newValue(c, res, v1alpha1.FieldLimit).was
		}
		return max(0, v)
	}
	for i := range l.pod.Spec.InitContainers {
		c := &l.pod.Spec.InitContainers[i]
		if restartable(c) {
			running += of(c)
			peak = max(peak, running)
			continue
		}
		peak = max(peak, running+of(c))
	}
	for i := range l.pod.Spec.Containers {
		running += of(&l.pod.Spec.Containers[i])
	}
	return running, peak
}

// caps returns everything that bounds the pod as a whole. A quota and a node
// have room for what the pod counts for already, when it is running, and more.
func (l podLayout) caps(b Bounds, node *Node) []podCap {
	var caps []podCap
	for i := range b.LimitRanges {
		for _, item := range b.LimitRanges[i].Spec.Limits {
			if item.Type != corev1.LimitTypePod {
				continue
			}
			for res, q := range item.Max {
				caps = append(caps,
					podCap{res, v1alpha1.FieldRequest, amount(res, q) + l.overhead(res, v1alpha1.FieldRequest), ReasonLimitRange},
					podCap{res, v1alpha1.FieldLimit, amount(res, q), ReasonLimitRange})
			}
		}
	}
	for res, q := range b.Allocatable {
		caps = append(caps, podCap{res, v1alpha1.FieldRequest, amount(res, q), ReasonNode})
	}
	caps = append(caps, l.quotaCaps(b.Quotas, node != nil)...)
	if node != nil {
		for res, q := range node.Requested {
			alloc := amountIn(b.Allocatable, res)
			if alloc == unset {
				continue
			}
			free := max(0, alloc-amount(res, q))
			caps = append(caps, podCap{res, v1alpha1.FieldRequest, l.total(res, v1alpha1.FieldRequest, true) + free, ReasonNodeFree})
		}
	}
	return caps
}

// hold shrinks what grows until the pod keeps within the cap, each value in
// proportion to its growth, and takes all growth back if that is not enough. A
// limit that the API server copies to an unset request is set whole or not at
// all: the request it makes could not be told from one that was asked for.
func (l podLayout) hold(c podCap) {
	for {
		excess := l.total(c.res, c.field, false) - c.max
		grown := l.grown(c)
		if excess <= 0 || len(grown) == 0 {
			return
		}
		var sum int64
		for _, v := range grown {
			sum += v.growth()
		}
		smaller := make([]int64, len(grown))
		fit := true
		for i, v := range grown {
			cut := int64(math.Ceil(float64(v.growth()) / float64(sum) * float64(excess)))
			smaller[i] = v.now - min(cut, v.growth())
			if smaller[i] <= max(0, v.was) || smaller[i] < v.lo || v.Field.Field != c.field {
				v.keep(c.reason, "no room for more")
				fit = false // and leaves its room to the others
			}
		}
		if fit {
			for i, v := range grown {
				v.move(smaller[i], c.reason)
			}
			if l.total(c.res, c.field, false) > c.max { // init containers decide the sum
				for _, v := range grown {
					v.keep(c.reason, "no room for more")
				}
			}
			return
		}
	}
}

func (v *value) growth() int64 { return v.now - max(0, v.was) }

// grown returns the values of a cap's field that are raised; a limit that
// stands for an unset request counts as both.
func (l podLayout) grown(c podCap) []*value {
	var out []*value
	for _, p := range l.pairs {
		if p.res != c.res {
			continue
		}
		v := &p.req
		if c.field == v1alpha1.FieldLimit || v.now == unset {
			v = &p.lim
		}
		if v.now > v.was {
			out = append(out, v)
		}
	}
	return out
}

// Requested returns what a pod requests of a resource, as the scheduler counts it.
func Requested(pod *corev1.Pod, res corev1.ResourceName) resource.Quantity {
	return quantity(res, podLayout{pod: pod}.total(res, v1alpha1.FieldRequest, true))
}
