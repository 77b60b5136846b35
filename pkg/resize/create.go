package resize

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// annotationLimitRanger is where the API server's LimitRanger says which
// values it filled in.
const annotationLimitRanger = "kubernetes.io/limit-ranger"

var createResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// maxRounds bounds how often PlanCreate plans on top of its own answer.
const maxRounds = 64

// PlanCreate decides the values of a pod that is being created. Planning again
// for the pod it was applied to changes nothing: where values compete for what
// a pod may have in all, it plans until they share that out. The caller
// honours Settings.Apply.DryRun.
func PlanCreate(in CreateInput) Decision {
	d, onTarget := planCreate(in)
	if d.Reason != ReasonChange || onTarget {
		return d
	}
	pod := withOwnResources(in.Pod)
	for range maxRounds {
		d.Set(pod)
		requestLimits(pod)
		next, _ := planCreate(CreateInput{Pod: pod, Settings: in.Settings, Profile: in.Profile, Bounds: in.Bounds, HPA: in.HPA})
		d.Kept = next.Kept
		if len(next.Changes) == 0 {
			break
		}
		d.add(in.Pod, next.Changes)
	}
	d.Kept = slices.DeleteFunc(d.Kept, func(k Kept) bool {
		return slices.ContainsFunc(d.Changes, func(c Change) bool { return c.Field == k.Field })
	})
	return d
}

// withOwnResources copies as much of a pod as planning changes.
func withOwnResources(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	out.Spec.InitContainers, out.Spec.Containers = slices.Clone(pod.Spec.InitContainers), slices.Clone(pod.Spec.Containers)
	for _, cs := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range cs {
			r := &cs[i].Resources
			r.Requests, r.Limits = maps.Clone(r.Requests), maps.Clone(r.Limits)
		}
	}
	return &out
}

// requestLimits sets the requests that the API server sets: a limit's, where
// there is none.
func requestLimits(pod *corev1.Pod) {
	for _, cs := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range cs {
			for res, q := range cs[i].Resources.Limits {
				if _, ok := cs[i].Resources.Requests[res]; !ok {
					put(&cs[i].Resources, res, v1alpha1.FieldRequest, q)
				}
			}
		}
	}
}

// add puts later changes on top of the decision's about a pod.
func (d *Decision) add(pod *corev1.Pod, later []Change) {
	for _, c := range later {
		i := slices.IndexFunc(d.Changes, func(e Change) bool { return e.Field == c.Field })
		if i < 0 {
			if _, ok := ValueOf(pod, c.Field); !ok {
				c.From = nil
			}
			d.Changes = append(d.Changes, c)
			continue
		}
		d.Changes[i].To, d.Changes[i].Reason = c.To, c.Reason
	}
}

// planCreate plans once. It reports whether every recommended value ends on its
// target, so that planning again could change nothing.
func planCreate(in CreateInput) (d Decision, onTarget bool) {
	if d, ok := gatePod(in.Pod); !ok {
		return d, false
	}
	raisesOnly, d, ok := gateProfile(in.Settings, in.Profile)
	if !ok {
		return d, false
	}
	l := podLayout{pod: in.Pod, pairs: collect(in.Pod, in.Settings, in.Profile, createResources, raisesOnly), ranges: podRanges(in.Bounds)}
	if !l.anyManaged() {
		return Decision{Reason: ReasonNoRecommendation, Message: "nothing is recommended for the pod's containers"}, false
	}
	l.leaveAutoscaled(in.Settings.Apply.HPA, in.HPA)
	bound(l.pairs, in.Bounds)
	l.askExplicitly()
	class := l.createClass(in.Settings.Apply.QoS)
	if class == corev1.PodQOSGuaranteed {
		link(l.pairs)
	}
	for _, v := range l.values() {
		if v.managed {
			v.now = v.target
		}
	}
	l.settleAll(class, l.caps(in.Bounds, nil))
	onTarget = true
	for _, v := range l.values() {
		onTarget = onTarget && (v.target == unset || v.managed && v.now == v.target)
	}
	return l.decision(ReasonNoChange), onTarget
}

// askExplicitly gives a container a request within the policy's bounds where it
// would get only a limit: the API server would make that its request, which may
// be more than the policy allows for requests.
func (l podLayout) askExplicitly() {
	for _, p := range l.pairs {
		if p.req.was == unset && p.req.target == unset && p.lim.managed && p.lim.target > p.req.hi {
			p.req.target, p.req.managed, p.req.reason = p.req.hi, true, p.req.capReason
		}
	}
}

// createClass returns the class a new pod has to keep: Burstable for a pod
// whose author set nothing and that may be given values, whatever LimitRange
// defaults make of it.
func (l podLayout) createClass(qos v1alpha1.QoSPolicy) corev1.PodQOSClass {
	class := l.class(true)
	if qos != v1alpha1.QoSAllowBurstable || class == corev1.PodQOSBurstable {
		return class
	}
	if class == corev1.PodQOSBestEffort || Class(withoutDefaults(l.pod)) == corev1.PodQOSBestEffort {
		return corev1.PodQOSBurstable
	}
	return class
}

// withoutDefaults returns the pod without the values that LimitRanger filled
// in. Its annotation reads "LimitRanger plugin set: cpu, memory request for
// container a; cpu limit for init container b".
func withoutDefaults(pod *corev1.Pod) *corev1.Pod {
	_, list, ok := strings.Cut(pod.Annotations[annotationLimitRanger], ":")
	if !ok {
		return pod
	}
	pod = withOwnResources(pod)
	for part := range strings.SplitSeq(list, ";") {
		what, name, ok := strings.Cut(part, " for ")
		if !ok {
			continue
		}
		name = name[strings.LastIndexByte(name, ' ')+1:]
		ctr := container(pod, name)
		if ctr == nil {
			continue
		}
		from := ctr.Resources.Requests
		names, isRequest := strings.CutSuffix(strings.TrimSpace(what), " request")
		if !isRequest {
			names, from = strings.TrimSuffix(names, " limit"), ctr.Resources.Limits
		}
		for res := range strings.SplitSeq(names, ",") {
			delete(from, corev1.ResourceName(strings.TrimSpace(res)))
		}
	}
	return pod
}

func (l podLayout) values() []*value {
	out := make([]*value, 0, 2*len(l.pairs))
	for _, p := range l.pairs {
		out = append(out, &p.req, &p.lim)
	}
	return out
}

func (l podLayout) anyManaged() bool {
	for _, v := range l.values() {
		if v.managed {
			return true
		}
	}
	return false
}

func (l podLayout) leaveAutoscaled(p v1alpha1.HPAPolicy, hpas []Autoscaled) {
	if p == v1alpha1.HPAIgnore {
		return
	}
	for _, pr := range l.pairs {
		for _, h := range hpas {
			if pr.req.managed && h.Resource == pr.res && (h.Container == "" || h.Container == pr.ctr.Name) {
				pr.req.keep(ReasonAutoscaled, "HorizontalPodAutoscaler %s targets its utilisation", h.Autoscaler)
			}
		}
	}
}

// settleAll brings the values within everything that bounds them together:
// container by container, the pod's sums, the class. What is left over when no
// values do stays as it was.
func (l podLayout) settleAll(class corev1.PodQOSClass, caps []podCap) {
	l.settlePairs(class)
	for _, c := range caps {
		l.hold(c)
	}
	l.settlePairs(class)
	l.fitAll(class)
	revert := func(r Reason, message string) {
		for _, p := range l.pairs {
			p.revert(r, message)
		}
	}
	if class != corev1.PodQOSGuaranteed && !l.keepBurstable() {
		revert(ReasonQoS, "no values keep the pod from becoming Guaranteed")
	}
	if got := l.class(false); got != class && got != l.class(true) {
		revert(ReasonQoS, fmt.Sprintf("the pod is %s and would become %s", l.class(true), got))
	}
	for _, c := range caps {
		if over := l.total(c.res, c.field, false); over > c.max && over > l.total(c.res, c.field, true) {
			revert(c.reason, "no values keep within every bound")
		}
	}
	for _, r := range l.ranges {
		if !l.keeps(r) {
			revert(ReasonLimitRange, "no values keep the LimitRange for pods")
		}
	}
}

// fitAll makes the pod's sums keep its LimitRanges. What cannot be made to
// stays as it was, and leaves the other resources to their values.
func (l podLayout) fitAll(class corev1.PodQOSClass) {
	for range 2 { // what one range asks for, and a container's own, may undo another's
		for _, r := range l.ranges {
			l.fit(r)
		}
		if len(l.ranges) > 0 {
			l.settlePairs(class)
		}
	}
	for _, r := range l.ranges {
		if l.keeps(r) {
			continue
		}
		for _, p := range l.pairs {
			if p.res == r.res {
				p.revert(ReasonLimitRange, "no values keep the LimitRange for pods")
			}
		}
	}
}

func (l podLayout) settlePairs(class corev1.PodQOSClass) {
	for _, p := range l.pairs {
		p.settle()
		if class == corev1.PodQOSGuaranteed {
			p.relink()
			p.settle()
		}
	}
}

// decision collects what was decided; none is the reason of a decision that
// changes nothing.
func (l podLayout) decision(none Reason) Decision {
	var d Decision
	values, changed := l.values(), 0
	for _, v := range values {
		if v.changed() {
			changed++
		}
	}
	if changed > 0 {
		d.Changes = make([]Change, 0, changed)
	}
	for _, v := range values {
		switch {
		case v.changed():
			c := Change{Field: v.Field, To: quantity(v.Resource, v.now), Reason: v.reason}
			if v.was != unset {
				q := quantity(v.Resource, v.was)
				c.From = &q
			}
			d.Changes = append(d.Changes, c)
		case v.target != unset && !v.managed:
			d.Kept = append(d.Kept, Kept{Field: v.Field, Reason: v.reason, Message: v.message})
		}
	}
	d.Reason = ReasonChange
	if len(d.Changes) == 0 {
		d.Reason = none
		if len(d.Kept) > 0 {
			d.Message = d.Kept[0].String()
		}
	}
	return d
}

// String says which field is kept and why.
func (k Kept) String() string {
	return fmt.Sprintf("%s %s of container %s: %s", k.Resource, k.Field.Field, k.Container, k.Message)
}
