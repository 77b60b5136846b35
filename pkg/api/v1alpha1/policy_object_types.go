package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourcePolicyStatus is what the webhook replicas say about a policy.
type ResourcePolicyStatus struct {
	// conditions: Ready (every expected replica compiled the policy), Overlap
	// (another policy of equal rank matches some of its pods).
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// profileDiscriminator ends the names of all profiles this policy governs.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ProfileDiscriminator string `json:"profileDiscriminator,omitempty"`
	// pods is how many enrolled pods the policy governs.
	// +optional
	Pods int32 `json:"pods,omitempty"`
	// profiles is how many profiles the policy governs.
	// +optional
	Profiles int32 `json:"profiles,omitempty"`
	// byPod holds what each webhook replica says, sorted by pod name.
	// +optional
	// +listType=map
	// +listMapKey=pod
	// +kubebuilder:validation:MaxItems=256
	ByPod []PolicyStatusByPod `json:"byPod,omitempty"`
}

// PolicyStatusByPod is what one webhook replica says about a policy.
type PolicyStatusByPod struct {
	// pod is the replica's pod name.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// parentGeneration is the policy's generation the replica has seen.
	// +optional
	ParentGeneration int64 `json:"parentGeneration,omitempty"`
	// state: Compiled or Error.
	// +optional
	State PolicyState `json:"state,omitempty"`
	// message says why the policy did not compile.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PolicyState says whether a replica could compile a policy.
// +kubebuilder:validation:Enum=Compiled;Error
type PolicyState string

// The states of a policy in a replica.
const (
	PolicyCompiled PolicyState = "Compiled"
	PolicyError    PolicyState = "Error"
)

// ResourcePolicy governs the enrolled pods of its own namespace.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rp,categories=plimsoll
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Discriminator",type=string,JSONPath=`.status.profileDiscriminator`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourcePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec says which pods are governed and how.
	// +optional
	Spec ResourcePolicySpec `json:"spec,omitempty"`
	// status is what the webhook replicas say about the policy.
	// +optional
	Status ResourcePolicyStatus `json:"status,omitempty"`
}

// ResourcePolicyList is a list of ResourcePolicy.
// +kubebuilder:object:root=true
type ResourcePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourcePolicy `json:"items"`
}

// ClusterResourcePolicy governs enrolled pods of any namespace that no
// ResourcePolicy of their own namespace governs.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=crp,categories=plimsoll
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Discriminator",type=string,JSONPath=`.status.profileDiscriminator`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterResourcePolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec says which pods are governed and how.
	// +optional
	Spec ResourcePolicySpec `json:"spec,omitempty"`
	// status is what the webhook replicas say about the policy.
	// +optional
	Status ResourcePolicyStatus `json:"status,omitempty"`
}

// ClusterResourcePolicyList is a list of ClusterResourcePolicy.
// +kubebuilder:object:root=true
type ClusterResourcePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterResourcePolicy `json:"items"`
}
