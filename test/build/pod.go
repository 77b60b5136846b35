package build

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodBuilder makes a Pod.
type PodBuilder struct{ p corev1.Pod }

// Pod starts a pod without containers.
func Pod(namespace, name string) *PodBuilder {
	return &PodBuilder{corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}}
}

// UID sets the UID, which an API server would replace.
func (b *PodBuilder) UID(uid string) *PodBuilder {
	b.p.UID = types.UID(uid)
	return b
}

// Label sets a label.
func (b *PodBuilder) Label(key, value string) *PodBuilder {
	set(&b.p.Labels, key, value)
	return b
}

// Annotation sets an annotation.
func (b *PodBuilder) Annotation(key, value string) *PodBuilder {
	set(&b.p.Annotations, key, value)
	return b
}

// Owner makes an object the pod's controller; its UID is its name.
func (b *PodBuilder) Owner(apiVersion, kind, name string) *PodBuilder {
	b.p.OwnerReferences = append(b.p.OwnerReferences, owner(apiVersion, kind, name))
	return b
}

func owner(apiVersion, kind, name string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name), Controller: &yes}
}

// Node binds the pod to a node.
func (b *PodBuilder) Node(name string) *PodBuilder {
	b.p.Spec.NodeName = name
	return b
}

// RestartPolicy says whether containers that end are started again.
func (b *PodBuilder) RestartPolicy(policy corev1.RestartPolicy) *PodBuilder {
	b.p.Spec.RestartPolicy = policy
	return b
}

// Container adds containers.
func (b *PodBuilder) Container(containers ...*ContainerBuilder) *PodBuilder {
	for _, c := range containers {
		b.p.Spec.Containers = append(b.p.Spec.Containers, c.Obj())
	}
	return b
}

// InitContainer adds init containers.
func (b *PodBuilder) InitContainer(containers ...*ContainerBuilder) *PodBuilder {
	for _, c := range containers {
		b.p.Spec.InitContainers = append(b.p.Spec.InitContainers, c.Obj())
	}
	return b
}

// Running gives the pod the status it has once all its containers run with the
// resources of its spec; only status updates take it to an API server.
func (b *PodBuilder) Running() *PodBuilder {
	b.p.Status.Phase = corev1.PodRunning
	b.p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
	}
	b.p.Status.ContainerStatuses = running(b.p.Spec.Containers)
	b.p.Status.InitContainerStatuses = running(b.p.Spec.InitContainers)
	return b
}

func running(containers []corev1.Container) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	yes := true
	for _, c := range containers {
		statuses = append(statuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ContainerID: "test://" + c.Name, Ready: true, Started: &yes,
			State:     corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			Resources: c.Resources.DeepCopy(), AllocatedResources: c.Resources.Requests.DeepCopy(),
		})
	}
	return statuses
}

// Obj returns the pod.
func (b *PodBuilder) Obj() *corev1.Pod { return b.p.DeepCopy() }

// DeploymentBuilder makes a Deployment.
type DeploymentBuilder struct{ d appsv1.Deployment }

// Deployment starts a Deployment of one pod made by the builder, whose labels
// are the selector.
func Deployment(namespace, name string, pod *PodBuilder) *DeploymentBuilder {
	p := pod.Obj()
	return &DeploymentBuilder{appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations},
				Spec:       p.Spec,
			},
		},
	}}
}

// Replicas sets the number of pods.
func (b *DeploymentBuilder) Replicas(n int32) *DeploymentBuilder {
	b.d.Spec.Replicas = &n
	return b
}

// Label sets a label of the Deployment itself.
func (b *DeploymentBuilder) Label(key, value string) *DeploymentBuilder {
	set(&b.d.Labels, key, value)
	return b
}

// Obj returns the Deployment.
func (b *DeploymentBuilder) Obj() *appsv1.Deployment { return b.d.DeepCopy() }

// ReplicaSet returns the ReplicaSet that would stand between a Deployment and
// its pods.
func ReplicaSet(namespace, name, deployment string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{owner("apps/v1", "Deployment", deployment)},
	}}
}
