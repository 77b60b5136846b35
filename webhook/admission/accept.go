package admission

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// refusal says why the API server would refuse the pod's resources, "" if it
// would not. It repeats what validation and LimitRanger do after admission, and
// so catches whatever a decision did not think of: the pod then keeps its values.
func refusal(pod *corev1.Pod, ranges []corev1.LimitRange) string {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			req, lim := defaulted(list[i].Resources)
			for name, q := range req {
				if l, ok := lim[name]; ok && q.Cmp(l) > 0 {
					return fmt.Sprintf("%s request of container %s above its limit", name, list[i].Name)
				}
			}
			for j := range ranges {
				if why := outside(ranges[j], corev1.LimitTypeContainer, req, lim); why != "" {
					return fmt.Sprintf("container %s: %s", list[i].Name, why)
				}
			}
		}
	}
	if len(ranges) == 0 {
		return ""
	}
	req := total(pod, func(r, _ corev1.ResourceList) corev1.ResourceList { return r })
	lim := total(pod, func(_, l corev1.ResourceList) corev1.ResourceList { return l })
	for j := range ranges {
		if why := outside(ranges[j], corev1.LimitTypePod, req, lim); why != "" {
			return "pod: " + why
		}
	}
	return ""
}

// defaulted returns requests and limits as the API server completes them: a
// request that is not set is the limit.
func defaulted(r corev1.ResourceRequirements) (req, lim corev1.ResourceList) {
	req = maps.Clone(r.Requests)
	for name, q := range r.Limits {
		if _, ok := req[name]; !ok {
			if req == nil {
				req = corev1.ResourceList{}
			}
			req[name] = q
		}
	}
	return req, r.Limits
}

// outside checks amounts against the items of one type of a LimitRange.
func outside(lr corev1.LimitRange, t corev1.LimitType, req, lim corev1.ResourceList) string {
	for _, item := range lr.Spec.Limits {
		if item.Type != t {
			continue
		}
		for name, least := range item.Min {
			r, hasR := req[name]
			l, hasL := lim[name]
			if !hasR || r.Cmp(least) < 0 || hasL && l.Cmp(least) < 0 {
				return fmt.Sprintf("%s below the least of LimitRange %s", name, lr.Name)
			}
		}
		for name, most := range item.Max {
			l, hasL := lim[name]
			if r := req[name]; !hasL || l.Cmp(most) > 0 || r.Cmp(most) > 0 {
				return fmt.Sprintf("%s above the most of LimitRange %s", name, lr.Name)
			}
		}
		for name, ratio := range item.MaxLimitRequestRatio {
			r, l := req[name], lim[name]
			if r.IsZero() || l.IsZero() || l.AsApproximateFloat64()/r.AsApproximateFloat64() > ratio.AsApproximateFloat64()*(1+1e-12) {
				return fmt.Sprintf("%s beyond the ratio of LimitRange %s", name, lr.Name)
			}
		}
	}
	return ""
}

// total adds a pod's requests or limits up: init containers run one after
// another, beside the restartable ones before them.
func total(pod *corev1.Pod, of func(req, lim corev1.ResourceList) corev1.ResourceList) corev1.ResourceList {
	running, peak := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		list := of(defaulted(c.Resources))
		at := running
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			at = maps.Clone(running)
		}
		add(at, list)
		for name, q := range at {
			if p, ok := peak[name]; !ok || q.Cmp(p) > 0 {
				peak[name] = q.DeepCopy()
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(running, of(defaulted(pod.Spec.Containers[i].Resources)))
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
		sum := resource.Quantity{}
		if have, ok := to[name]; ok {
			sum = have.DeepCopy()
		}
		sum.Add(q)
		to[name] = sum
	}
}
