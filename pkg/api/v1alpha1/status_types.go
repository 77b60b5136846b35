package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PolicyPodStatusSpec identifies who speaks about which policy.
type PolicyPodStatusSpec struct {
	// pod is the name of the webhook replica's pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// policyRef names the policy.
	// +required
	PolicyRef PolicyReference `json:"policyRef"`
}

// PolicyPodStatusStatus is what one replica says about one policy.
type PolicyPodStatusStatus struct {
	// parentUID is the UID of the policy object the replica has seen.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ParentUID string `json:"parentUID,omitempty"`
	// parentGeneration is the generation of the policy the replica has seen.
	// +optional
	ParentGeneration int64 `json:"parentGeneration,omitempty"`
	// state: Compiled or Error.
	// +optional
	State PolicyState `json:"state,omitempty"`
	// message says why the policy did not compile.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// podsMatched counts the enrolled pods the policy governs.
	// +optional
	PodsMatched int32 `json:"podsMatched,omitempty"`
}

// PolicyPodStatus is one webhook replica's word about one policy; only that
// replica writes it, and it is collected with the replica's pod.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=pps,categories=plimsoll
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.policyRef.kind`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.policyRef.name`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
type PolicyPodStatus struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec identifies replica and policy.
	// +required
	Spec PolicyPodStatusSpec `json:"spec"`
	// status is the replica's word.
	// +optional
	Status PolicyPodStatusStatus `json:"status,omitempty"`
}

// PolicyPodStatusList is a list of PolicyPodStatus.
// +kubebuilder:object:root=true
type PolicyPodStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PolicyPodStatus `json:"items"`
}

// AgentStatusSpec identifies an agent.
type AgentStatusSpec struct {
	// nodeName is the node the agent runs on.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
}

// CgroupMode is the layout of the node's cgroup hierarchies.
// +kubebuilder:validation:Enum=v1;v2;hybrid
type CgroupMode string

// The cgroup modes.
const (
	CgroupV1     CgroupMode = "v1"
	CgroupV2     CgroupMode = "v2"
	CgroupHybrid CgroupMode = "hybrid"
)

// AgentStatusStatus is what an agent says about itself.
type AgentStatusStatus struct {
	// conditions: Ready (sampling and flushing work).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// version of the agent.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Version string `json:"version,omitempty"`
	// kernelVersion of the node.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	KernelVersion string `json:"kernelVersion,omitempty"`
	// cgroupMode of the node.
	// +optional
	CgroupMode CgroupMode `json:"cgroupMode,omitempty"`
	// programs are the eBPF programs and why one is missing.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	Programs []ProgramStatus `json:"programs,omitempty"`
	// containers that are measured.
	// +optional
	Containers int32 `json:"containers,omitempty"`
	// unflushedBytes of measurements wait for Redis.
	// +optional
	UnflushedBytes int64 `json:"unflushedBytes,omitempty"`
	// lastFlush is when measurements last reached Redis.
	// +optional
	LastFlush *metav1.Time `json:"lastFlush,omitempty"`
	// lastError is the newest error.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LastError string `json:"lastError,omitempty"`
	// heartbeat is when the agent last wrote this status.
	// +optional
	Heartbeat *metav1.Time `json:"heartbeat,omitempty"`
}

// ProgramStatus is the state of one eBPF program on a node.
type ProgramStatus struct {
	// name of the program: cgroups, lifecycle, runqueue or oom.
	// +required
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
	// loaded is true when the program runs.
	// +optional
	Loaded bool `json:"loaded,omitempty"`
	// message says why it does not.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// AgentStatus is one agent's word about itself, named after its node.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ags,categories=plimsoll
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Cgroup",type=string,JSONPath=`.status.cgroupMode`
// +kubebuilder:printcolumn:name="Containers",type=integer,JSONPath=`.status.containers`
// +kubebuilder:printcolumn:name="Flushed",type=date,JSONPath=`.status.lastFlush`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AgentStatus struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec identifies the agent.
	// +required
	Spec AgentStatusSpec `json:"spec"`
	// status is the agent's word.
	// +optional
	Status AgentStatusStatus `json:"status,omitempty"`
}

// AgentStatusList is a list of AgentStatus.
// +kubebuilder:object:root=true
type AgentStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AgentStatus `json:"items"`
}
