package resize

import (
	"cmp"
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

// Target is the object a HorizontalPodAutoscaler scales: the pod's top-level
// owner or one between.
type Target struct{ Kind, Name string }

// AutoscaledRequests returns the requests that autoscalers of the pod's
// namespace target by utilisation, sorted. Targets are the pod's owners.
func AutoscaledRequests(hpas []autoscalingv2.HorizontalPodAutoscaler, targets ...Target) []Autoscaled {
	var out []Autoscaled
	for i := range hpas {
		ref := hpas[i].Spec.ScaleTargetRef
		if !slices.Contains(targets, Target{ref.Kind, ref.Name}) {
			continue
		}
		for _, m := range hpas[i].Spec.Metrics {
			a := Autoscaled{Autoscaler: hpas[i].Name}
			var t autoscalingv2.MetricTarget
			switch {
			case m.Resource != nil:
				a.Resource, t = m.Resource.Name, m.Resource.Target
			case m.ContainerResource != nil:
				a.Container, a.Resource, t = m.ContainerResource.Container, m.ContainerResource.Name, m.ContainerResource.Target
			}
			if t.Type == autoscalingv2.UtilizationMetricType {
				out = append(out, a)
			}
		}
		if len(hpas[i].Spec.Metrics) == 0 { // the API server's default: cpu at 80 %
			out = append(out, Autoscaled{Resource: corev1.ResourceCPU, Autoscaler: hpas[i].Name})
		}
	}
	slices.SortFunc(out, func(a, b Autoscaled) int {
		return cmp.Or(cmp.Compare(a.Autoscaler, b.Autoscaler), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Container, b.Container))
	})
	return out
}
