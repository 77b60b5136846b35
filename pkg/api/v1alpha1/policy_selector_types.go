package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selector matches pods by their top-level owner, namespace, annotations and labels.
type Selector struct {
	// kinds are the kinds of a pod's top-level owner that match: Deployment for
	// a pod of a ReplicaSet of a Deployment, CronJob for one of a Job of a
	// CronJob, else the kind of its controller; "Pod" for a pod without one.
	// They decide who governs a pod and cannot narrow what is measured.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Kinds []string `json:"kinds,omitempty"`

	// namespaces narrows a ClusterResourcePolicy to some namespaces. In a
	// ResourcePolicy it can only exclude that policy's own namespace.
	// +optional
	Namespaces *NamespaceSelector `json:"namespaces,omitempty"`

	// annotations are matched against the pod's: an exact value, or /regex/
	// anchored at both ends. All must match. They decide who governs a pod and
	// cannot narrow what is measured.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.size() <= 317 && self[k].size() <= 256)",message="an annotation key has at most 317 characters, a pattern at most 256"
	Annotations map[string]Pattern `json:"annotations,omitempty"`

	// labelSelector is matched against the pod's labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// NamespaceSelector matches namespaces by name: an exact name, or /regex/
// anchored at both ends.
type NamespaceSelector struct {
	// include lists the namespaces that match; empty means all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Include []Pattern `json:"include,omitempty"`
	// exclude lists namespaces that do not match, whatever include says.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Exclude []Pattern `json:"exclude,omitempty"`
}

// Pattern is an exact text, or a regular expression (RE2) between slashes,
// anchored at both ends: "/.*-prod/".
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=256
type Pattern string
