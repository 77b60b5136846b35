package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourcePolicySpec says which pods a policy governs and how their containers
// are measured, sized at creation and resized while they run. Every omitted
// field takes the running release's default when the policy is read.
type ResourcePolicySpec struct {
	// priority ranks policies of the same scope: the higher one governs. Among
	// equals the name decides. A ResourcePolicy beats every ClusterResourcePolicy.
	// Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	Priority *int32 `json:"priority,omitempty"`

	// selector decides which pods the policy governs; all given parts must
	// match, and an empty selector matches every enrolled pod in the policy's
	// scope. It decides who governs a pod; it cannot narrow which pods a
	// profile's label query finds: whoever picks a profile's pods uses the
	// annotation plimsoll.dev/profile-ref.
	// +optional
	Selector Selector `json:"selector,omitempty"`

	// sampling says how containers are measured on their node.
	// +optional
	Sampling *Sampling `json:"sampling,omitempty"`

	// resources lists the requests and limits the policy sets. A field that is
	// not listed is left untouched.
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +listMapKey=field
	// +kubebuilder:validation:MaxItems=6
	Resources []ResourceRule `json:"resources,omitempty"`

	// oom says how memory is raised after an OOM kill.
	// +optional
	OOM *OOM `json:"oom,omitempty"`

	// readiness says how much history a recommendation needs before it is acted on.
	// +optional
	Readiness *Readiness `json:"readiness,omitempty"`

	// retention says how much history is used and how fast it loses weight.
	// +optional
	Retention *Retention `json:"retention,omitempty"`

	// apply says what admission may do to a new pod.
	// +optional
	Apply *Apply `json:"apply,omitempty"`

	// resize says how running pods are resized in place.
	// +optional
	Resize *Resize `json:"resize,omitempty"`
}

// Decimal is a non-negative decimal number written as text, such as "1.15".
// +kubebuilder:validation:MaxLength=16
// +kubebuilder:validation:Pattern=`^[0-9]{1,7}(\.[0-9]{1,6})?$`
type Decimal string

// Percent is a share from 0 to 100 percent, such as "10%" or "2.5%".
// +kubebuilder:validation:MaxLength=8
// +kubebuilder:validation:Pattern=`^([0-9]{1,2}(\.[0-9]{1,2})?|100)%$`
type Percent string

// Sampling says how containers are measured on their node.
type Sampling struct {
	// interval between two samples of a container. Default 1s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('200ms') && duration(self) <= duration('1m')",message="interval must lie between 200ms and 1m"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// sources the agent may read: cgroup files, eBPF programs. Default both.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	Sources []SamplingSource `json:"sources,omitempty"`
	// flush is the time between two writes of measurements to Redis, jittered
	// by a fifth. Default 15s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('5m')",message="flush must lie between 1s and 5m"
	Flush *metav1.Duration `json:"flush,omitempty"`
	// startup is how long after its start a container's samples are kept apart
	// from its steady state. Default 2m; 0s keeps nothing apart.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('1h')",message="startup must lie between 0s and 1h"
	Startup *metav1.Duration `json:"startup,omitempty"`
	// memory chooses what counts as a container's memory: workingSet (usage less
	// page cache that no process maps and reclaimable slab) or anon (anonymous
	// memory only). Default workingSet.
	// +optional
	Memory MemoryMeasure `json:"memory,omitempty"`
}

// SamplingSource is a place the agent reads usage from.
// +kubebuilder:validation:Enum=cgroup;ebpf
type SamplingSource string

// The sources of usage.
const (
	SourceCgroup SamplingSource = "cgroup"
	SourceEBPF   SamplingSource = "ebpf"
)

// MemoryMeasure is what counts as a container's memory.
// +kubebuilder:validation:Enum=workingSet;anon
type MemoryMeasure string

// The measures of memory.
const (
	MemoryWorkingSet MemoryMeasure = "workingSet"
	MemoryAnon       MemoryMeasure = "anon"
)

// ResourceField is the field of a container's resources that a rule sets.
// +kubebuilder:validation:Enum=request;limit
type ResourceField string

// The fields a rule can set.
const (
	FieldRequest ResourceField = "request"
	FieldLimit   ResourceField = "limit"
)

// ResourceRule says how one request or limit follows from measured use.
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || quantity(string(self.min)).compareTo(quantity(string(self.max))) <= 0",message="min must not be above max"
type ResourceRule struct {
	// resource that is set: cpu, memory or ephemeral-storage.
	// +required
	// +kubebuilder:validation:Enum=cpu;memory;ephemeral-storage
	Resource corev1.ResourceName `json:"resource"`
	// field that is set: request or limit.
	// +required
	Field ResourceField `json:"field"`
	// aggregation of the measured use: avg, a percentile from p50 to p99.9,
	// max (the largest sample), or peak (the largest use the kernel saw, between
	// samples included). Default p95 for requests, peak for limits.
	// +optional
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:Pattern=`^(avg|max|peak|p[0-9]{1,3}(\.[0-9]{1,2})?)$`
	Aggregation string `json:"aggregation,omitempty"`
	// headroom multiplies the aggregated use; 1 to 10. Default 1.15.
	// +optional
	// +kubebuilder:validation:XValidation:rule="double(self) >= 1.0 && double(self) <= 10.0",message="headroom must lie between 1 and 10"
	Headroom Decimal `json:"headroom,omitempty"`
	// min is the least value that is set. Default 10m for cpu, 16Mi otherwise.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	Min *resource.Quantity `json:"min,omitempty"`
	// max is the largest value that is set, OOM raises included. Default none.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	Max *resource.Quantity `json:"max,omitempty"`
}

// OOM says how memory is raised after an OOM kill of the container: at once to
// the larger of limit × bump and limit + minBump, fading with halfLife.
type OOM struct {
	// bump multiplies the limit that was hit; 1 to 10. Default 1.2.
	// +optional
	// +kubebuilder:validation:XValidation:rule="double(self) >= 1.0 && double(self) <= 10.0",message="bump must lie between 1 and 10"
	Bump Decimal `json:"bump,omitempty"`
	// minBump is the least amount added to the limit that was hit. Default 100Mi.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	MinBump *resource.Quantity `json:"minBump,omitempty"`
	// halfLife of the raise. Default 24h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="halfLife must lie between 1m and 720h"
	HalfLife *metav1.Duration `json:"halfLife,omitempty"`
}

// Readiness says how much history makes a profile Sufficient.
type Readiness struct {
	// minSamples is the least number of samples of a container. Default 250.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MinSamples *int32 `json:"minSamples,omitempty"`
	// minTimeSpan is the least time covered by samples, counted in hours, or in
	// minutes when it is under two hours. Default 24h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="minTimeSpan must lie between 1m and 720h"
	MinTimeSpan *metav1.Duration `json:"minTimeSpan,omitempty"`
	// maxCV is the largest coefficient of variation (standard deviation over
	// mean) that counts as predictable. Default 1.5.
	// +optional
	// +kubebuilder:validation:XValidation:rule="double(self) > 0.0",message="maxCV must be above 0"
	MaxCV Decimal `json:"maxCV,omitempty"`
	// cvMeanFloor exempts near-idle resources: below this mean the variation
	// does not count. Default 25m cpu, 25Mi memory.
	// +optional
	CVMeanFloor *CVMeanFloor `json:"cvMeanFloor,omitempty"`
}

// CVMeanFloor is the mean use below which variation does not count.
type CVMeanFloor struct {
	// cpu floor. Default 25m.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	CPU *resource.Quantity `json:"cpu,omitempty"`
	// memory floor. Default 25Mi.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	Memory *resource.Quantity `json:"memory,omitempty"`
}

// Retention says how much history is used and how fast it loses weight.
// +kubebuilder:validation:XValidation:rule="!has(self.window) || !has(self.halfLife) || duration(self.halfLife) <= duration(self.window)",message="halfLife must not be above window"
type Retention struct {
	// window is the age at which measurements are dropped. Default 192h (8
	// days), or halfLife if that is longer.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h') && duration(self) <= duration('768h')",message="window must lie between 1h and 768h"
	Window *metav1.Duration `json:"window,omitempty"`
	// halfLife is the age at which a measurement has half its weight. Default
	// 24h, or window if that is shorter.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h') && duration(self) <= duration('768h')",message="halfLife must lie between 1h and 768h"
	HalfLife *metav1.Duration `json:"halfLife,omitempty"`
}

// QoSPolicy says whether a pod may change its quality-of-service class at admission.
// +kubebuilder:validation:Enum=keep;allowBurstable
type QoSPolicy string

// The quality-of-service policies.
const (
	QoSKeep           QoSPolicy = "keep"
	QoSAllowBurstable QoSPolicy = "allowBurstable"
)

// HPAPolicy says what happens to a request that a HorizontalPodAutoscaler
// targets by utilisation.
// +kubebuilder:validation:Enum=leave;ignore
type HPAPolicy string

// The policies towards horizontal autoscalers.
const (
	HPALeave  HPAPolicy = "leave"
	HPAIgnore HPAPolicy = "ignore"
)

// Apply says what admission may do to a new pod.
type Apply struct {
	// qos: keep the pod's class, or allow a BestEffort pod to become Burstable.
	// Default allowBurstable.
	// +optional
	QoS QoSPolicy `json:"qos,omitempty"`
	// hpa: leave a request alone that a HorizontalPodAutoscaler targets by
	// utilisation, or ignore the autoscaler. Default leave.
	// +optional
	HPA HPAPolicy `json:"hpa,omitempty"`
	// dryRun only records what would be set. Default false.
	// +optional
	DryRun *bool `json:"dryRun,omitempty"`
}
