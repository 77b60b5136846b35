package profile_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

// enrolled is a pod whose labels are an identity and these.
func enrolled(labels map[string]string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{nameLabel: "shop"}}}
	for k, v := range labels {
		p.Labels[k] = v
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestEnrolment(t *testing.T) {
	own := func(mode string) map[string]string { return map[string]string{v1alpha1.LabelMode: mode} }
	copied := func(mode string) map[string]string {
		return map[string]string{v1alpha1.LabelMode: mode, v1alpha1.LabelModeSource: v1alpha1.ModeSourceNamespace}
	}
	text := func(s string) *string { return &s }
	set := func(mode string) map[string]*string {
		return map[string]*string{v1alpha1.LabelMode: &mode, v1alpha1.LabelModeSource: text(v1alpha1.ModeSourceNamespace)}
	}
	remove := map[string]*string{v1alpha1.LabelMode: nil, v1alpha1.LabelModeSource: nil}
	tests := map[string]struct {
		pod        *corev1.Pod
		namespace  string // "app" if empty
		ns         map[string]string
		want       v1alpha1.Mode
		wantReason profile.Reason
		wantLabels map[string]*string
	}{
		"no label anywhere":        {pod: enrolled(nil, nil), want: v1alpha1.ModeOff, wantReason: profile.ReasonNotLabelled},
		"own label":                {pod: enrolled(own("apply"), nil), want: v1alpha1.ModeApply, wantReason: profile.ReasonPodLabel},
		"own label wins":           {pod: enrolled(own("measure"), nil), ns: own("resize"), want: v1alpha1.ModeMeasure, wantReason: profile.ReasonPodLabel},
		"own off wins":             {pod: enrolled(own("off"), nil), ns: own("resize"), want: v1alpha1.ModeOff, wantReason: profile.ReasonOff},
		"own invalid wins":         {pod: enrolled(own("on"), nil), ns: own("resize"), want: v1alpha1.ModeOff, wantReason: profile.ReasonInvalidMode},
		"own empty is invalid":     {pod: enrolled(own(""), nil), want: v1alpha1.ModeOff, wantReason: profile.ReasonInvalidMode},
		"modes are case-sensitive": {pod: enrolled(own("Measure"), nil), want: v1alpha1.ModeOff, wantReason: profile.ReasonInvalidMode},
		"namespace default": {
			pod: enrolled(nil, nil), ns: own("resize"),
			want: v1alpha1.ModeResize, wantReason: profile.ReasonNamespaceLabel, wantLabels: set("resize"),
		},
		"namespace off":     {pod: enrolled(nil, nil), ns: own("off"), want: v1alpha1.ModeOff, wantReason: profile.ReasonOff},
		"namespace invalid": {pod: enrolled(nil, nil), ns: own("yes"), want: v1alpha1.ModeOff, wantReason: profile.ReasonInvalidNamespaceMode},
		"a copy in step":    {pod: enrolled(copied("apply"), nil), ns: own("apply"), want: v1alpha1.ModeApply, wantReason: profile.ReasonNamespaceLabel},
		"a copy follows": {
			pod: enrolled(copied("apply"), nil), ns: own("measure"),
			want: v1alpha1.ModeMeasure, wantReason: profile.ReasonNamespaceLabel, wantLabels: set("measure"),
		},
		"a copy whose namespace has no mode any more": {
			pod: enrolled(copied("apply"), nil), want: v1alpha1.ModeOff, wantReason: profile.ReasonNotLabelled, wantLabels: remove,
		},
		"a copy whose namespace is off": {
			pod: enrolled(copied("apply"), nil), ns: own("off"), want: v1alpha1.ModeOff, wantReason: profile.ReasonOff, wantLabels: remove,
		},
		"a copy whose namespace is invalid": {
			pod: enrolled(copied("apply"), nil), ns: own("?"), want: v1alpha1.ModeOff, wantReason: profile.ReasonInvalidNamespaceMode, wantLabels: remove,
		},
		"kube-system":     {pod: enrolled(own("resize"), nil), namespace: "kube-system", want: v1alpha1.ModeOff, wantReason: profile.ReasonSystemNamespace},
		"Plimsoll's own":  {pod: enrolled(own("resize"), nil), namespace: "plimsoll", want: v1alpha1.ModeOff, wantReason: profile.ReasonOwnNamespace},
		"no copies there": {pod: enrolled(nil, nil), namespace: "plimsoll", ns: own("resize"), want: v1alpha1.ModeOff, wantReason: profile.ReasonOwnNamespace},
		"static pod": {
			pod:  enrolled(own("resize"), func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonStaticPod,
		},
		"static pod by its owner": {
			pod: enrolled(own("resize"), func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n"}}
			}),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonStaticPod,
		},
		"Windows by spec.os": {
			pod:  enrolled(own("resize"), func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonWindowsPod,
		},
		"Windows by node selector": {
			pod:  enrolled(own("resize"), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/os": "windows"} }),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonWindowsPod,
		},
		"pod-level resources": {
			pod: enrolled(own("resize"), func(p *corev1.Pod) {
				p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
			}),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonPodLevelResources,
		},
		"empty pod-level resources": {
			pod:  enrolled(own("resize"), func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{} }),
			want: v1alpha1.ModeResize, wantReason: profile.ReasonPodLabel,
		},
		"no identity": {
			pod:  enrolled(own("resize"), func(p *corev1.Pod) { delete(p.Labels, nameLabel) }),
			want: v1alpha1.ModeOff, wantReason: profile.ReasonNoIdentity,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			site := profile.Site{
				Namespace: "app", NamespaceLabels: test.ns, OwnNamespace: "plimsoll", IdentityLabels: v1alpha1.DefaultIdentityLabels(),
			}
			if test.namespace != "" {
				site.Namespace = test.namespace
			}
			mode, reason := profile.Enrolment(test.pod, site)
			if mode != test.want || reason != test.wantReason {
				t.Errorf("Enrolment = %s, %s, want %s, %s", mode, reason, test.want, test.wantReason)
			}
			labels := profile.ModeLabels(test.pod, site)
			if diff := cmp.Diff(test.wantLabels, labels); diff != "" {
				t.Errorf("ModeLabels: %s", diff)
			}
			for k, v := range labels { // once changed, nothing more is to be done
				if delete(test.pod.Labels, k); v != nil {
					test.pod.Labels[k] = *v
				}
			}
			if again := profile.ModeLabels(test.pod, site); len(again) > 0 {
				t.Errorf("ModeLabels again: %v", again)
			}
		})
	}
}

func TestState(t *testing.T) {
	conditions := func(ready, sufficient metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready}, {Type: v1alpha1.ConditionSufficient, Status: sufficient}}
	}
	gone := metav1.NewTime(time.Unix(1, 0))
	tests := map[string]struct {
		status v1alpha1.WorkloadProfileStatus
		want   v1alpha1.ProfileState
	}{
		"new":           {v1alpha1.WorkloadProfileStatus{}, v1alpha1.ProfileLearning},
		"not known yet": {v1alpha1.WorkloadProfileStatus{Conditions: conditions("Unknown", "Unknown")}, v1alpha1.ProfileLearning},
		"learning":      {v1alpha1.WorkloadProfileStatus{Conditions: conditions("True", "False")}, v1alpha1.ProfileLearning},
		"sufficient":    {v1alpha1.WorkloadProfileStatus{Conditions: conditions("True", "True")}, v1alpha1.ProfileSufficient},
		"stale":         {v1alpha1.WorkloadProfileStatus{Conditions: conditions("False", "True")}, v1alpha1.ProfileStale},
		"orphaned":      {v1alpha1.WorkloadProfileStatus{Conditions: conditions("True", "True"), OrphanedAt: &gone}, v1alpha1.ProfileOrphaned},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := profile.State(test.status); got != test.want {
				t.Errorf("State = %s, want %s", got, test.want)
			}
		})
	}
}
