// Package sample holds the typed amounts everything measured is expressed in: which resource, and how much of it.
package sample

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Resource is one measured series of a container; its number is part of the stored format and is never reused.
type Resource uint8

const (
	// CPU is use in cores over the sampling interval.
	CPU Resource = 0
	// CPUBurst is use in cores over windows of 100 ms, the length of the scheduler's default quota period.
	CPUBurst Resource = 1
	// Memory is the sampled memory in bytes, working set or anonymous as the policy says.
	Memory Resource = 2
	// MemoryPeak is the largest memory of an interval in bytes.
	MemoryPeak Resource = 3
	// EphemeralStorage is the use of node-local disk in bytes.
	EphemeralStorage Resource = 4

	// Count is the number of resources: every Resource is below it, so an array of this length can be indexed by one.
	Count = 5
)

// Resources lists every resource in the order of their numbers.
var Resources = [Count]Resource{CPU, CPUBurst, Memory, MemoryPeak, EphemeralStorage}

var names = [Count]string{"cpu", "cpu-burst", "memory", "memory-peak", "ephemeral-storage"}

// String returns the resource's name as it stands in policies and statuses.
func (r Resource) String() string {
	if int(r) >= Count {
		return fmt.Sprintf("resource-%d", uint8(r))
	}
	return names[r]
}

// ParseResource returns the resource of a name, or an error listing the valid ones.
func ParseResource(name string) (Resource, error) {
	for i, n := range names {
		if n == name {
			return Resource(i), nil
		}
	}
	return 0, fmt.Errorf("resource %q is not known: use one of %v", name, names)
}

// IsCPU reports whether amounts of the resource are cores; all others are bytes.
func (r Resource) IsCPU() bool { return r == CPU || r == CPUBurst }

// KubeName returns the Kubernetes resource that a request or limit derived from this series is set on.
func (r Resource) KubeName() corev1.ResourceName {
	switch r {
	case CPU, CPUBurst:
		return corev1.ResourceCPU
	case Memory, MemoryPeak:
		return corev1.ResourceMemory
	default:
		return corev1.ResourceEphemeralStorage
	}
}

// Amount is a quantity of a resource in its base unit: cores for cpu and cpu-burst, bytes for the others.
type Amount float64

// FromQuantity converts a Kubernetes quantity (cores or bytes) to an Amount.
func FromQuantity(q resource.Quantity) Amount {
	return Amount(q.AsApproximateFloat64())
}

// Quantity converts the amount to a Kubernetes quantity, rounded up to a whole millicore or byte. Anything that is
// not a positive number becomes zero, and what does not fit becomes the largest quantity.
func (a Amount) Quantity(r Resource) resource.Quantity {
	if r.IsCPU() {
		return *resource.NewMilliQuantity(ceil(float64(a)*1000), resource.DecimalSI)
	}
	return *resource.NewQuantity(ceil(float64(a)), resource.BinarySI)
}

// ceil rounds up, but takes what exceeds a whole number only by the error of the arithmetic before it as that number:
// 1.1 * 1000 is 1100, not 1101.
func ceil(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	noise := math.Min(0.5, math.Max(1e-6, v*4e-16))
	return int64(math.Ceil(v - noise))
}
