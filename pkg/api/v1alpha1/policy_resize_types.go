package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Resize says how running pods are resized in place.
type Resize struct {
	// threshold is the drift from the recommendation below which nothing is
	// done. Default 10%.
	// +optional
	Threshold Percent `json:"threshold,omitempty"`
	// thresholds override threshold per resource and field.
	// +optional
	Thresholds *Thresholds `json:"thresholds,omitempty"`
	// maxChangePerCycle is the share of the gap that one resize may close; the
	// last step lands exactly. Default 50%.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self != '0%'",message="maxChangePerCycle must be above 0%"
	MaxChangePerCycle Percent `json:"maxChangePerCycle,omitempty"`
	// interval is the least time between two resizes of a pod. Default 15m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5s') && duration(self) <= duration('24h')",message="interval must lie between 5s and 24h"
	Interval *metav1.Duration `json:"interval,omitempty"`
	// maxConcurrent bounds the pods of a profile that are resized at once: a
	// count, or a share of the profile's pods rounded down to at least one.
	// Default 10%.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? (int(self) >= 1 && int(self) <= 1000) : string(self).matches('^([1-9][0-9]?|100)%$')",message="maxConcurrent must be a count from 1 to 1000 or a share from 1% to 100%"
	MaxConcurrent *intstr.IntOrString `json:"maxConcurrent,omitempty"`
	// canary resizes a share of the pods first and watches them. Default none.
	// +optional
	Canary *Canary `json:"canary,omitempty"`
	// patience bounds the wait for the kubelet.
	// +optional
	Patience *Patience `json:"patience,omitempty"`
	// decreaseMargin is kept above live usage when a memory limit is lowered.
	// Default 10%.
	// +optional
	DecreaseMargin Percent `json:"decreaseMargin,omitempty"`
	// allowRestart permits resizes of containers whose resizePolicy asks for a
	// restart. Default false.
	// +optional
	AllowRestart *bool `json:"allowRestart,omitempty"`
	// rollback watches a resized pod and takes a harmful change back.
	// +optional
	Rollback *Rollback `json:"rollback,omitempty"`
	// schedule lists the windows in which resizes are allowed. Empty means always.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Schedule []ScheduleWindow `json:"schedule,omitempty"`
	// dryRun only records what would be resized. Default false.
	// +optional
	DryRun *bool `json:"dryRun,omitempty"`
}

// Thresholds override the drift threshold per resource.
type Thresholds struct {
	// cpu thresholds.
	// +optional
	CPU *FieldThresholds `json:"cpu,omitempty"`
	// memory thresholds.
	// +optional
	Memory *FieldThresholds `json:"memory,omitempty"`
}

// FieldThresholds override the drift threshold per field.
type FieldThresholds struct {
	// request threshold.
	// +optional
	Request Percent `json:"request,omitempty"`
	// limit threshold.
	// +optional
	Limit Percent `json:"limit,omitempty"`
}

// Canary resizes a share of a profile's pods first.
type Canary struct {
	// fraction of the pods that go first. Default 0%: no canary.
	// +optional
	Fraction Percent `json:"fraction,omitempty"`
	// watch is how long they are watched before the rest follow. Default 10m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="watch must lie between 10s and 24h"
	Watch *metav1.Duration `json:"watch,omitempty"`
}

// Patience bounds the wait for the kubelet to act on a resize.
type Patience struct {
	// deferred is how long a Deferred resize may wait before it is withdrawn. Default 5m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="deferred must lie between 10s and 24h"
	Deferred *metav1.Duration `json:"deferred,omitempty"`
	// inProgress is how long an accepted resize may take. Default 15m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="inProgress must lie between 10s and 24h"
	InProgress *metav1.Duration `json:"inProgress,omitempty"`
}

// Rollback says when a resize is taken back.
type Rollback struct {
	// watch is how long a pod is watched after a resize. Default 10m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="watch must lie between 10s and 24h"
	Watch *metav1.Duration `json:"watch,omitempty"`
	// throttledShare is the share of throttled periods above which the resize
	// is taken back. Default 25%.
	// +optional
	ThrottledShare Percent `json:"throttledShare,omitempty"`
}

// ScheduleWindow is a weekly window in which resizes are allowed.
// +kubebuilder:validation:XValidation:rule="self.start != self.end",message="start and end must differ"
type ScheduleWindow struct {
	// days on which the window opens. Empty means every day.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	// +kubebuilder:validation:items:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
	Days []string `json:"days,omitempty"`
	// start of the window, as HH:MM.
	// +required
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	Start string `json:"start"`
	// end of the window, as HH:MM; before start means on the next day.
	// +required
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	End string `json:"end"`
	// timeZone of start and end, as an IANA name. Default UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}
