package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkloadProfileSpec holds the identity of a profile.
type WorkloadProfileSpec struct {
	// identity is what the profile is about; written at create and immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="identity is immutable; delete the profile to start anew"
	Identity Identity `json:"identity"`
}

// Identity of a workload: the values of the configured identity labels and the
// policy that governs it.
type Identity struct {
	// tuple holds the identity labels a pod of this workload carries, with
	// their values. A configured label the pods lack is left out.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 63)",message="a label key has at most 317 characters, a value at most 63"
	Tuple map[string]string `json:"tuple,omitempty"`
	// policyRef names the governing policy; absent when no policy governs.
	// +optional
	PolicyRef *PolicyReference `json:"policyRef,omitempty"`
	// measurementHash keys the measurements in Redis: 16 hexadecimal digits.
	// Plimsoll always writes it; a profile without it is older than the field.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{16}$`
	MeasurementHash string `json:"measurementHash,omitempty"`
}

// PolicyReference names a policy.
// +kubebuilder:validation:XValidation:rule="(self.kind == 'ResourcePolicy') == has(self.__namespace__)",message="namespace is required for a ResourcePolicy and not allowed for a ClusterResourcePolicy"
type PolicyReference struct {
	// kind: ResourcePolicy or ClusterResourcePolicy.
	// +required
	// +kubebuilder:validation:Enum=ResourcePolicy;ClusterResourcePolicy
	Kind string `json:"kind"`
	// namespace of a ResourcePolicy.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the policy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ProfileState sums a profile up in one word.
// +kubebuilder:validation:Enum=Learning;Sufficient;Stale;Orphaned
type ProfileState string

// The states of a profile.
const (
	// ProfileLearning: not enough history yet, recommendations are not acted on.
	ProfileLearning ProfileState = "Learning"
	// ProfileSufficient: enough history, recommendations are acted on.
	ProfileSufficient ProfileState = "Sufficient"
	// ProfileStale: measurements could not be read lately, nothing is acted on.
	ProfileStale ProfileState = "Stale"
	// ProfileOrphaned: no pod is left; deleted after PlimsollConfig's orphanTTL.
	ProfileOrphaned ProfileState = "Orphaned"
)

// Condition types of a WorkloadProfile.
const (
	// ConditionReady is true when measuring works.
	ConditionReady = "Ready"
	// ConditionSufficient is true when there is enough history to act on.
	ConditionSufficient = "Sufficient"
)

// WorkloadProfileStatus is what was learned about a workload. Only the
// profile's owning replica writes it.
type WorkloadProfileStatus struct {
	// conditions: Ready (measuring works), Sufficient (enough history).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// state sums the conditions up: Learning, Sufficient, Stale or Orphaned.
	// +optional
	State ProfileState `json:"state,omitempty"`
	// policyRef mirrors spec.identity.policyRef.
	// +optional
	PolicyRef *PolicyReference `json:"policyRef,omitempty"`
	// policyGeneration is the policy's generation the recommendations were computed from.
	// +optional
	PolicyGeneration int64 `json:"policyGeneration,omitempty"`
	// tupleLabels mirrors spec.identity.tuple; it never holds the policy.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	TupleLabels map[string]string `json:"tupleLabels,omitempty"`
	// selectorLabels is a label query, in kubectl's syntax, that finds the
	// workload's pods. It can find pods other policies govern too.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	SelectorLabels string `json:"selectorLabels,omitempty"`
	// measurementHash mirrors spec.identity.measurementHash.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	MeasurementHash string `json:"measurementHash,omitempty"`
	// activePods counts the live pods that belong to the profile.
	// +optional
	ActivePods int32 `json:"activePods,omitempty"`
	// orphanedAt is when the last pod went.
	// +optional
	OrphanedAt *metav1.Time `json:"orphanedAt,omitempty"`
	// containers holds use and recommendations by container name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Containers []ContainerStatus `json:"containers,omitempty"`
	// cpu sums up cpu, as "recommended request/limit" over all containers.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	CPU string `json:"cpu,omitempty"`
	// memory sums up memory, as "recommended request/limit" over all containers.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Memory string `json:"memory,omitempty"`
	// updatedAt is when the recommendations were last changed.
	// +optional
	UpdatedAt *metav1.Time `json:"updatedAt,omitempty"`
}

// ContainerStatus is what was learned about one container of a workload.
type ContainerStatus struct {
	// name of the container.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// usage by resource.
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +kubebuilder:validation:MaxItems=8
	Usage []ResourceUsage `json:"usage,omitempty"`
	// recommendations by resource and field.
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +listMapKey=field
	// +kubebuilder:validation:MaxItems=6
	Recommendations []Recommendation `json:"recommendations,omitempty"`
	// oomKills counts the OOM kills that are remembered.
	// +optional
	OOMKills int32 `json:"oomKills,omitempty"`
}

// ResourceUsage sums up the measured use of one resource within the policy's window.
type ResourceUsage struct {
	// resource: cpu, cpu-burst (use in windows of 100 ms), memory, memory-peak
	// or ephemeral-storage.
	// +required
	// +kubebuilder:validation:Enum=cpu;cpu-burst;memory;memory-peak;ephemeral-storage
	Resource string `json:"resource"`
	// average use.
	// +optional
	Average resource.Quantity `json:"average,omitempty"`
	// p50 is the median use.
	// +optional
	P50 resource.Quantity `json:"p50,omitempty"`
	// p95 use.
	// +optional
	P95 resource.Quantity `json:"p95,omitempty"`
	// p99 use.
	// +optional
	P99 resource.Quantity `json:"p99,omitempty"`
	// max is the largest use.
	// +optional
	Max resource.Quantity `json:"max,omitempty"`
	// samples counts the samples.
	// +optional
	Samples int64 `json:"samples,omitempty"`
	// coveredMinutes counts the minutes that samples cover.
	// +optional
	CoveredMinutes int64 `json:"coveredMinutes,omitempty"`
}

// Recommendation is one request or limit that follows from use and policy.
type Recommendation struct {
	// resource: cpu, memory or ephemeral-storage.
	// +required
	// +kubebuilder:validation:Enum=cpu;memory;ephemeral-storage
	Resource corev1.ResourceName `json:"resource"`
	// field: request or limit.
	// +required
	Field ResourceField `json:"field"`
	// value that is recommended, floors and caps applied.
	// +required
	Value resource.Quantity `json:"value"`
	// estimate is the value before floors and caps.
	// +optional
	Estimate *resource.Quantity `json:"estimate,omitempty"`
	// reason is the last step that changed the value: Estimated, FlooredByPolicy,
	// CappedByPolicy, CappedByNode, RaisedByOOM, RaisedByStartup or LoweredToLimit.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// explanation derives the value in one line.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Explanation string `json:"explanation,omitempty"`
	// shareAbove is, for a cpu limit, the predicted share of throttled 100 ms
	// periods, and for a memory limit the observed share of time above it.
	// +optional
	ShareAbove Percent `json:"shareAbove,omitempty"`
}

// WorkloadProfile holds what was learned about one workload under one policy.
// Plimsoll creates, updates and deletes it; deleting one by hand starts its
// history anew.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=wp,categories=plimsoll
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.identity.policyRef.name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.activePods`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.status.cpu`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.memory`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkloadProfile struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec holds the identity.
	// +required
	Spec WorkloadProfileSpec `json:"spec"`
	// status is what was learned.
	// +optional
	Status WorkloadProfileStatus `json:"status,omitempty"`
}

// WorkloadProfileList is a list of WorkloadProfile.
// +kubebuilder:object:root=true
type WorkloadProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkloadProfile `json:"items"`
}
