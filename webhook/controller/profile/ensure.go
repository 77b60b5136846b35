package profile

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

// making keeps the many pods of a new profile from each making it.
type making struct {
	locks [64]sync.Mutex
	mu    sync.Mutex
	made  map[string]bool // made here and perhaps not in the cache yet
}

var seed = maphash.MakeSeed()

func (m *making) lock(name string) *sync.Mutex {
	return &m.locks[maphash.String(seed, name)%uint64(len(m.locks))]
}

func (m *making) has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.made[name]
}

func (m *making) add(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made == nil {
		m.made = map[string]bool{}
	}
	m.made[name] = true
}

func (m *making) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.made, name)
}

// ensureProfile makes the key's profile unless it is there.
func (r *podReconciler) ensureProfile(ctx context.Context, key profile.Key) error {
	name := key.Name()
	lock := r.making.lock(name)
	lock.Lock()
	defer lock.Unlock()
	p := &v1alpha1.WorkloadProfile{}
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, p, client.UnsafeDisableDeepCopy)
	switch {
	case err == nil:
		r.making.forget(name)
		return r.check(ctx, p, key)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading WorkloadProfile %s: %w", name, err)
	case r.making.has(name):
		return nil
	}
	p = &v1alpha1.WorkloadProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.ProfileFinalizer}},
		Spec:       v1alpha1.WorkloadProfileSpec{Identity: key.Identity()},
	}
	if err := r.client.Create(ctx, p); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating WorkloadProfile %s: %w", name, err)
	}
	r.making.add(name)
	return nil
}

// check compares the profile of that name with the key it should have been made
// from. One made before the measurement hash was recorded is replaced: its
// identity cannot be changed, and nothing is measured under its old hash any more.
func (r *podReconciler) check(ctx context.Context, p *v1alpha1.WorkloadProfile, key profile.Key) error {
	id := p.Spec.Identity
	if profile.KeyOfIdentity(id) != key {
		return fmt.Errorf("WorkloadProfile %s belongs to another identity (%s, policy %s): delete it to let this one be made",
			p.Name, profile.KeyOfIdentity(id).Selector(), profile.FormatRef(profile.KeyOfIdentity(id).Ref()))
	}
	if id.MeasurementHash == key.MeasurementHash() || p.DeletionTimestamp != nil {
		return nil
	}
	log.FromContext(ctx).Info("replacing a profile made before its measurement hash was recorded", "profile", p.Name)
	err := r.client.Delete(ctx, p.DeepCopy(), client.Preconditions{UID: &p.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting WorkloadProfile %s, which has no measurement hash: %w", p.Name, err)
	}
	return nil
}
