package resize_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
	"plimsoll.dev/pkg/sample"
)

var fields = []policy.RuleKey{
	{Resource: "cpu", Field: v1alpha1.FieldRequest}, {Resource: "cpu", Field: v1alpha1.FieldLimit},
	{Resource: "memory", Field: v1alpha1.FieldRequest}, {Resource: "memory", Field: v1alpha1.FieldLimit},
}

// units are amounts in millicores and Mi.
func units(t *rapid.T, name string) int64 {
	return rapid.OneOf(rapid.Int64Range(1, 40), rapid.Int64Range(1, 4000)).Draw(t, name)
}

func qty(res corev1.ResourceName, n int64) resource.Quantity {
	if res == "cpu" {
		return *resource.NewMilliQuantity(n, resource.DecimalSI)
	}
	return *resource.NewQuantity(n<<20, resource.BinarySI)
}

// drawContainer draws what the API server would let through: request ≤ limit,
// and a request equal to the limit where only that was set.
func drawContainer(t *rapid.T, name string) corev1.Container {
	c := ctr(name, corev1.ResourceList{}, corev1.ResourceList{})
	for _, res := range []corev1.ResourceName{"cpu", "memory"} {
		req, lim := units(t, "request"), units(t, "limit")
		switch rapid.IntRange(0, 4).Draw(t, "set") {
		case 1:
			c.Resources.Requests[res] = qty(res, req)
		case 2:
			c.Resources.Requests[res], c.Resources.Limits[res] = qty(res, lim), qty(res, lim)
		case 3, 4:
			c.Resources.Requests[res], c.Resources.Limits[res] = qty(res, min(req, lim)), qty(res, lim)
		}
	}
	return c
}

func drawPod(t *rapid.T) *corev1.Pod {
	var cs []corev1.Container
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		c := drawContainer(t, fmt.Sprintf("c%d", i))
		if i > 0 && rapid.Bool().Draw(t, "sidecar") {
			c = sidecar(c)
		}
		cs = append(cs, c)
	}
	return running(cs...)
}

func drawSettings(t *rapid.T) *policy.Settings {
	s := settings()
	s.Rules = nil
	for _, f := range fields {
		if !rapid.Bool().Draw(t, "rule") {
			continue
		}
		r := rule(f.Resource, f.Field)
		if rapid.Bool().Draw(t, "capped") {
			q := qty(f.Resource, units(t, "max"))
			r.Max = max(r.Min, sample.FromQuantity(q))
		}
		s.Rules = append(s.Rules, r)
	}
	s.Apply.QoS = rapid.SampledFrom([]v1alpha1.QoSPolicy{v1alpha1.QoSKeep, v1alpha1.QoSAllowBurstable}).Draw(t, "qos")
	s.Resize.MaxChangePerCycle = rapid.Float64Range(0.05, 1).Draw(t, "maxChangePerCycle")
	s.Resize.Threshold = rapid.Float64Range(0, 1).Draw(t, "threshold")
	return s
}

func drawProfile(t *rapid.T, pod *corev1.Pod) *v1alpha1.WorkloadProfileStatus {
	p := profile()
	for _, c := range allContainers(pod) {
		st := v1alpha1.ContainerStatus{Name: c.Name}
		for _, f := range fields {
			if rapid.IntRange(0, 3).Draw(t, "recommended") > 0 {
				st.Recommendations = append(st.Recommendations, v1alpha1.Recommendation{Resource: f.Resource, Field: f.Field, Value: qty(f.Resource, units(t, "recommendation"))})
			}
		}
		p.Containers = append(p.Containers, st)
	}
	return p
}

func drawBounds(t *rapid.T) resize.Bounds {
	var b resize.Bounds
	maybe := func(name string) bool { return rapid.IntRange(0, 2).Draw(t, name) == 0 }
	both := func(name string) corev1.ResourceList {
		return corev1.ResourceList{"cpu": qty("cpu", units(t, name)), "memory": qty("memory", units(t, name))}
	}
	if maybe("container range") {
		item := corev1.LimitRangeItem{Type: corev1.LimitTypeContainer}
		if maybe("min") {
			item.Min = both("min")
		}
		if maybe("max") {
			item.Max = both("max")
		}
		if maybe("ratio") {
			item.MaxLimitRequestRatio = list("cpu", "2", "memory", "1500m")
		}
		b.LimitRanges = append(b.LimitRanges, limitRange(item))
	}
	if maybe("pod range") {
		b.LimitRanges = append(b.LimitRanges, limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: both("pod max")}))
	}
	if maybe("quota") {
		for _, n := range []corev1.ResourceName{"requests.cpu", "limits.cpu"} {
			b.Quotas = append(b.Quotas, quota(n, fmt.Sprintf("%dm", units(t, "hard")), "10m"))
		}
	}
	if maybe("node") {
		b.Allocatable = both("allocatable")
	}
	return b
}

func allContainers(p *corev1.Pod) []corev1.Container {
	return append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...)
}

// defaulted returns the pod with what the API server fills in.
func defaulted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	for _, cs := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range cs {
			for res, q := range cs[i].Resources.Limits {
				if _, ok := cs[i].Resources.Requests[res]; !ok {
					if cs[i].Resources.Requests == nil {
						cs[i].Resources.Requests = corev1.ResourceList{}
					}
					cs[i].Resources.Requests[res] = q
				}
			}
		}
	}
	return p
}

func of(c corev1.Container, k policy.RuleKey) (resource.Quantity, bool) {
	l := c.Resources.Requests
	if k.Field == v1alpha1.FieldLimit {
		l = c.Resources.Limits
	}
	q, ok := l[k.Resource]
	return q, ok
}

// class is the API reference's definition, over defaulted pods.
func class(p *corev1.Pod) corev1.PodQOSClass {
	some, all := false, true
	for _, c := range allContainers(p) {
		for _, res := range []corev1.ResourceName{"cpu", "memory"} {
			req, lim := c.Resources.Requests[res], c.Resources.Limits[res]
			some = some || !req.IsZero() || !lim.IsZero()
			all = all && !lim.IsZero() && req.Cmp(lim) == 0
		}
	}
	if !some {
		return corev1.PodQOSBestEffort
	}
	if all {
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// checkBounds holds every changed value against everything that bounds it.
func checkBounds(t *rapid.T, before, after *corev1.Pod, s *policy.Settings, b resize.Bounds, d resize.Decision) {
	changed := map[string]bool{}
	for _, ch := range d.Changes {
		k := policy.RuleKey{Resource: ch.Resource, Field: ch.Field.Field}
		changed[ch.Container+string(ch.Resource)] = true
		listed := false
		up := ch.From == nil || ch.From.Cmp(ch.To) < 0
		for _, r := range s.Rules {
			if r.Resource != k.Resource || r.Field != k.Field {
				continue
			}
			listed = true
			if r.Max > 0 && up && sample.FromQuantity(ch.To) > r.Max {
				t.Fatalf("%v is above the policy's maximum %v", ch, r.Max)
			}
		}
		if !listed {
			t.Fatalf("%v changes a field the policy does not list", ch)
		}
		if q, ok := b.Allocatable[k.Resource]; ok && up && ch.To.Cmp(q) > 0 {
			t.Fatalf("%v is above allocatable %v", ch, &q)
		}
		for _, lr := range b.LimitRanges {
			for _, item := range lr.Spec.Limits {
				if item.Type != corev1.LimitTypeContainer {
					continue
				}
				if q, ok := item.Max[k.Resource]; ok && ch.To.Cmp(q) > 0 {
					t.Fatalf("%v is above the LimitRange's %v", ch, &q)
				}
				if q, ok := item.Min[k.Resource]; ok && ch.To.Cmp(q) < 0 {
					t.Fatalf("%v is below the LimitRange's %v", ch, &q)
				}
			}
		}
	}
	for _, c := range allContainers(after) {
		for _, res := range []corev1.ResourceName{"cpu", "memory"} {
			req, hasReq := c.Resources.Requests[res]
			lim, hasLim := c.Resources.Limits[res]
			if hasReq && hasLim && req.Cmp(lim) > 0 {
				t.Fatalf("container %s: %s request %v above limit %v", c.Name, res, &req, &lim)
			}
			for _, lr := range b.LimitRanges {
				for _, item := range lr.Spec.Limits {
					q, ok := item.MaxLimitRequestRatio[res]
					if ok && changed[c.Name+string(res)] && hasLim && float64(lim.MilliValue())/float64(req.MilliValue()) > q.AsApproximateFloat64()*1.000001 {
						t.Fatalf("container %s: %s limit %v over request %v is above the ratio %v", c.Name, res, &lim, &req, &q)
					}
				}
			}
		}
	}
	for _, k := range fields {
		was, is := sum(before, k), sum(after, k)
		for _, lr := range b.LimitRanges {
			for _, item := range lr.Spec.Limits {
				if q, ok := item.Max[k.Resource]; ok && item.Type == corev1.LimitTypePod && is > was && is > q.MilliValue() {
					t.Fatalf("the pod's %v grew to %d, above the LimitRange's %v", k, is, &q)
				}
			}
		}
	}
}

func sum(p *corev1.Pod, k policy.RuleKey) int64 {
	var n int64
	for _, c := range allContainers(p) {
		if q, ok := of(c, k); ok {
			n += q.MilliValue()
		}
	}
	return n
}

// C50, C51, C52: for any pod and policy.
func TestPropertyPlanCreate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := drawPod(t)
		pod.Status = corev1.PodStatus{}
		in := resize.CreateInput{Pod: pod, Settings: drawSettings(t), Bounds: drawBounds(t)}
		in.Profile = drawProfile(t, pod)
		d := resize.PlanCreate(in)
		after := pod.DeepCopy()
		d.Set(after)
		after = defaulted(after)
		checkBounds(t, pod, after, in.Settings, in.Bounds, d)
		was, is := class(pod), class(after)
		if was != is && (was != corev1.PodQOSBestEffort || is != corev1.PodQOSBurstable || in.Settings.Apply.QoS == v1alpha1.QoSKeep) {
			t.Fatalf("class %s became %s", was, is)
		}
		for _, ch := range d.Changes {
			for _, r := range in.Settings.Rules {
				f := resize.Field{Container: ch.Container, Resource: ch.Resource, Field: v1alpha1.FieldRequest}
				_, was := resize.ValueOf(pod, f)
				q, is := resize.ValueOf(after, f)
				if r.Resource == f.Resource && r.Field == f.Field && r.Max > 0 && !was && is && sample.FromQuantity(q) > r.Max {
					t.Fatalf("%v makes a request of %v, above the policy's maximum %v", ch, &q, r.Max)
				}
			}
		}
		in.Pod = after
		if again := resize.PlanCreate(in); len(again.Changes) > 0 {
			t.Fatalf("planned %v, and again %v", values(d), values(again))
		}
		if diff := cmp.Diff(d, resize.PlanCreate(resize.CreateInput{Pod: pod, Settings: in.Settings, Profile: in.Profile, Bounds: in.Bounds})); diff != "" {
			t.Fatalf("not deterministic: %s", diff)
		}
	})
}

// C60, C63 and the bounds, for any running pod: steps go toward what is
// recommended, no further than the policy allows, and come to an end.
func TestPropertyPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := drawPod(t)
		in := resize.PlanInput{Pod: pod, Settings: drawSettings(t), Bounds: drawBounds(t), Now: now, Live: map[string]resize.Live{}}
		in.Node.Node = &corev1.Node{}
		in.Node.Node.Status.Allocatable, in.Bounds.Allocatable = in.Bounds.Allocatable, nil
		in.Profile = drawProfile(t, pod)
		for _, c := range allContainers(pod) {
			if rapid.Bool().Draw(t, "live") {
				in.Live[c.Name] = resize.Live{WorkingSet: units(t, "working set") << 20, PeakWorkingSet: units(t, "peak") << 20}
			}
		}
		for i := 0; ; i++ {
			d := resize.Plan(in)
			if d.Reason != resize.ReasonChange {
				return
			}
			if i > 2000 {
				t.Fatalf("no end of changes: %v", values(d))
			}
			before := in.Pod.DeepCopy()
			d.Set(in.Pod)
			start(in.Pod)
			b := in.Bounds
			b.Allocatable = in.Node.Node.Status.Allocatable
			checkBounds(t, before, in.Pod, in.Settings, b, d)
			if was, is := class(before), class(in.Pod); was != is {
				t.Fatalf("class %s became %s", was, is)
			}
			for _, c := range d.Changes {
				checkStep(t, in, c)
			}
		}
	})
}

func checkStep(t *rapid.T, in resize.PlanInput, c resize.Change) {
	if c.From == nil {
		t.Fatalf("%v sets what was unset", c)
	}
	down := c.To.Cmp(*c.From) < 0
	live, known := in.Live[c.Container]
	if c.Resource == "memory" && down {
		if !known {
			t.Fatalf("%v lowers memory without a word on its use", c)
		}
		floor := float64(max(live.WorkingSet, live.PeakWorkingSet)) * (1 + in.Settings.Resize.DecreaseMargin)
		if c.Field.Field == v1alpha1.FieldLimit && float64(c.To.Value()) < math.Floor(floor) {
			t.Fatalf("%v is below the use of %v and its margin", c, live)
		}
	}
	if c.Reason != resize.ReasonStep {
		return
	}
	target, ok := targetOf(in, c.Field)
	if !ok {
		t.Fatalf("%v without a recommendation", c)
	}
	gap, moved := target-c.From.MilliValue(), c.To.MilliValue()-c.From.MilliValue()
	free := class(in.Pod) != corev1.PodQOSGuaranteed && len(in.Bounds.LimitRanges) == 0 && in.Node.Node.Status.Allocatable == nil
	if free && (gap > 0) != (moved > 0) {
		t.Fatalf("%v goes away from %d", c, target)
	}
	unit := 1.0
	if c.Resource == "memory" {
		unit = 1000
	}
	if most := math.Abs(float64(gap)) * in.Settings.Resize.MaxChangePerCycle; free && math.Abs(float64(moved)) > most+unit {
		t.Fatalf("%v closes more of the gap to %d than %v", c, target, in.Settings.Resize.MaxChangePerCycle)
	}
}

// targetOf returns where a field should end, in thousandths: what is
// recommended, within the policy's bounds, and a request no higher than where
// its limit is or should end.
func targetOf(in resize.PlanInput, f resize.Field) (int64, bool) {
	for _, st := range in.Profile.Containers {
		for _, r := range st.Recommendations {
			if st.Name != f.Container || r.Resource != f.Resource || r.Field != f.Field {
				continue
			}
			for _, rule := range in.Settings.Rules {
				if rule.Resource != f.Resource || rule.Field != f.Field {
					continue
				}
				target := max(r.Value.MilliValue(), int64(float64(rule.Min)*1000))
				if rule.Max > 0 {
					target = min(target, int64(float64(rule.Max)*1000))
				}
				if f.Field == v1alpha1.FieldRequest {
					lf := resize.Field{Container: f.Container, Resource: f.Resource, Field: v1alpha1.FieldLimit}
					if lim, ok := limitOf(in.Pod, f); ok {
						if to, ok := targetOf(in, lf); ok {
							lim = to
						}
						target = min(target, lim)
					}
				}
				return target, true
			}
		}
	}
	return 0, false
}

func limitOf(pod *corev1.Pod, f resize.Field) (int64, bool) {
	for _, c := range allContainers(pod) {
		if q, ok := c.Resources.Limits[f.Resource]; ok && c.Name == f.Container {
			return q.MilliValue(), true
		}
	}
	return 0, false
}
