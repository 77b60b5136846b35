// Package profile is the only place that names a workload's profile: which pods
// are enrolled, which identity they have, and every name, hash and text derived
// from it.
package profile
