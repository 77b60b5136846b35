package policy

import (
	corev1 "k8s.io/api/core/v1"
)

// Input is everything a policy's selector can look at. Only NewInput makes one
// that matches anything; the zero Input matches no policy.
type Input struct {
	namespace   string
	kind        string
	labels      map[string]string
	annotations map[string]string
	whole       bool
}

// NewInput returns the input of a pod. The namespace is the one the pod lives
// in or is created in: at admission the request's, since the pod's own may still
// be empty. topOwnerKind is the kind of the pod's top-level owner, "Pod" for a
// pod without a controller. The pod must not change while the input is used.
func NewInput(pod *corev1.Pod, namespace string, topOwnerKind string) Input {
	if pod == nil {
		return Input{}
	}
	return Input{
		namespace:   namespace,
		kind:        topOwnerKind,
		labels:      pod.Labels,
		annotations: pod.Annotations,
		whole:       true,
	}
}
