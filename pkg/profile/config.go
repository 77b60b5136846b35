package profile

import (
	"time"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// IdentityLabels returns the configured identity labels, or the default ones.
func IdentityLabels(spec v1alpha1.PlimsollConfigSpec) []string {
	if len(spec.IdentityLabels) == 0 {
		return v1alpha1.DefaultIdentityLabels()
	}
	return spec.IdentityLabels
}

const defaultOrphanTTL = 168 * time.Hour

// OrphanTTL returns how long a profile without pods is kept.
func OrphanTTL(spec v1alpha1.PlimsollConfigSpec) time.Duration {
	if spec.OrphanTTL == nil {
		return defaultOrphanTTL
	}
	return spec.OrphanTTL.Duration
}
