package resize

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

// unset is the amount of a request or limit that a container does not have.
const unset int64 = -1

// value is one request or limit on its way through the bounds, in millicores
// or bytes.
type value struct {
	Field
	was, now  int64
	target    int64 // recommended and bounded; unset when nothing is recommended
	lo, hi    int64 // the policy's, the LimitRange's and the node's bounds; hi is maxAmount when there is none
	floor     int64 // live usage, below which nothing is lowered
	capReason Reason
	managed   bool // a change is allowed
	reason    Reason
	message   string
}

func (v *value) changed() bool { return v.now != v.was }

func (v *value) keep(r Reason, format string, args ...any) {
	v.now, v.managed, v.reason, v.message = v.was, false, r, fmt.Sprintf(format, args...)
}

func (v *value) move(to int64, r Reason) {
	if v.now != to {
		v.now, v.reason = to, r
	}
}

// pair is the request and the limit of one resource of one container.
type pair struct {
	ctr      *corev1.Container
	res      corev1.ResourceName
	req, lim value
	lrMin    int64 // the LimitRange's minimum; unset when there is none
	lrMax    int64 // the LimitRange's maximum; maxAmount when there is none
	ratio    int64 // the LimitRange's largest ratio of limit to request, in thousandths; 0 when there is none
}

func (p *pair) values() [2]*value { return [2]*value{&p.req, &p.lim} }

// request returns what the API server makes of the request: the limit when
// only that is set.
func (p *pair) request(was bool) int64 {
	req, lim := p.req.now, p.lim.now
	if was {
		req, lim = p.req.was, p.lim.was
	}
	if req == unset {
		return lim
	}
	return req
}

func (p *pair) limit(was bool) int64 {
	if was {
		return p.lim.was
	}
	return p.lim.now
}

func amount(res corev1.ResourceName, q resource.Quantity) int64 {
	if res == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func amountIn(list corev1.ResourceList, res corev1.ResourceName) int64 {
	q, ok := list[res]
	if !ok {
		return unset
	}
	return amount(res, q)
}

func quantity(res corev1.ResourceName, n int64) resource.Quantity {
	if res == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	return *resource.NewQuantity(n, resource.BinarySI)
}

func fromAmount(res corev1.ResourceName, a sample.Amount) int64 {
	r := sample.Memory
	if res == corev1.ResourceCPU {
		r = sample.CPU
	}
	return amount(res, a.Quantity(r))
}

// longRunning returns the pod's containers that run as long as it does, in the
// order in which they start.
func longRunning(pod *corev1.Pod) []*corev1.Container {
	var out []*corev1.Container
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; restartable(c) {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

func restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// collect lays out every request and limit of the long-running containers,
// with a target where the policy lists the field and something is recommended.
func collect(pod *corev1.Pod, s *policy.Settings, p *v1alpha1.WorkloadProfileStatus, resources []corev1.ResourceName, memoryRaisesOnly bool) []*pair {
	rules := map[policy.RuleKey]policy.Rule{}
	for _, r := range s.Rules {
		rules[policy.RuleKey{Resource: r.Resource, Field: r.Field}] = r
	}
	containers := longRunning(pod)
	pairs := make([]pair, 0, len(containers)*len(resources))
	out := make([]*pair, 0, cap(pairs))
	for _, ctr := range containers {
		i := slices.IndexFunc(p.Containers, func(c v1alpha1.ContainerStatus) bool { return c.Name == ctr.Name })
		for _, res := range resources {
			pairs = append(pairs, pair{ctr: ctr, res: res, lrMin: unset, lrMax: maxAmount})
			pr := &pairs[len(pairs)-1]
			pr.req = newValue(ctr, res, v1alpha1.FieldRequest)
			pr.lim = newValue(ctr, res, v1alpha1.FieldLimit)
			for _, v := range pr.values() {
				rule, ok := rules[policy.RuleKey{Resource: res, Field: v.Field.Field}]
				if !ok || i < 0 {
					continue
				}
				v.recommend(p.Containers[i], rule, memoryRaisesOnly)
			}
			out = append(out, pr)
		}
	}
	return out
}

func newValue(ctr *corev1.Container, res corev1.ResourceName, f v1alpha1.ResourceField) value {
	list := ctr.Resources.Requests
	if f == v1alpha1.FieldLimit {
		list = ctr.Resources.Limits
	}
	n := amountIn(list, res)
	return value{Field: Field{ctr.Name, res, f}, was: n, now: n, target: unset, hi: maxAmount}
}

const maxAmount = int64(^uint64(0) >> 1)

func (v *value) recommend(c v1alpha1.ContainerStatus, rule policy.Rule, memoryRaisesOnly bool) {
	v.lo = fromAmount(v.Resource, rule.Min)
	if rule.Max > 0 {
		v.hi, v.capReason = fromAmount(v.Resource, rule.Max), ReasonPolicyBound
	}
	for _, r := range c.Recommendations {
		if r.Resource != v.Resource || r.Field != v.Field.Field {
			continue
		}
		n := amount(v.Resource, r.Value)
		if n <= 0 {
			return
		}
		if memoryRaisesOnly && (v.Resource != corev1.ResourceMemory || c.OOMKills == 0 && r.Reason != reasonRaisedByOOM || v.was == unset || n <= v.was) {
			return
		}
		v.target, v.managed = n, true
	}
}

// reasonRaisedByOOM is a Recommendation's reason; see v1alpha1.
const reasonRaisedByOOM = "RaisedByOOM"
