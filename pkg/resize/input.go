package resize

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// Bounds are what limits a pod's values from outside the policy.
type Bounds struct {
	// LimitRanges of the pod's namespace.
	LimitRanges []corev1.LimitRange
	// Quotas of the pod's namespace; what they have left is hard less used.
	Quotas []corev1.ResourceQuota
	// Allocatable of the largest node for a new pod, of the pod's node for a
	// running one. A resource that is missing is not bounded.
	Allocatable corev1.ResourceList
}

// Autoscaled is a request that a HorizontalPodAutoscaler targets by utilisation.
type Autoscaled struct {
	Container  string // empty means every container
	Resource   corev1.ResourceName
	Autoscaler string // the autoscaler's name
}

// CreateInput is what PlanCreate decides from.
type CreateInput struct {
	Pod      *corev1.Pod // as admission sees it, LimitRange defaults filled in
	Settings *policy.Settings
	Profile  *v1alpha1.WorkloadProfileStatus
	Bounds   Bounds
	HPA      []Autoscaled
}

// Live is what the node's agent said of a running container in the last two
// minutes; a container without a fresh word has none.
type Live struct {
	WorkingSet     int64   // bytes, at the last sample
	PeakWorkingSet int64   // bytes, the largest of the last five minutes
	ThrottledShare float64 // throttled share of the non-idle periods, 0 to 1
	OOMKills       int64   // since the container's pod started
}

// Node is what a resize must know about a pod's node.
type Node struct {
	Node *corev1.Node
	// Requested is the sum of the requests of all pods on the node, the pod
	// itself included.
	Requested corev1.ResourceList
	// StaticCPU is true when the kubelet pins whole cores (CPU manager policy static).
	StaticCPU bool
}

// PlanInput is what Plan decides from.
type PlanInput struct {
	Pod      *corev1.Pod
	Settings *policy.Settings
	Profile  *v1alpha1.WorkloadProfileStatus
	Bounds   Bounds // Allocatable is taken from Node
	HPA      []Autoscaled
	Node     Node
	Live     map[string]Live // by container
	Last     Record          // the pod's last resize; zero when there was none
	Now      time.Time
}
