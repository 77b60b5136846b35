package resize

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// podRange is what a LimitRange asks of a pod's sums besides a maximum: that
// they are not too small, and the limit not too far above the request.
type podRange struct {
	res   corev1.ResourceName
	min   int64 // unset when there is none
	ratio int64 // in thousandths; 0 when there is none
}

func podRanges(b Bounds) []podRange {
	var out []podRange
	for i := range b.LimitRanges {
		for _, item := range b.LimitRanges[i].Spec.Limits {
			if item.Type != corev1.LimitTypePod {
				continue
			}
			for _, res := range createResources {
				r := podRange{res: res, min: amountIn(item.Min, res)}
				if q, ok := item.MaxLimitRequestRatio[res]; ok {
					r.ratio = q.MilliValue()
				}
				if r.min != unset || r.ratio > 0 {
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// keeps reports whether LimitRanger takes the pod's sums after the changes.
func (l podLayout) keeps(r podRange) bool {
	req, lim := l.sum(r.res, v1alpha1.FieldRequest, false), l.sum(r.res, v1alpha1.FieldLimit, false)
	if r.min != unset && (req < r.min || lim > 0 && lim < r.min) {
		return false
	}
	return r.ratio == 0 || withinRatio(lim, req, r.ratio)
}

func (l podLayout) keepsAll(res corev1.ResourceName) bool {
	for _, r := range l.ranges {
		if r.res == res && !l.keeps(r) {
			return false
		}
	}
	return true
}

// withinRatio computes as LimitRanger does, to the last bit.
func withinRatio(lim, req, ratio int64) bool {
	return lim > 0 && req > 0 && float64(lim)/float64(req)*1000 <= float64(ratio)
}

// requestFor returns the least request that a limit may have.
func requestFor(lim, ratio int64) int64 {
	n := int64(math.Ceil(float64(lim) / float64(ratio) * 1000))
	if !withinRatio(lim, n, ratio) {
		n++
	}
	return n
}

// limitFor returns the largest limit that a request may have.
func limitFor(req, ratio int64) int64 {
	n := int64(float64(req) / 1000 * float64(ratio))
	if !withinRatio(n, req, ratio) {
		n--
	}
	return n
}

// fit moves values until the pod keeps the range, if they can be: limits
// before the requests that they bound, and requests up rather than limits down.
func (l podLayout) fit(r podRange) {
	if l.keeps(r) {
		return
	}
	if r.min != unset {
		if l.sum(r.res, v1alpha1.FieldLimit, false) > 0 {
			l.shift(r.res, v1alpha1.FieldLimit, r.min)
		}
		l.shift(r.res, v1alpha1.FieldRequest, r.min)
	}
	if lim := l.sum(r.res, v1alpha1.FieldLimit, false); lim > 0 && r.ratio > 0 && !l.keeps(r) {
		l.shift(r.res, v1alpha1.FieldRequest, requestFor(lim, r.ratio))
		if req := l.sum(r.res, v1alpha1.FieldRequest, false); !l.keeps(r) && req > 0 {
			l.shift(r.res, v1alpha1.FieldLimit, limitFor(req, r.ratio))
		}
	}
}

// shift moves a field of the containers until it adds up to a sum: first back
// toward what it was, each in proportion to how far it went, then further, in
// proportion to its size. Planned again, the first part leads to the same values.
func (l podLayout) shift(res corev1.ResourceName, f v1alpha1.ResourceField, to int64) {
	running, _ := l.parts(res, f, false)
	need := distance(to, running)
	for _, back := range []bool{true, false} {
		for need > 0 {
			var vs []*value
			var rooms []int64
			var weight float64
			for _, p := range l.pairs {
				if v, room := p.room(f, to > running, back); p.res == res && room > 0 {
					vs, rooms = append(vs, v), append(rooms, room)
					weight += v.weight(back, room)
				}
			}
			if len(vs) == 0 {
				break
			}
			left := need
			for i, v := range vs {
				by := int64(math.Ceil(v.weight(back, rooms[i]) / weight * float64(left)))
				by = min(by, rooms[i], need)
				need -= by
				if to < running {
					by = -by
				}
				v.move(v.now+by, ReasonLimitRange)
			}
		}
	}
}

func (v *value) weight(back bool, room int64) float64 {
	if back {
		return float64(room)
	}
	return float64(max(1, v.now))
}

// room returns the value that stands for a field, and how far it may move up
// or down: back to what it was, or as far as everything that bounds it.
func (p *pair) room(f v1alpha1.ResourceField, up, back bool) (*value, int64) {
	v := &p.req
	if f == v1alpha1.FieldLimit || v.now == unset {
		v = &p.lim
	}
	if !v.managed || v.now == unset || back && v.was == unset {
		return v, 0
	}
	if up {
		end := v.hi
		if back {
			end = min(v.was, p.lrMax)
		}
		if v == &p.req && p.lim.now != unset {
			end = min(end, p.lim.now)
		}
		return v, end - v.now
	}
	end := max(v.lo, v.floor, p.lrMin, p.req.now, 1)
	if back {
		end = max(end, v.was)
	}
	return v, v.now - end
}
