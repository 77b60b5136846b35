package resize

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/policy"
)

var resizeResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// Plan decides the next step of a running pod toward its recommendations. The
// caller honours Settings.Resize.DryRun.
func Plan(in PlanInput) Decision {
	if d, ok := gatePod(in.Pod); !ok {
		return d
	}
	raisesOnly, d, ok := gateProfile(in.Settings, in.Profile)
	if !ok {
		return d
	}
	if d, ok := gateRunning(in); !ok {
		return d
	}
	l := podLayout{pod: in.Pod, pairs: collect(in.Pod, in.Settings, in.Profile, resizeResources, raisesOnly)}
	if !l.anyManaged() {
		return Decision{Reason: ReasonNoRecommendation, Message: "nothing is recommended for the pod's containers"}
	}
	class := l.class(true)
	l.exclude(in, class)
	b := in.Bounds
	if in.Node.Node != nil {
		b.Allocatable = in.Node.Node.Status.Allocatable
	}
	l.ranges = podRanges(b)
	bound(l.pairs, b)
	if class == corev1.PodQOSGuaranteed {
		link(l.pairs)
	}
	drifted := false
	for _, v := range l.values() {
		if v.managed && v.step(in.Settings.Resize, damping(in.Last)) {
			drifted = true
		}
	}
	if !drifted {
		return l.decision(l.idleReason())
	}
	l.liveFloor(in)
	l.settleAll(class, l.caps(b, &in.Node))
	return l.decision(ReasonNoChange)
}

// idleReason says why nothing drifted.
func (l podLayout) idleReason() Reason {
	if l.anyManaged() {
		return ReasonWithinThreshold
	}
	return ReasonNoChange
}

// exclude takes out what must not be changed while the pod runs.
func (l podLayout) exclude(in PlanInput, class corev1.PodQOSClass) {
	l.leaveAutoscaled(in.Settings.Apply.HPA, in.HPA)
	for _, p := range l.pairs {
		reason, message := p.excluded(in, class)
		for _, v := range p.values() {
			switch {
			case !v.managed:
			case reason != "":
				v.keep(reason, "%s", message)
			case v.was == unset:
				v.keep(ReasonUnset, "it is unset, and what a running container is given cannot be taken back")
			}
		}
	}
}

func (p *pair) excluded(in PlanInput, class corev1.PodQOSClass) (Reason, string) {
	if !in.Settings.Resize.AllowRestart && restarts(p.ctr, p.res) {
		return ReasonRestart, "the container's resizePolicy asks for a restart and the policy does not allow it"
	}
	switch p.res {
	case corev1.ResourceMemory:
		// Under LimitedSwap a container gets swap in proportion to its memory
		// request if its pod is Burstable and request and limit differ.
		if swaps(in.Node.Node) && class == corev1.PodQOSBurstable && p.req.was > 0 && p.req.was != p.lim.was && !restarts(p.ctr, p.res) {
			return ReasonSwap, "the container may use swap, whose share cannot be changed in place"
		}
	case corev1.ResourceCPU:
		// The kubelet calls any change of cpu in a Guaranteed pod infeasible then.
		if in.Node.StaticCPU && class == corev1.PodQOSGuaranteed {
			return ReasonStaticCPU, "the node's static CPU manager lets no Guaranteed pod change its cpu"
		}
	}
	return "", ""
}

func restarts(c *corev1.Container, res corev1.ResourceName) bool {
	for _, p := range c.ResizePolicy {
		if p.ResourceName == res && p.RestartPolicy == corev1.RestartContainer {
			return true
		}
	}
	return false
}

func swaps(n *corev1.Node) bool {
	return n != nil && n.Status.NodeInfo.Swap != nil && n.Status.NodeInfo.Swap.Capacity != nil && *n.Status.NodeInfo.Swap.Capacity > 0
}

// damping shrinks the steps of a pod whose last resize found no room: half the
// step after one failure, a quarter after two.
func damping(last Record) float64 {
	if last.State != StateWithdrawn {
		return 1
	}
	return math.Pow(0.5, float64(min(last.Failures, 10)))
}

// step moves a drifted value toward its target by the share of the gap that
// one cycle may close, or onto it when what is left would be no drift any
// more. It reports whether the value had drifted.
func (v *value) step(r policy.Resize, damping float64) bool {
	gap := distance(v.target, v.was)
	threshold, ok := r.Thresholds[policy.RuleKey{Resource: v.Resource, Field: v.Field.Field}]
	if !ok {
		threshold = r.Threshold
	}
	drift := func(n int64) float64 { return float64(n) / float64(max(1, v.target)) }
	if gap == 0 || drift(gap) < threshold {
		return false
	}
	n := max(1, int64(math.Ceil(float64(gap)*r.MaxChangePerCycle*damping)))
	switch {
	case n >= gap, damping == 1 && drift(gap-n) < threshold:
		v.now = v.target
	case v.target > v.was:
		v.move(v.was+n, ReasonStep)
	default:
		v.move(v.was-n, ReasonStep)
	}
	return true
}

// liveFloor keeps memory from being lowered without a fresh word on its use,
// and a memory limit above that use and a margin.
func (l podLayout) liveFloor(in PlanInput) {
	for _, p := range l.pairs {
		if p.res != corev1.ResourceMemory {
			continue
		}
		live, known := in.Live[p.ctr.Name]
		for _, v := range p.values() {
			if known {
				continue
			}
			v.floor = v.was
			if v.now < v.was {
				v.keep(ReasonNoLiveUsage, "no use was reported in the last two minutes")
			}
		}
		used := max(live.WorkingSet, live.PeakWorkingSet)
		floor := used + int64(math.Round(float64(used)*in.Settings.Resize.DecreaseMargin))
		p.lim.floor = max(p.lim.floor, floor)
		if v := &p.lim; v.now < v.was && v.now < floor {
			if floor < v.was {
				v.move(floor, ReasonLiveUsage)
			} else {
				v.keep(ReasonLiveUsage, "the container uses too much of it")
			}
		}
	}
}
