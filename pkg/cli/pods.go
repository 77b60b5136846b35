package cli

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
)

// shortKinds are kubectl's short names and plurals of kinds that own pods.
var shortKinds = map[string]string{
	"po": "pod", "pods": "pod", "deploy": "deployment", "deployments": "deployment", "sts": "statefulset",
	"statefulsets": "statefulset", "ds": "daemonset", "daemonsets": "daemonset", "rs": "replicaset", "replicasets": "replicaset",
	"jobs": "job", "cj": "cronjob", "cronjobs": "cronjob", "wp": "workloadprofile", "workloadprofiles": "workloadprofile",
}

// podsOf returns the pods that are, or belong to, what is named; an empty kind is any. A pod comes before a workload of
// the same name.
func podsOf(ctx context.Context, c client.Client, namespace, kind, name string) ([]corev1.Pod, error) {
	if kind == "" || kind == "pod" {
		var pod corev1.Pod
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)
		if err == nil {
			return []corev1.Pod{pod}, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
		}
		if kind == "pod" {
			return nil, nil
		}
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing pods of namespace %s: %w", namespace, err)
	}
	owners := ownerTree{client: c, namespace: namespace, parents: map[metav1.OwnerReference]*metav1.OwnerReference{}}
	var out []corev1.Pod
	for _, pod := range pods.Items {
		owned, err := owners.owns(ctx, kind, name, metav1.GetControllerOf(&pod))
		if err != nil {
			return nil, err
		}
		if owned {
			out = append(out, pod)
		}
	}
	return out, nil
}

// ownerTree reads each owner once.
type ownerTree struct {
	client    client.Client
	namespace string
	parents   map[metav1.OwnerReference]*metav1.OwnerReference
}

// owns reports whether an owner, or one above it, is what is named.
func (t *ownerTree) owns(ctx context.Context, kind, name string, owner *metav1.OwnerReference) (bool, error) {
	const levels = 4 // more than any controller nests
	for range levels {
		if owner == nil {
			return false, nil
		}
		if owner.Name == name && (kind == "" || strings.EqualFold(kind, owner.Kind)) {
			return true, nil
		}
		if owner.Kind != "ReplicaSet" && owner.Kind != "Job" {
			return false, nil
		}
		next, err := t.parent(ctx, *owner)
		if err != nil {
			return false, err
		}
		owner = next
	}
	return false, nil
}

func (t *ownerTree) parent(ctx context.Context, owner metav1.OwnerReference) (*metav1.OwnerReference, error) {
	key := owner
	key.BlockOwnerDeletion, key.Controller = nil, nil // pointers do not compare
	if parent, ok := t.parents[key]; ok {
		return parent, nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind))
	err := t.client.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: owner.Name}, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading %s %s: %w", owner.Kind, owner.Name, err)
	}
	t.parents[key] = metav1.GetControllerOf(object)
	return t.parents[key], nil
}

// quantity writes a quantity for people; name is a resource as it stands in a status.
func quantity(q resource.Quantity, name string) string {
	r := corev1.ResourceName(name)
	if parsed, err := sample.ParseResource(name); err == nil {
		r = parsed.KubeName()
	}
	return recommend.Format(sample.FromQuantity(q), r)
}
