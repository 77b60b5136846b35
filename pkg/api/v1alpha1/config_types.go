package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PlimsollConfigSpec configures the whole installation.
type PlimsollConfigSpec struct {
	// identityLabels are the pod labels whose values make up a workload's
	// identity. Changing them starts new profiles. Default
	// app.kubernetes.io/name and app.kubernetes.io/component.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x == y))",message="each identity label may stand once"
	// +kubebuilder:validation:XValidation:rule="self.all(l, l.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="each identity label must be a label's name, such as app.kubernetes.io/name: no pod can have any other"
	IdentityLabels []string `json:"identityLabels,omitempty"`
	// orphanTTL is how long a profile without pods is kept. Default 168h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('8760h')",message="orphanTTL must lie between 1m and 8760h"
	OrphanTTL *metav1.Duration `json:"orphanTTL,omitempty"`
	// suspended is the kill switch: admission passes pods through untouched and
	// nothing is resized; measuring goes on. Default false.
	// +optional
	Suspended *bool `json:"suspended,omitempty"`
}

// PlimsollConfigStatus sums up the installation.
type PlimsollConfigStatus struct {
	// agents sums up what the agents say about themselves.
	// +optional
	Agents *AgentsSummary `json:"agents,omitempty"`
}

// AgentsSummary counts the agents and names the worst.
type AgentsSummary struct {
	// expected is how many agents should report.
	// +optional
	Expected int32 `json:"expected,omitempty"`
	// reporting is how many do.
	// +optional
	Reporting int32 `json:"reporting,omitempty"`
	// healthy is how many of them are healthy.
	// +optional
	Healthy int32 `json:"healthy,omitempty"`
	// worst names the unhealthy ones, at most 20.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=20
	Worst []UnhealthyAgent `json:"worst,omitempty"`
}

// UnhealthyAgent says why an agent is not healthy.
type UnhealthyAgent struct {
	// node the agent runs on.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// reason it is not healthy.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
	// message in the agent's words.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// PlimsollConfig configures the whole installation; only the one named
// "plimsoll" is allowed.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=plimsoll
// +kubebuilder:printcolumn:name="Suspended",type=boolean,JSONPath=`.spec.suspended`
// +kubebuilder:printcolumn:name="Agents",type=integer,JSONPath=`.status.agents.expected`
// +kubebuilder:printcolumn:name="Healthy",type=integer,JSONPath=`.status.agents.healthy`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'plimsoll'",message="the only PlimsollConfig is named plimsoll"
type PlimsollConfig struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec configures the installation.
	// +optional
	Spec PlimsollConfigSpec `json:"spec,omitempty"`
	// status sums it up.
	// +optional
	Status PlimsollConfigStatus `json:"status,omitempty"`
}

// PlimsollConfigList is a list of PlimsollConfig.
// +kubebuilder:object:root=true
type PlimsollConfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlimsollConfig `json:"items"`
}
