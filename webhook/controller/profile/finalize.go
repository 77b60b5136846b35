package profile

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
)

// ensureFinalizer puts the finalizer on a profile made without it.
func (r *profileReconciler) ensureFinalizer(ctx context.Context, p *v1alpha1.WorkloadProfile) error {
	before := p.DeepCopy()
	if !controllerutil.AddFinalizer(p, v1alpha1.ProfileFinalizer) {
		return nil
	}
	return r.patchFinalizers(ctx, before, p)
}

// finalize removes a profile's measurements and lets it go. With pods still
// there the history starts anew: what agents hold of the time before is refused.
func (r *profileReconciler) finalize(ctx context.Context, p *v1alpha1.WorkloadProfile, pods int) error {
	before := p.DeepCopy()
	if !controllerutil.RemoveFinalizer(p, v1alpha1.ProfileFinalizer) {
		return nil
	}
	if err := r.purge(ctx, p, pods); err != nil {
		if r.Now().Sub(p.DeletionTimestamp.Time) < r.retention(p) {
			return err
		}
		log.FromContext(ctx).Error(err, "giving up on removing measurements, which have expired by now", "profile", p.Name)
	}
	return r.patchFinalizers(ctx, before, p)
}

func (r *profileReconciler) purge(ctx context.Context, p *v1alpha1.WorkloadProfile, pods int) error {
	hash, ok := profile.PurgeHash(p.Spec.Identity)
	if !ok {
		return nil
	}
	remove := r.Purger.Purge
	if pods > 0 {
		remove = r.Purger.Reset
	}
	if err := remove(ctx, hash, r.Now()); err != nil {
		return fmt.Errorf("removing the measurements of WorkloadProfile %s: %w", p.Name, err)
	}
	return nil
}

// retention is how long measurements of the profile outlive their last write.
func (r *profileReconciler) retention(p *v1alpha1.WorkloadProfile) time.Duration {
	if ref := p.Spec.Identity.PolicyRef; ref != nil {
		if governing, ok := r.Resolver.Policies.Get().Load(*ref); ok {
			return governing.Settings.Retention.Window
		}
	}
	return policy.DefaultSettings().Retention.Window
}

func (r *profileReconciler) patchFinalizers(ctx context.Context, before, p *v1alpha1.WorkloadProfile) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	body, err := patch.Data(p)
	if err != nil {
		return fmt.Errorf("comparing the finalizers of WorkloadProfile %s: %w", p.Name, err)
	}
	if err := r.client.Patch(ctx, before, client.RawPatch(types.MergePatchType, body)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("changing the finalizers of WorkloadProfile %s: %w", p.Name, err)
	}
	return nil
}
