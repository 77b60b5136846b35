package v1alpha1

// Labels and annotations that Plimsoll reads or writes on pods and namespaces.
const (
	// LabelMode enrols a pod, or as a default all pods of a namespace; its value is a Mode.
	LabelMode = "plimsoll.dev/mode"
	// LabelContainerProfile names the ContainerProfile, in the pod's namespace, that a pod adopts.
	LabelContainerProfile = "plimsoll.dev/container-profile"
	// LabelModeSource marks a mode label that was copied from the namespace (value ModeSourceNamespace).
	LabelModeSource = "plimsoll.dev/mode-source"
	// AnnotationPolicyRef records the policy that governs a pod, as "Kind/namespace/name",
	// "Kind/name" for cluster-scoped ones, or "nopolicy".
	AnnotationPolicyRef = "plimsoll.dev/policy-ref"
	// AnnotationProfileRef records the name of the WorkloadProfile a pod belongs to.
	AnnotationProfileRef = "plimsoll.dev/profile-ref"
	// AnnotationApplied records, as compact JSON, the values admission set and what they were set from.
	AnnotationApplied = "plimsoll.dev/applied"
	// AnnotationResize records, as compact JSON, the outcome of the last in-place resize.
	AnnotationResize = "plimsoll.dev/resize"
	// ModeSourceNamespace is the value of LabelModeSource on copied modes.
	ModeSourceNamespace = "namespace"
	// ProfileFinalizer holds a WorkloadProfile until its measurements are purged from Redis.
	ProfileFinalizer = "plimsoll.dev/purge-measurements"
	// ConfigName is the name of the only PlimsollConfig that is read.
	ConfigName = "plimsoll"
)

// Mode says how far Plimsoll may go with a pod; each mode includes the ones before it.
type Mode string

// The modes a pod can be enrolled with.
const (
	ModeOff     Mode = "off"
	ModeMeasure Mode = "measure"
	ModeApply   Mode = "apply"
	ModeResize  Mode = "resize"
)

// ParseMode returns the mode a label value names; false for any other text.
func ParseMode(s string) (Mode, bool) {
	switch m := Mode(s); m {
	case ModeOff, ModeMeasure, ModeApply, ModeResize:
		return m, true
	}
	return ModeOff, false
}

// Measures reports whether containers of a pod in this mode are measured.
func (m Mode) Measures() bool { return m == ModeMeasure || m.Applies() }

// Applies reports whether admission sets recommended values on a pod in this mode.
func (m Mode) Applies() bool { return m == ModeApply || m == ModeResize }

// Resizes reports whether running pods in this mode are resized in place.
func (m Mode) Resizes() bool { return m == ModeResize }

// Kinds of policy, as they stand in references.
const (
	KindResourcePolicy        = "ResourcePolicy"
	KindClusterResourcePolicy = "ClusterResourcePolicy"
)

// DefaultIdentityLabels are the pod labels that make up a workload's identity
// when PlimsollConfig names none.
func DefaultIdentityLabels() []string {
	return []string{"app.kubernetes.io/name", "app.kubernetes.io/component"}
}
