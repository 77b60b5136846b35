// Package v1alpha1 holds the Kubernetes objects of Plimsoll: the policies that
// decide how containers are measured and sized, the profiles that hold what was
// learned, and the statuses that many writers keep about them.
//
// +kubebuilder:object:generate=true
// +groupName=plimsoll.dev
package v1alpha1
