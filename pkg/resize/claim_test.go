package resize_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/resize"
)

type alive map[string]bool

func (a alive) Live(r string) bool { return a[r] }

const (
	cpuRequest  = `{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`
	memoryLimit = `{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:resources":{"f:limits":{"f:memory":{}}}}}}}`
	sidecarCPU  = `{"f:spec":{"f:initContainers":{"k:{\"name\":\"s\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}`
)

func entry(manager, subresource, fields string, age time.Duration) metav1.ManagedFieldsEntry {
	e := metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: &metav1.FieldsV1{}}
	e.FieldsV1.SetRawBytes([]byte(fields))
	at := metav1.NewTime(now.Add(-age))
	e.Time = &at
	return e
}

// The ownership table.
func TestClaimOf(t *testing.T) {
	const old, young = time.Hour, time.Minute
	tests := map[string]struct {
		entries []metav1.ManagedFieldsEntry
		want    resize.Claim
	}{
		"nobody": {want: resize.Claim{}},
		"ourselves": {
			entries: []metav1.ManagedFieldsEntry{entry("plimsoll-a", "resize", cpuRequest, young)},
			want:    resize.Claim{Carry: []resize.Field{field("c", "cpu request")}},
		},
		"the creator": {
			entries: []metav1.ManagedFieldsEntry{entry("kube-controller-manager", "", cpuRequest, old)},
			want:    resize.Claim{Force: true},
		},
		"the kubelet's status": {entries: []metav1.ManagedFieldsEntry{entry("kubelet", "status", `{"f:status":{}}`, young)}, want: resize.Claim{}},
		"a replica that is gone": {
			entries: []metav1.ManagedFieldsEntry{entry("plimsoll-gone", "resize", cpuRequest, young)},
			want:    resize.Claim{Force: true},
		},
		"a live peer, young": {
			entries: []metav1.ManagedFieldsEntry{entry("plimsoll-b", "resize", cpuRequest, young)},
			want:    resize.Claim{Reason: resize.ReasonPeer, Other: "b"},
		},
		"C74 a live peer, older than an interval": {
			entries: []metav1.ManagedFieldsEntry{entry("plimsoll-b", "resize", cpuRequest, old)},
			want:    resize.Claim{Force: true},
		},
		"a live peer owns another field": {
			entries: []metav1.ManagedFieldsEntry{entry("plimsoll-b", "resize", memoryLimit, young)},
			want:    resize.Claim{},
		},
		"C70 another autoscaler": {
			entries: []metav1.ManagedFieldsEntry{entry("vpa-updater", "resize", cpuRequest, old)},
			want:    resize.Claim{Reason: resize.ReasonFieldOwnedByOther, Other: "vpa-updater"},
		},
		"C70 counts more than a peer": {
			entries: []metav1.ManagedFieldsEntry{
				entry("kubectl-edit", "resize", cpuRequest, old), entry("plimsoll-b", "resize", cpuRequest, young),
			},
			want: resize.Claim{Reason: resize.ReasonFieldOwnedByOther, Other: "kubectl-edit"},
		},
		"C72 ourselves and the creator": {
			entries: []metav1.ManagedFieldsEntry{
				entry("plimsoll-a", "resize", memoryLimit, young), entry("kube-controller-manager", "", cpuRequest, old),
				entry("plimsoll-gone", "resize", sidecarCPU, old),
			},
			want: resize.Claim{Force: true, Carry: []resize.Field{field("c", "memory limit")}},
		},
		"nothing that can be read": {
			entries: []metav1.ManagedFieldsEntry{entry("x", "resize", `{"f:spec":[]}`, old), {Manager: "y"}},
			want:    resize.Claim{},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := burstable()
			pod.ManagedFields = tc.entries
			changes := []resize.Change{{Field: field("c", "cpu request")}}
			got := resize.ClaimOf(pod, "a", changes, alive{"a": true, "b": true}, 15*time.Minute, now)
			if got.Reason != "" {
				got.Force, got.Carry = false, nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestApplyBody(t *testing.T) {
	pod := running(sidecar(ctr("s", list("cpu", "10m"), nil)), ctr("c", list("cpu", "500m", "memory", "1Gi"), list("memory", "2Gi")), ctr("d", nil, nil))
	pod.UID, pod.ResourceVersion = "u", "7"
	changes := []resize.Change{{Field: field("c", "memory limit"), To: resource.MustParse("3Gi")}}
	tests := map[string]struct {
		claim resize.Claim
		want  string
	}{
		"C72 what is owned is carried": {
			claim: resize.Claim{Carry: []resize.Field{field("c", "cpu request"), field("s", "cpu request"), field("gone", "cpu request")}},
			want: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop","uid":"u"},"spec":{
				"containers":[{"name":"c","resources":{"limits":{"memory":"3Gi"},"requests":{"cpu":"500m"}}}],
				"initContainers":[{"name":"s","resources":{"requests":{"cpu":"10m"}}}]}}`,
		},
		"forced": {
			claim: resize.Claim{Force: true},
			want: `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop","uid":"u","resourceVersion":"7"},"spec":{
				"containers":[{"name":"c","resources":{"limits":{"memory":"3Gi"}}}]}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			body, err := resize.ApplyBody(pod, changes, tc.claim)
			if err != nil {
				t.Fatal(err)
			}
			var got, want any
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if q := pod.Spec.Containers[0].Resources.Limits["memory"]; q.String() != "2Gi" {
				t.Error("the pod was changed")
			}
		})
	}
}

func TestLastBy(t *testing.T) {
	pod := burstable()
	if _, _, ok := resize.LastBy(pod); ok {
		t.Error("a pod nobody resized was resized")
	}
	pod.ManagedFields = []metav1.ManagedFieldsEntry{
		entry("plimsoll-a", "resize", cpuRequest, time.Hour), entry("plimsoll-b", "resize", memoryLimit, time.Minute),
		entry("plimsoll", "", `{"f:metadata":{}}`, time.Second), entry("vpa", "resize", cpuRequest, 0),
	}
	if by, at, ok := resize.LastBy(pod); by != "b" || !ok || !at.Equal(now.Add(-time.Minute)) {
		t.Errorf("by %s at %v", by, at)
	}
}

func FuzzClaimOf(f *testing.F) {
	f.Add(cpuRequest)
	f.Add(memoryLimit)
	f.Add(`{"f:spec":{"f:containers":{"k:{\"name\":1}":{"f:resources":null},"k:":{},"v:1":{}}}}`)
	f.Fuzz(func(t *testing.T, fields string) {
		pod := burstable()
		pod.ManagedFields = []metav1.ManagedFieldsEntry{entry("plimsoll-a", "resize", fields, 0), entry("x", "resize", fields, 0)}
		changes := []resize.Change{{Field: field("c", "cpu request"), To: resource.MustParse("1")}}
		claim := resize.ClaimOf(pod, "a", changes, nil, time.Minute, now)
		body, err := resize.ApplyBody(pod, changes, claim)
		var p corev1.Pod
		if err != nil || json.Unmarshal(body, &p) != nil {
			t.Errorf("body %s, %v", body, err)
		}
	})
}
