package resize_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
)

func TestPlanCreate(t *testing.T) {
	pod := func(c ...corev1.Container) *corev1.Pod {
		p := running(c...)
		p.Status = corev1.PodStatus{}
		return p
	}
	both := recommend("cpu request", "800m", "cpu limit", "2", "memory request", "200Mi", "memory limit", "400Mi")
	idle := recommend("cpu request", "10m", "cpu limit", "10m", "memory request", "16Mi", "memory limit", "16Mi")
	tests := map[string]struct {
		pod      *corev1.Pod
		recs     v1alpha1.ContainerStatus
		settings *policy.Settings
		with     func(*resize.CreateInput)
		want     map[string]string
		kept     map[string]resize.Reason
	}{
		"C50 the request keeps under a limit the policy leaves alone": {
			pod: pod(ctr("c", list("cpu", "500m"), list("cpu", "500m"))), recs: both,
			settings: rules(rule("cpu", "request"), rule("memory", "request")),
			want:     map[string]string{"c memory request": "→200Mi Recommended"},
		},
		"C50 a lower request under such a limit": {
			pod: pod(ctr("c", list("cpu", "100m"), list("cpu", "500m"))), recs: both,
			settings: rules(rule("cpu", "request")),
			want:     map[string]string{"c cpu request": "100m→500m LoweredToLimit"},
		},
		"a limit stops at a request the policy leaves alone": {
			pod: pod(ctr("c", list("cpu", "3"), list("cpu", "4"))), recs: both,
			settings: rules(rule("cpu", "limit")),
			want:     map[string]string{"c cpu limit": "4→3001m QoSClass"},
			with: func(in *resize.CreateInput) {
				in.Pod.Spec.Containers[0].Resources.Requests["memory"] = list("memory", "1Gi")["memory"]
				in.Pod.Spec.Containers[0].Resources.Limits["memory"] = list("memory", "1Gi")["memory"]
			},
		},
		"BestEffort becomes Burstable": {
			pod: pod(ctr("c", nil, nil)), recs: both,
			want: map[string]string{"c cpu request": "→800m Recommended", "c cpu limit": "→2 Recommended", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
		},
		"BestEffort never becomes Guaranteed": {
			pod: pod(ctr("c", nil, nil)), recs: idle,
			want: map[string]string{"c cpu request": "→10m Recommended", "c cpu limit": "→11m QoSClass", "c memory request": "→16Mi Recommended", "c memory limit": "→16Mi Recommended"},
		},
		"BestEffort is kept": {
			pod: pod(ctr("c", nil, nil)), recs: both,
			with: func(in *resize.CreateInput) { in.Settings.Apply.QoS = v1alpha1.QoSKeep },
			want: map[string]string{},
			kept: map[string]resize.Reason{"c cpu request": resize.ReasonQoS, "c cpu limit": resize.ReasonQoS, "c memory request": resize.ReasonQoS, "c memory limit": resize.ReasonQoS},
		},
		"C51 Guaranteed moves together": {
			pod: pod(ctr("c", list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))), recs: both,
			want: map[string]string{"c cpu request": "1→2 Recommended", "c cpu limit": "1→2 Recommended", "c memory request": "1Gi→400Mi Recommended", "c memory limit": "1Gi→400Mi Recommended"},
		},
		"C51 Guaranteed is left alone when the policy sets only requests": {
			pod: pod(ctr("c", list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))), recs: both,
			settings: rules(rule("cpu", "request"), rule("memory", "request")),
			want:     map[string]string{},
			kept:     map[string]resize.Reason{"c cpu request": resize.ReasonQoS, "c memory request": resize.ReasonQoS},
		},
		"what LimitRanger filled in counts as unset": {
			pod: pod(ctr("c", list("cpu", "1", "memory", "1Gi"), list("cpu", "1", "memory", "1Gi"))), recs: both,
			with: func(in *resize.CreateInput) {
				in.Pod.Annotations = map[string]string{"kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"}
			},
			want: map[string]string{"c cpu request": "1→800m Recommended", "c cpu limit": "1→2 Recommended", "c memory request": "1Gi→200Mi Recommended", "c memory limit": "1Gi→400Mi Recommended"},
		},
		"C56 an HPA targets cpu": {
			pod: pod(ctr("c", list("cpu", "100m"), nil)), recs: both,
			with: func(in *resize.CreateInput) {
				in.HPA = []resize.Autoscaled{{Container: "c", Resource: "cpu", Autoscaler: "h"}}
			},
			want: map[string]string{"c cpu limit": "→2 Recommended", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
			kept: map[string]resize.Reason{"c cpu request": resize.ReasonAutoscaled},
		},
		"the largest node": {
			pod: pod(ctr("c", list("cpu", "100m"), nil)), recs: both,
			with: func(in *resize.CreateInput) { in.Bounds.Allocatable = list("cpu", "500m", "memory", "300Mi") },
			want: map[string]string{"c cpu request": "100m→500m NodeAllocatable", "c cpu limit": "→500m NodeAllocatable", "c memory request": "→200Mi Recommended", "c memory limit": "→300Mi NodeAllocatable"},
		},
		"the policy's maximum": {
			pod: pod(ctr("c", nil, nil)), recs: both,
			settings: func() *policy.Settings { s := settings(); s.Rules[1].Max = 1; return s }(),
			want:     map[string]string{"c cpu request": "→800m Recommended", "c cpu limit": "→1 PolicyBound", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
		},
		"a LimitRange for the pod": {
			pod: pod(ctr("c", nil, nil), ctr("d", list("cpu", "400m"), list("cpu", "400m"))), recs: both,
			with: func(in *resize.CreateInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: list("cpu", "1")})}
			},
			want: map[string]string{"c cpu request": "→600m LimitRange", "c cpu limit": "→600m LimitRange", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
		},
		"a LimitRange's ratio raises the request": {
			pod: pod(ctr("c", nil, nil)), recs: both,
			with: func(in *resize.CreateInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, MaxLimitRequestRatio: list("cpu", "2")})}
			},
			want: map[string]string{"c cpu request": "→1 LimitRange", "c cpu limit": "→2 Recommended", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
		},
		"nothing left in the quota": {
			pod: pod(ctr("c", nil, nil)), recs: both,
			with: func(in *resize.CreateInput) {
				in.Bounds.Quotas = []corev1.ResourceQuota{quota("limits.memory", "1Gi", "1Gi")}
			},
			want: map[string]string{"c cpu request": "→800m Recommended", "c cpu limit": "→2 Recommended", "c memory request": "→200Mi Recommended"},
			kept: map[string]resize.Reason{"c memory limit": resize.ReasonQuota},
		},
		"a limit alone asks for no more than the policy's maximum for requests": {
			pod: pod(ctr("c", nil, nil)), recs: recommend("cpu limit", "2", "memory limit", "400Mi"),
			settings: func() *policy.Settings { s := settings(); s.Rules[0].Max = 0.5; return s }(),
			want:     map[string]string{"c cpu request": "→500m PolicyBound", "c cpu limit": "→2 Recommended", "c memory limit": "→400Mi Recommended"},
		},
		"a limit alone asks for no more than a node has": {
			pod: pod(ctr("c", list("memory", "1Gi"), nil)), recs: recommend("cpu limit", "2"),
			with: func(in *resize.CreateInput) { in.Bounds.Allocatable = list("cpu", "1500m") },
			want: map[string]string{"c cpu limit": "→1500m NodeAllocatable"},
		},
		"a limit alone that asks for more than a quota has left": {
			pod: pod(ctr("c", list("memory", "1Gi"), nil)), recs: recommend("cpu limit", "2"),
			with: func(in *resize.CreateInput) {
				in.Bounds.Quotas = []corev1.ResourceQuota{quota("requests.cpu", "2", "1")}
			},
			want: map[string]string{},
			kept: map[string]resize.Reason{"c cpu limit": resize.ReasonQuota},
		},
		"a limit alone that asks for more than a LimitRange allows the pod": {
			pod: pod(ctr("c", list("memory", "1Gi"), nil), ctr("d", list("cpu", "500m"), list("cpu", "500m"))), recs: recommend("cpu limit", "2"),
			with: func(in *resize.CreateInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: list("cpu", "1")})}
			},
			want: map[string]string{},
			kept: map[string]resize.Reason{"c cpu limit": resize.ReasonLimitRange},
		},
		"a LimitRange's least for the pod": {
			pod: pod(ctr("c", list("cpu", "2"), nil), sidecar(ctr("s", list("cpu", "100m"), nil))), recs: recommend("cpu request", "200m"),
			with: func(in *resize.CreateInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: list("cpu", "1")})}
			},
			want: map[string]string{"c cpu request": "2→900m LimitRange"},
		},
		"a LimitRange's ratio for the pod": {
			pod: pod(ctr("c", list("cpu", "2"), list("cpu", "2")), sidecar(ctr("s", list("cpu", "500m"), list("cpu", "1")))), recs: recommend("cpu request", "200m"),
			with: func(in *resize.CreateInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypePod, MaxLimitRequestRatio: list("cpu", "2")})}
			},
			want: map[string]string{"c cpu request": "2→1 LimitRange"},
		},
		"a sidecar is sized, an init container is not": {
			pod: pod(sidecar(ctr("c", nil, nil)), ctr("d", list("cpu", "100m"), nil)), recs: both,
			want: map[string]string{"c cpu request": "→800m Recommended", "c cpu limit": "→2 Recommended", "c memory request": "→200Mi Recommended", "c memory limit": "→400Mi Recommended"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := resize.CreateInput{Pod: tc.pod, Settings: tc.settings, Profile: profile(tc.recs)}
			if in.Settings == nil {
				in.Settings = settings()
			}
			if tc.with != nil {
				tc.with(&in)
			}
			d := resize.PlanCreate(in)
			if diff := cmp.Diff(tc.want, values(d)); diff != "" {
				t.Errorf("%s %s\n%s", d.Reason, d.Message, diff)
			}
			if tc.kept == nil {
				tc.kept = map[string]resize.Reason{}
			}
			if diff := cmp.Diff(tc.kept, kept(d)); diff != "" {
				t.Errorf("kept %s", diff)
			}
			d.Set(in.Pod)
			if again := resize.PlanCreate(in); len(again.Changes) > 0 {
				t.Errorf("C52: planning again changes %v", values(again))
			}
		})
	}
}
