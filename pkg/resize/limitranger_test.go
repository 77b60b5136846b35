package resize_test

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/resize"
)

// refusal says why LimitRanger would refuse a defaulted pod, "" if it would not.
func refusal(pod *corev1.Pod, ranges []corev1.LimitRange) string {
	req := total(pod, func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Requests })
	lim := total(pod, func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Limits })
	for _, lr := range ranges {
		for _, item := range lr.Spec.Limits {
			if item.Type == corev1.LimitTypePod {
				if why := outside(item, req, lim); why != "" {
					return "pod: " + why
				}
				continue
			}
			for _, c := range allContainers(pod) {
				if why := outside(item, c.Resources.Requests, c.Resources.Limits); why != "" {
					return "container " + c.Name + ": " + why
				}
			}
		}
	}
	return ""
}

func outside(item corev1.LimitRangeItem, req, lim corev1.ResourceList) string {
	for name, least := range item.Min {
		r, hasR := req[name]
		l, hasL := lim[name]
		if !hasR || r.Cmp(least) < 0 || hasL && l.Cmp(least) < 0 {
			return fmt.Sprintf("%s request %s or limit %s below %s", name, &r, &l, &least)
		}
	}
	for name, most := range item.Max {
		l, hasL := lim[name]
		if r := req[name]; !hasL || l.Cmp(most) > 0 || r.Cmp(most) > 0 {
			return fmt.Sprintf("%s request %s or limit %s above %s", name, &r, &l, &most)
		}
	}
	for name, ratio := range item.MaxLimitRequestRatio {
		r, l := req[name], lim[name]
		if r.IsZero() || l.IsZero() || float64(l.MilliValue())/float64(r.MilliValue())*1000 > float64(ratio.MilliValue()) {
			return fmt.Sprintf("%s limit %s over request %s beyond %s", name, &l, &r, &ratio)
		}
	}
	return ""
}

// total adds a pod up as LimitRanger does: init containers one after another,
// beside the restartable ones before them; the overhead is left out.
func total(pod *corev1.Pod, of func(corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	running, peak := corev1.ResourceList{}, corev1.ResourceList{}
	for _, c := range pod.Spec.InitContainers {
		at := running
		if c.RestartPolicy == nil {
			at = maps.Clone(running)
		}
		add(at, of(c.Resources))
		for name, q := range at {
			if p, ok := peak[name]; !ok || q.Cmp(p) > 0 {
				peak[name] = q.DeepCopy()
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		add(running, of(c.Resources))
	}
	for name, q := range peak {
		if r, ok := running[name]; !ok || q.Cmp(r) > 0 {
			running[name] = q
		}
	}
	return running
}

func add(to, list corev1.ResourceList) {
	for name, q := range list {
		var sum resource.Quantity
		if have, ok := to[name]; ok {
			sum = have.DeepCopy()
		}
		sum.Add(q)
		to[name] = sum
	}
}

// drawRanges draws LimitRanges around what the pod has, so that many take it.
func drawRanges(t *rapid.T, pod *corev1.Pod) []corev1.LimitRange {
	var out []corev1.LimitRange
	for _, typ := range []corev1.LimitType{corev1.LimitTypePod, corev1.LimitTypeContainer} {
		if typ == corev1.LimitTypeContainer && rapid.IntRange(0, 2).Draw(t, "container range") > 0 {
			continue
		}
		item := corev1.LimitRangeItem{Type: typ, Min: corev1.ResourceList{}, Max: corev1.ResourceList{}, MaxLimitRequestRatio: corev1.ResourceList{}}
		sum := total(pod, func(r corev1.ResourceRequirements) corev1.ResourceList { return r.Requests })
		for _, res := range []corev1.ResourceName{"cpu", "memory"} {
			if rapid.Bool().Draw(t, "min") {
				if q, ok := sum[res]; ok && typ == corev1.LimitTypePod && rapid.Bool().Draw(t, "tight") {
					item.Min[res] = q
				} else {
					item.Min[res] = qty(res, units(t, "min"))
				}
			}
			if rapid.IntRange(0, 2).Draw(t, "max") == 0 {
				item.Max[res] = qty(res, units(t, "max")*3)
			}
			if rapid.Bool().Draw(t, "ratio") {
				item.MaxLimitRequestRatio[res] = *resource.NewMilliQuantity(rapid.Int64Range(1000, 5000).Draw(t, "ratio"), resource.DecimalSI)
			}
		}
		out = append(out, limitRange(item))
	}
	return out
}

// C50: what LimitRanger takes without the changes it takes with them, the
// pod's sums included.
func TestPropertyLimitRangerAccepts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := drawPod(t)
		for i := range rapid.IntRange(0, 2).Draw(t, "init containers") {
			at := rapid.IntRange(0, len(pod.Spec.InitContainers)).Draw(t, "at")
			inits := append([]corev1.Container{}, pod.Spec.InitContainers[:at]...)
			inits = append(inits, drawContainer(t, fmt.Sprintf("i%d", i)))
			pod.Spec.InitContainers = append(inits, pod.Spec.InitContainers[at:]...)
		}
		if rapid.Bool().Draw(t, "overhead") {
			pod.Spec.Overhead = list("cpu", "100m", "memory", "64Mi")
		}
		in := resize.CreateInput{Pod: pod, Settings: drawSettings(t), Profile: drawProfile(t, pod)}
		in.Bounds = drawBounds(t)
		in.Bounds.LimitRanges = drawRanges(t, pod)
		if refusal(pod, in.Bounds.LimitRanges) != "" {
			return
		}
		d := resize.PlanCreate(in)
		after := pod.DeepCopy()
		d.Set(after)
		after = defaulted(after)
		if why := refusal(after, in.Bounds.LimitRanges); why != "" {
			t.Fatalf("%v: %s", values(d), why)
		}
		in.Pod = after
		if again := resize.PlanCreate(in); len(again.Changes) > 0 {
			t.Fatalf("C52: planned %v, and again %v", values(d), values(again))
		}
	})
}
