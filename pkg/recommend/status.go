package recommend

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
)

// Statuses returns the containers as they stand in a profile's status, at most as many as it can hold.
func (r Result) Statuses() []v1alpha1.ContainerStatus {
	const most = 64 // the status's own bound
	out := make([]v1alpha1.ContainerStatus, 0, len(r.Containers))
	for _, c := range r.Containers[:min(len(r.Containers), most)] {
		s := v1alpha1.ContainerStatus{Name: c.Name, OOMKills: int32(min(c.OOMKills, math.MaxInt32))}
		for _, u := range c.Usage {
			s.Usage = append(s.Usage, u.status())
		}
		for _, rec := range c.Recommendations {
			s.Recommendations = append(s.Recommendations, rec.status())
		}
		out = append(out, s)
	}
	return out
}

// status writes use to the nearest millicore or KiB.
func (u Usage) status() v1alpha1.ResourceUsage {
	nearest := func(a sample.Amount) resource.Quantity {
		if u.Resource.IsCPU() {
			return sample.Amount(math.Round(float64(a)*1000) / 1000).Quantity(u.Resource)
		}
		return sample.Amount(math.Round(float64(a)/1024) * 1024).Quantity(u.Resource)
	}
	return v1alpha1.ResourceUsage{
		Resource: u.Resource.String(), Average: nearest(u.Average), P50: nearest(u.P50), P95: nearest(u.P95),
		P99: nearest(u.P99), Max: nearest(u.Max), Samples: u.Samples, CoveredMinutes: int64(u.CoveredMinutes),
	}
}

func (r Recommendation) status() v1alpha1.Recommendation {
	estimate := r.quantity(r.Estimate)
	s := v1alpha1.Recommendation{
		Resource: r.Resource, Field: r.Field,
		Value: r.quantity(r.Value), Estimate: &estimate,
		Reason: string(r.Reason), Explanation: r.Short(),
	}
	if r.Share.Known {
		s.ShareAbove = percent(r.Share.Above)
	}
	return s
}

func (r Recommendation) quantity(a sample.Amount) resource.Quantity {
	sampled, _ := seriesOf(r.Resource)
	return a.Quantity(sampled)
}

// percent writes a share with at most two decimals; what is not quite all or nothing stays so.
func percent(share float64) v1alpha1.Percent {
	p := math.Round(share*1e4) / 100
	switch {
	case share >= 1:
		return "100%"
	case share > 0 && p == 0:
		p = 0.01
	case p >= 100:
		p = 99.99
	}
	return v1alpha1.Percent(strconv.FormatFloat(p, 'f', -1, 64) + "%")
}

// Summary returns "request/limit" of a resource summed over all containers, "-" for a part that is recommended for none,
// and nothing if neither is.
func (r Result) Summary(name corev1.ResourceName) string {
	sums := map[v1alpha1.ResourceField]sample.Amount{}
	for _, c := range r.Containers {
		for _, rec := range c.Recommendations {
			if rec.Resource == name {
				sums[rec.Field] += rec.Value
			}
		}
	}
	if len(sums) == 0 {
		return ""
	}
	part := func(f v1alpha1.ResourceField) string {
		sum, ok := sums[f]
		if !ok {
			return "-"
		}
		return Format(sum, name)
	}
	return part(v1alpha1.FieldRequest) + "/" + part(v1alpha1.FieldLimit)
}
