// Package build makes Kubernetes objects for tests in one readable expression:
//
//	build.Pod("shop", "web-0").Label("app", "web").
//		Container(build.Container("app").Request("cpu", "100m").Limit("memory", "1Gi")).
//		Obj()
//
// Every method changes its builder and returns it; Obj returns a copy, so one
// builder can make several objects.
package build

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// set adds an entry to a map that may be nil.
func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// ContainerBuilder makes a container.
type ContainerBuilder struct{ c corev1.Container }

// Container starts a container that runs the image "<name>:1".
func Container(name string) *ContainerBuilder {
	return &ContainerBuilder{corev1.Container{Name: name, Image: name + ":1"}}
}

// Request sets a resource request; it panics if amount is not a quantity.
func (b *ContainerBuilder) Request(name corev1.ResourceName, amount string) *ContainerBuilder {
	set((*map[corev1.ResourceName]resource.Quantity)(&b.c.Resources.Requests), name, resource.MustParse(amount))
	return b
}

// Limit sets a resource limit; it panics if amount is not a quantity.
func (b *ContainerBuilder) Limit(name corev1.ResourceName, amount string) *ContainerBuilder {
	set((*map[corev1.ResourceName]resource.Quantity)(&b.c.Resources.Limits), name, resource.MustParse(amount))
	return b
}

// Command sets the command; nodes of test/env understand "exit CODE AFTER".
func (b *ContainerBuilder) Command(command ...string) *ContainerBuilder {
	b.c.Command = command
	return b
}

// ResizePolicy says what a change of a resource does to the container.
func (b *ContainerBuilder) ResizePolicy(name corev1.ResourceName, policy corev1.ResourceResizeRestartPolicy) *ContainerBuilder {
	b.c.ResizePolicy = append(b.c.ResizePolicy, corev1.ContainerResizePolicy{ResourceName: name, RestartPolicy: policy})
	return b
}

// Sidecar makes an init container one that is restarted and keeps running.
func (b *ContainerBuilder) Sidecar() *ContainerBuilder {
	always := corev1.ContainerRestartPolicyAlways
	b.c.RestartPolicy = &always
	return b
}

// Obj returns the container.
func (b *ContainerBuilder) Obj() corev1.Container { return *b.c.DeepCopy() }

// NamespaceBuilder makes a Namespace.
type NamespaceBuilder struct{ n corev1.Namespace }

// Namespace starts a namespace.
func Namespace(name string) *NamespaceBuilder {
	return &NamespaceBuilder{corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}}
}

// Label sets a label.
func (b *NamespaceBuilder) Label(key, value string) *NamespaceBuilder {
	set(&b.n.Labels, key, value)
	return b
}

// Obj returns the namespace.
func (b *NamespaceBuilder) Obj() *corev1.Namespace { return b.n.DeepCopy() }

// NodeBuilder makes a Node that is ready.
type NodeBuilder struct{ n corev1.Node }

// Node starts a ready node with 8 cores, 16 GiB and room for 110 pods.
func Node(name string) *NodeBuilder {
	b := &NodeBuilder{corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}}
	return b.Allocatable("cpu", "8").Allocatable("memory", "16Gi").Allocatable("pods", "110")
}

// Label sets a label.
func (b *NodeBuilder) Label(key, value string) *NodeBuilder {
	set(&b.n.Labels, key, value)
	return b
}

// Allocatable sets what the node has of a resource, as capacity and as
// allocatable; it panics if amount is not a quantity.
func (b *NodeBuilder) Allocatable(name corev1.ResourceName, amount string) *NodeBuilder {
	q := resource.MustParse(amount)
	set((*map[corev1.ResourceName]resource.Quantity)(&b.n.Status.Capacity), name, q)
	set((*map[corev1.ResourceName]resource.Quantity)(&b.n.Status.Allocatable), name, q)
	return b
}

// Obj returns the node.
func (b *NodeBuilder) Obj() *corev1.Node { return b.n.DeepCopy() }
