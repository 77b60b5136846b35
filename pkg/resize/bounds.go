package resize

import (
	corev1 "k8s.io/api/core/v1"
)

// bound narrows every value to what LimitRanges and the node allow, and moves
// its target within: to the minimum first, so that a maximum has the last word.
func bound(pairs []*pair, b Bounds) {
	for _, p := range pairs {
		for i := range b.LimitRanges {
			for _, item := range b.LimitRanges[i].Spec.Limits {
				if item.Type == corev1.LimitTypeContainer {
					p.limitRange(item)
				}
			}
		}
		node := amountIn(b.Allocatable, p.res)
		for _, v := range p.values() {
			v.cap(node, ReasonNode)
			v.bound()
		}
		p.orderTargets()
	}
}

func (p *pair) limitRange(item corev1.LimitRangeItem) {
	p.lrMin = max(p.lrMin, amountIn(item.Min, p.res))
	if n := amountIn(item.Max, p.res); n != unset {
		p.lrMax = min(p.lrMax, n)
		p.req.cap(n, ReasonLimitRange)
		p.lim.cap(n, ReasonLimitRange)
	}
	if q, ok := item.MaxLimitRequestRatio[p.res]; ok {
		if r := q.MilliValue(); r > 0 && (p.ratio == 0 || r < p.ratio) {
			p.ratio = r
		}
	}
}

func (v *value) cap(n int64, r Reason) {
	if n != unset && n < v.hi {
		v.hi, v.capReason = n, r
	}
}

func (v *value) bound() {
	if !v.managed {
		return
	}
	v.reason = ReasonRecommended
	if v.target < v.lo {
		v.target, v.reason = v.lo, ReasonPolicyBound
	}
	if v.target > v.hi {
		v.target, v.reason = v.hi, v.capReason
	}
}

// orderTargets lowers a request's target to where the limit will be.
func (p *pair) orderTargets() {
	lim := p.lim.was
	if p.lim.managed {
		lim = p.lim.target
	}
	if p.req.managed && lim != unset && p.req.target > lim {
		p.req.target, p.req.reason = lim, ReasonLimit
	}
}

// settle makes a container's values agree with each other: what a LimitRange
// allows, request ≤ limit, the limit-to-request ratio. What cannot be made to
// agree stays as it was.
func (p *pair) settle() {
	for _, v := range p.values() {
		if !v.changed() {
			continue
		}
		if v.now > p.lrMax {
			v.move(p.lrMax, ReasonLimitRange)
		}
		if v.now < p.lrMin {
			v.move(p.lrMin, ReasonLimitRange)
		}
	}
	if p.req.target != unset && p.req.now == unset && p.lim.changed() {
		// The API server would copy the limit to the request.
		p.lim.keep(p.req.reason, "the request is not set")
	}
	if p.req.now == unset && p.lim.now > max(p.lim.was, p.req.hi) {
		p.lim.keep(p.req.capReason, "the request it makes would be too much")
	}
	p.order()
	p.limitRatio()
	for _, v := range p.values() {
		if v.changed() && !p.within(v) {
			v.keep(v.boundReason(p), "no value keeps within every bound")
		}
	}
	p.order()
	if p.req.now != unset && p.lim.now != unset && p.req.now > p.lim.now {
		p.revert(ReasonLimit, "request and limit cannot be made to agree")
	}
	if !p.ratioHolds() {
		p.revert(ReasonLimitRange, "no value keeps the LimitRange's ratio of limit to request")
	}
}

// within reports whether a changed value keeps its bounds. A running pod may
// be on its way down to the policy's or the node's maximum; a LimitRange
// allows no value above its own.
func (p *pair) within(v *value) bool {
	if v.now > p.lrMax || v.now < p.lrMin {
		return false
	}
	if v.now < v.was {
		return v.now >= v.floor
	}
	return v.now <= v.hi
}

func (v *value) boundReason(p *pair) Reason {
	switch {
	case v.now > p.lrMax || v.now < p.lrMin:
		return ReasonLimitRange
	case v.now < v.was:
		return ReasonLiveUsage
	}
	return v.capReason
}

// order keeps request ≤ limit: a request gives way to the limit, and a limit
// that is lowered stops at a request that may not move.
func (p *pair) order() {
	req, lim := &p.req, &p.lim
	if req.now == unset || lim.now == unset || req.now <= lim.now {
		return
	}
	switch {
	case req.managed:
		req.move(lim.now, ReasonLimit)
	case lim.managed && lim.changed():
		lim.move(req.now, ReasonRequest)
	}
}

func (p *pair) ratioHolds() bool {
	if p.ratio == 0 || !p.req.changed() && !p.lim.changed() || p.lim.now == unset || p.request(false) <= 0 {
		return true
	}
	return withinRatio(p.lim.now, p.request(false), p.ratio)
}

// limitRatio raises a request that lies too far below its limit: lowering the
// limit instead could hurt.
func (p *pair) limitRatio() {
	if p.ratioHolds() {
		return
	}
	need := requestFor(p.lim.now, p.ratio)
	if need <= p.req.hi && need <= p.lim.now && p.req.managed {
		p.req.move(need, ReasonLimitRange)
		return
	}
	if fit := limitFor(p.request(false), p.ratio); p.lim.managed && fit >= max(p.lim.lo, p.lim.floor) {
		p.lim.move(fit, ReasonLimitRange)
	}
}

func (p *pair) revert(r Reason, message string) {
	for _, v := range p.values() {
		if v.changed() {
			v.keep(r, "%s", message)
		}
	}
}
