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
	}
}

func (p *pair) limitRange(item corev1.LimitRangeItem) {
	p.lrMin = max(p.lrMin, amountIn(item.Min, p.res))
	for _, v := range p.values() {
		v.cap(amountIn(item.Max, p.res), ReasonLimitRange)
	}
	if q, ok := item.MaxLimitRequestRatio[p.res]; ok {
		if r := q.AsApproximateFloat64(); r > 0 && (p.ratio == 0 || r < p.ratio) {
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
	if v.target == unset {
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

// settle makes a container's values agree with each other: the LimitRange's
// minimum, request ≤ limit, the limit-to-request ratio. What cannot be made to
// agree stays as it was.
func (p *pair) settle() {
	if p.lrMin != unset {
		for _, v := range p.values() {
			if v.changed() && v.now < p.lrMin {
				v.move(p.lrMin, ReasonLimitRange)
			}
		}
	}
	p.order()
	p.limitRatio()
	for _, v := range p.values() {
		if v.changed() && (v.now > v.hi || p.lrMin != unset && v.now < p.lrMin) {
			v.keep(v.capReasonOr(ReasonLimitRange), "no value keeps within every bound")
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

func (v *value) capReasonOr(r Reason) Reason {
	if v.now > v.hi && v.capReason != "" {
		return v.capReason
	}
	return r
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
	return float64(p.lim.now) <= p.ratio*float64(p.request(false))
}

// limitRatio raises a request that lies too far below its limit: lowering the
// limit instead could hurt.
func (p *pair) limitRatio() {
	if p.ratioHolds() {
		return
	}
	need := int64(float64(p.lim.now)/p.ratio) + 1
	if need <= p.req.hi && need <= p.lim.now && p.req.managed {
		p.req.move(need, ReasonLimitRange)
		return
	}
	if fit := int64(p.ratio * float64(p.request(false))); p.lim.managed && fit >= p.lim.lo {
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
