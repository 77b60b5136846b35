package profile

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// KindPod is the kind of top-level owner of a pod without a controller.
const KindPod = "Pod"

// climbed are the owners that have an owner of their own to look up.
var climbed = []schema.GroupVersionKind{
	{Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	{Group: "batch", Version: "v1", Kind: "Job"},
}

// Owners finds pods' top-level owners in metadata-only caches, with one live
// read of what the cache does not hold (yet).
type Owners struct {
	cache client.Reader
	live  client.Reader
	infos map[schema.GroupVersionKind]*informer
}

// informer starts watching its kind when it is first asked.
type informer struct {
	gvk  schema.GroupVersionKind
	from cache.Cache
	mu   sync.Mutex
	got  cache.Informer
}

// NewOwners returns Owners over a manager's cache and its uncached reader.
func NewOwners(from cache.Cache, live client.Reader) *Owners {
	o := &Owners{cache: from, live: live, infos: map[schema.GroupVersionKind]*informer{}}
	for _, gvk := range climbed {
		o.infos[gvk] = &informer{gvk: gvk, from: from}
	}
	return o
}

// Top returns the kind and name of the pod's top-level owner: for a ReplicaSet
// or Job the controller of that one, if it has one, else the pod's own controller,
// else the pod itself. The namespace is the pod's, at admission the request's.
// known is false when the owner is nowhere to be found, and kind and name are
// then the pod's direct controller's; err says why it could not be read.
func (o *Owners) Top(ctx context.Context, pod *corev1.Pod, namespace string) (kind, name string, known bool, err error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return KindPod, pod.Name, true, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	info := o.infos[gvk]
	if info == nil {
		return ref.Kind, ref.Name, true, nil
	}
	owner, err := o.find(ctx, info, types.NamespacedName{Namespace: namespace, Name: ref.Name}, ref.UID)
	if err != nil {
		return ref.Kind, ref.Name, false, fmt.Errorf("reading %s %s/%s, the owner of a pod: %w", ref.Kind, namespace, ref.Name, err)
	}
	if owner == nil {
		return ref.Kind, ref.Name, false, nil
	}
	if top := metav1.GetControllerOf(owner); top != nil {
		return top.Kind, top.Name, true, nil
	}
	return ref.Kind, ref.Name, true, nil
}

// find returns the owner of that UID, nil when there is none.
func (o *Owners) find(ctx context.Context, info *informer, key types.NamespacedName, uid types.UID) (*metav1.PartialObjectMetadata, error) {
	owner := &metav1.PartialObjectMetadata{}
	owner.SetGroupVersionKind(info.gvk)
	// A cache that has not synced would hold the caller until its deadline.
	if info.synced(ctx) {
		err := o.cache.Get(ctx, key, owner)
		if err == nil && owner.UID == uid {
			return owner, nil
		}
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(info.gvk)
	switch err := o.live.Get(ctx, key, live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case live.UID != uid:
		return nil, nil
	default:
		return live, nil
	}
}

// synced reports whether the kind's cache can be asked; it never waits.
func (i *informer) synced(ctx context.Context) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.got == nil {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(i.gvk)
		got, err := i.from.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return false
		}
		i.got = got
	}
	return i.got.HasSynced()
}
