package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Decision is what to do with a pod and why. It sets something if and only if
// Reason is ReasonChange.
type Decision struct {
	Reason  Reason
	Message string
	// Changes in the order of the pod's containers, cpu before memory, request
	// before limit.
	Changes []Change
	// Kept are the fields a recommendation exists for that stay as they are.
	Kept []Kept
}

// Field names a request or a limit of a container.
type Field struct {
	Container string
	Resource  corev1.ResourceName
	Field     v1alpha1.ResourceField
}

// Change is a new value of a request or limit.
type Change struct {
	Field
	From   *resource.Quantity // nil when it is unset
	To     resource.Quantity
	Reason Reason // what decided the value
}

// Kept is a field that stays as it is.
type Kept struct {
	Field
	Reason  Reason
	Message string
}

// Set writes the changes into a pod.
func (d Decision) Set(pod *corev1.Pod) {
	for _, c := range d.Changes {
		if ctr := container(pod, c.Container); ctr != nil {
			put(&ctr.Resources, c.Resource, c.Field.Field, c.To)
		}
	}
}

// container returns the app container or restartable init container of a name.
func container(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return c
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c
		}
	}
	return nil
}

func valueOf(c *corev1.Container, f Field) (resource.Quantity, bool) {
	list := c.Resources.Requests
	if f.Field == v1alpha1.FieldLimit {
		list = c.Resources.Limits
	}
	q, ok := list[f.Resource]
	return q, ok
}

func put(r *corev1.ResourceRequirements, res corev1.ResourceName, f v1alpha1.ResourceField, q resource.Quantity) {
	list := &r.Requests
	if f == v1alpha1.FieldLimit {
		list = &r.Limits
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[res] = q
}

// ValueOf returns a request or limit of a pod; false when it is unset or the
// container does not run as long as the pod.
func ValueOf(pod *corev1.Pod, f Field) (resource.Quantity, bool) {
	c := container(pod, f.Container)
	if c == nil {
		return resource.Quantity{}, false
	}
	return valueOf(c, f)
}
