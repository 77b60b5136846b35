package recommend

import (
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
)

// What moves with every sample would be written for ever. A status is written when a word in it changes (state,
// conditions, reasons, containers), when the policy's generation does, or when a number moves by more than its noise; all
// else comes along with the next write.
const (
	valueNoise = 0.02 // of a recommended value, a fifth of the smallest useful resize threshold
	usageNoise = 0.10 // of a statistic of use
	shareNoise = 1.0  // points of a share
	// The least differences that count, however small the values: millicores and bytes.
	cpuNoise   = 0.002
	bytesNoise = 2 << 20
)

// matters reports whether a status differs from the one before by more than noise.
func matters(old, changed v1alpha1.WorkloadProfileStatus) bool {
	if old.State != changed.State || old.PolicyGeneration != changed.PolicyGeneration ||
		conditionsDiffer(old.Conditions, changed.Conditions) || len(old.Containers) != len(changed.Containers) {
		return true
	}
	for i := range changed.Containers {
		if containerDiffers(old.Containers[i], changed.Containers[i]) {
			return true
		}
	}
	return false
}

func conditionsDiffer(old, changed []metav1.Condition) bool {
	if len(old) != len(changed) {
		return true
	}
	for i := range changed {
		a, b := old[i], changed[i]
		if a.Type != b.Type || a.Status != b.Status || a.Reason != b.Reason || a.Message != b.Message {
			return true
		}
	}
	return false
}

func containerDiffers(old, changed v1alpha1.ContainerStatus) bool {
	if old.Name != changed.Name || old.OOMKills != changed.OOMKills ||
		len(old.Recommendations) != len(changed.Recommendations) || len(old.Usage) != len(changed.Usage) {
		return true
	}
	for i := range changed.Recommendations {
		a, b := old.Recommendations[i], changed.Recommendations[i]
		if a.Resource != b.Resource || a.Field != b.Field || a.Reason != b.Reason ||
			differs(a.Value, b.Value, a.Resource, valueNoise) || math.Abs(points(a.ShareAbove)-points(b.ShareAbove)) > shareNoise {
			return true
		}
	}
	for i := range changed.Usage {
		if usageDiffers(old.Usage[i], changed.Usage[i]) {
			return true
		}
	}
	return false
}

func usageDiffers(old, changed v1alpha1.ResourceUsage) bool {
	if old.Resource != changed.Resource {
		return true
	}
	r, err := sample.ParseResource(changed.Resource)
	if err != nil {
		return true
	}
	for _, pair := range [][2]resource.Quantity{
		{old.Average, changed.Average}, {old.P50, changed.P50}, {old.P95, changed.P95}, {old.P99, changed.P99}, {old.Max, changed.Max},
	} {
		if differs(pair[0], pair[1], r.KubeName(), usageNoise) {
			return true
		}
	}
	return false
}

func differs(old, changed resource.Quantity, r corev1.ResourceName, share float64) bool {
	a, b := float64(sample.FromQuantity(old)), float64(sample.FromQuantity(changed))
	least := float64(bytesNoise)
	if r == corev1.ResourceCPU {
		least = cpuNoise
	}
	return math.Abs(a-b) > math.Max(least*1.001, share*math.Max(a, b))
}

// points reads a share as percentage points; an absent one is far from any.
func points(p v1alpha1.Percent) float64 {
	v, err := strconv.ParseFloat(strings.TrimSuffix(string(p), "%"), 64)
	if err != nil {
		return -100
	}
	return v
}
