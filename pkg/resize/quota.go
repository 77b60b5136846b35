package resize

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

func (l podLayout) quotaCaps(quotas []corev1.ResourceQuota, running bool) []podCap {
	var caps []podCap
	for i := range quotas {
		q := &quotas[i]
		if !quotaCovers(q, l.pod) {
			continue
		}
		for name, hard := range q.Status.Hard {
			res, field, ok := quotaField(name)
			if !ok {
				continue
			}
			left := max(0, amount(res, hard)-max(0, amountIn2(q.Status.Used, name, res)))
			if running {
				left += l.total(res, field, true)
			}
			caps = append(caps, podCap{res, field, left, ReasonQuota})
		}
	}
	return caps
}

func amountIn2(list corev1.ResourceList, name, unit corev1.ResourceName) int64 {
	q, ok := list[name]
	if !ok {
		return unset
	}
	return amount(unit, q)
}

// quotaField returns what a name in a quota counts: "cpu" and "requests.cpu"
// are requests, "limits.cpu" are limits.
func quotaField(name corev1.ResourceName) (corev1.ResourceName, v1alpha1.ResourceField, bool) {
	field, res := v1alpha1.FieldRequest, string(name)
	if rest, ok := strings.CutPrefix(res, "requests."); ok {
		res = rest
	} else if rest, ok := strings.CutPrefix(res, "limits."); ok {
		field, res = v1alpha1.FieldLimit, rest
	}
	switch r := corev1.ResourceName(res); r {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		return r, field, true
	}
	return "", "", false
}

// quotaCovers reports whether a quota's scopes cover the pod; a scope that is
// not known here is taken to cover it.
func quotaCovers(q *corev1.ResourceQuota, pod *corev1.Pod) bool {
	for _, s := range q.Spec.Scopes {
		if !scopeCovers(corev1.ScopedResourceSelectorRequirement{ScopeName: s, Operator: corev1.ScopeSelectorOpExists}, pod) {
			return false
		}
	}
	if q.Spec.ScopeSelector == nil {
		return true
	}
	for _, r := range q.Spec.ScopeSelector.MatchExpressions {
		if !scopeCovers(r, pod) {
			return false
		}
	}
	return true
}

func scopeCovers(r corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) bool {
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return pod.Spec.ActiveDeadlineSeconds != nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return pod.Spec.ActiveDeadlineSeconds == nil
	case corev1.ResourceQuotaScopeBestEffort:
		return Class(pod) == corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopeNotBestEffort:
		return Class(pod) != corev1.PodQOSBestEffort
	case corev1.ResourceQuotaScopePriorityClass:
		in := slices.Contains(r.Values, pod.Spec.PriorityClassName)
		switch r.Operator {
		case corev1.ScopeSelectorOpIn:
			return in
		case corev1.ScopeSelectorOpNotIn:
			return !in
		case corev1.ScopeSelectorOpDoesNotExist:
			return pod.Spec.PriorityClassName == ""
		}
		return pod.Spec.PriorityClassName != ""
	}
	return true
}
