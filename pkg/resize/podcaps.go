package resize

import (
	"math"

	corev1 "k8s.io/api/core/v1"

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
	pod   *corev1.Pod
	pairs []*pair
}

// total returns the pod's request or limit of a resource as the scheduler and
// quotas count it, before (was) or after the changes.
func (l podLayout) total(res corev1.ResourceName, f v1alpha1.ResourceField, was bool) int64 {
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
	var running, peak int64
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
	sum := max(running, peak)
	if f == v1alpha1.FieldRequest {
		sum += max(0, amountIn(l.pod.Spec.Overhead, res))
	}
	return sum
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
					podCap{res, v1alpha1.FieldRequest, amount(res, q), ReasonLimitRange},
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
// proportion to its growth, and takes all growth back if that is not enough.
func (l podLayout) hold(c podCap) {
	excess := l.total(c.res, c.field, false) - c.max
	if excess <= 0 {
		return
	}
	grown := l.grown(c)
	var sum int64
	for _, v := range grown {
		sum += v.now - max(0, v.was)
	}
	for _, v := range grown {
		inc := v.now - max(0, v.was)
		cut := min(inc, int64(math.Ceil(float64(inc)/float64(sum)*float64(excess))))
		if to := v.now - cut; to > v.was && to >= min(v.lo, v.now) && to > 0 {
			v.move(to, c.reason)
		} else {
			v.keep(c.reason, "no room for more")
		}
	}
	if l.total(c.res, c.field, false) > c.max {
		for _, v := range l.grown(c) {
			v.keep(c.reason, "no room for more")
		}
	}
}

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
