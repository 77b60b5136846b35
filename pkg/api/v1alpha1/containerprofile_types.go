package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ContainerProfileSpec is the envelope a team expects its containers to stay in.
type ContainerProfileSpec struct {
	// containers holds the envelope of each container by name.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Containers []ContainerEnvelope `json:"containers"`
}

// ContainerEnvelope is the use expected of one container.
type ContainerEnvelope struct {
	// name of the container.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// cpu use that is expected.
	// +optional
	CPU *Envelope `json:"cpu,omitempty"`
	// memory use that is expected.
	// +optional
	Memory *Envelope `json:"memory,omitempty"`
	// startup is the longest start that is expected.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="startup must lie between 0s and 1h"
	Startup *metav1.Duration `json:"startup,omitempty"`
}

// Envelope bounds the use of one resource.
// +kubebuilder:validation:XValidation:rule="!has(self.typical) || !has(self.max) || quantity(string(self.typical)).compareTo(quantity(string(self.max))) <= 0",message="typical must not be above max"
type Envelope struct {
	// typical use; longer use above it is a deviation.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	Typical *resource.Quantity `json:"typical,omitempty"`
	// max is the largest use that is expected at any moment.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="!string(self).startsWith('-')",message="must not be negative"
	Max *resource.Quantity `json:"max,omitempty"`
}

// ContainerProfile is an envelope written by hand. A pod that names it with the
// label plimsoll.dev/container-profile is held against it instead of against
// what was learned.
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=cprof,categories=plimsoll
// +kubebuilder:printcolumn:name="Containers",type=string,JSONPath=`.spec.containers[*].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ContainerProfile struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is the envelope.
	// +required
	Spec ContainerProfileSpec `json:"spec"`
}

// ContainerProfileList is a list of ContainerProfile.
// +kubebuilder:object:root=true
type ContainerProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ContainerProfile `json:"items"`
}
