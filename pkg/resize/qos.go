package resize

import (
	corev1 "k8s.io/api/core/v1"
)

// Class returns the quality-of-service class that a pod's resources give it,
// as the API server computes it from cpu and memory of all its containers.
func Class(pod *corev1.Pod) corev1.PodQOSClass {
	return podLayout{pod: pod}.class(false)
}

var qosResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// class returns the pod's class before (was) or after the changes.
func (l podLayout) class(was bool) corev1.PodQOSClass {
	some, guaranteed := false, true
	add := func(c *corev1.Container) {
		for _, res := range qosResources {
			req, lim := l.effective(c, res, was)
			some = some || req > 0 || lim > 0
			guaranteed = guaranteed && lim > 0 && req == lim
		}
	}
	for i := range l.pod.Spec.InitContainers {
		add(&l.pod.Spec.InitContainers[i])
	}
	for i := range l.pod.Spec.Containers {
		add(&l.pod.Spec.Containers[i])
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func (l podLayout) effective(c *corev1.Container, res corev1.ResourceName, was bool) (req, lim int64) {
	for _, p := range l.pairs {
		if p.ctr == c && p.res == res {
			return p.request(was), p.limit(was)
		}
	}
	req, lim = newValue(c, res, "request").was, newValue(c, res, "limit").was
	if req == unset {
		req = lim
	}
	return req, lim
}

// link ties the request and the limit of a Guaranteed pod together: they move
// to the larger of their targets, or, if the policy does not set both, not at all.
func link(pairs []*pair) {
	for _, p := range pairs {
		if p.res == corev1.ResourceEphemeralStorage || !p.req.managed && !p.lim.managed {
			continue
		}
		if !p.req.managed || !p.lim.managed {
			for _, v := range p.values() {
				if v.managed {
					v.keep(ReasonQoS, "the pod is Guaranteed and only one of request and limit may change")
				}
			}
			continue
		}
		hi := min(p.req.hi, p.lim.hi)
		t := min(max(p.req.target, p.lim.target), hi)
		p.req.target, p.lim.target = t, t
		p.req.hi, p.lim.hi = hi, hi
	}
}

// relink sets both values of a Guaranteed pair to the one that changes less,
// after a bound has held back one of them.
func (p *pair) relink() {
	if p.res == corev1.ResourceEphemeralStorage || p.req.now == p.lim.now {
		return
	}
	less, more := &p.req, &p.lim
	if distance(p.lim.now, p.lim.was) < distance(p.req.now, p.req.was) {
		less, more = more, less
	}
	if less.changed() {
		more.move(less.now, less.reason)
	} else {
		more.keep(less.reason, "%s", less.message)
	}
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// keepBurstable keeps a pod from becoming Guaranteed because every request
// happens to meet its limit: it lowers a request, or else raises a limit, by
// one millicore or byte; the one that differs already, if there is one. It
// reports failure.
func (l podLayout) keepBurstable() bool {
	if l.class(false) != corev1.PodQOSGuaranteed {
		return true
	}
	for _, already := range []bool{true, false} {
		for _, p := range l.pairs {
			if l.nudge(p, &p.req, -1, max(1, p.req.lo, p.req.floor, p.lrMin), already) {
				return true
			}
		}
		for _, p := range l.pairs {
			if l.nudge(p, &p.lim, 1, p.lim.hi, already) {
				return true
			}
		}
	}
	return false
}

// nudge moves a value by one unit if it is not at its bound, and takes it back
// if that does not help. With already it moves only back to what the value was.
func (l podLayout) nudge(p *pair, v *value, by, bound int64, already bool) bool {
	if p.res == corev1.ResourceEphemeralStorage || !v.managed || v.now == unset || (v.now-bound)*by >= 0 || already && v.now+by != v.was {
		return false
	}
	before := *v
	v.move(v.now+by, ReasonQoS)
	if p.ratioHolds() && l.class(false) != corev1.PodQOSGuaranteed && l.keepsAll(p.res) {
		return true
	}
	*v = before
	return false
}
