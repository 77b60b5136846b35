package resize_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
)

func TestSchedule(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	only := func(days ...time.Weekday) (out [7]bool) {
		for _, d := range days {
			out[d] = true
		}
		return out
	}
	night := policy.Window{Days: only(time.Friday), Start: 22 * time.Hour, End: 4 * time.Hour, Location: time.UTC}
	tests := map[string]struct {
		windows []policy.Window
		at      string
		want    bool
	}{
		"no windows":                   {nil, "2026-03-04T12:00:00Z", true},
		"inside":                       {[]policy.Window{{Days: everyDay, Start: 9 * time.Hour, End: 17 * time.Hour}}, "2026-03-04T12:00:00Z", true},
		"the start belongs to it":      {[]policy.Window{{Days: everyDay, Start: 12 * time.Hour, End: 17 * time.Hour}}, "2026-03-04T12:00:00Z", true},
		"the end does not":             {[]policy.Window{{Days: everyDay, Start: 9 * time.Hour, End: 12 * time.Hour}}, "2026-03-04T12:00:00Z", false},
		"another day":                  {[]policy.Window{{Days: only(time.Monday), Start: 0, End: 23 * time.Hour}}, "2026-03-04T12:00:00Z", false},
		"Friday night":                 {[]policy.Window{night}, "2026-03-06T23:00:00Z", true},
		"Saturday morning":             {[]policy.Window{night}, "2026-03-07T03:59:59Z", true},
		"Friday morning":               {[]policy.Window{night}, "2026-03-06T03:00:00Z", false},
		"Saturday night":               {[]policy.Window{night}, "2026-03-07T23:00:00Z", false},
		"elsewhere":                    {[]policy.Window{{Days: everyDay, Start: 13 * time.Hour, End: 14 * time.Hour, Location: berlin}}, "2026-03-04T12:30:00Z", true},
		"elsewhere, summer time":       {[]policy.Window{{Days: everyDay, Start: 13 * time.Hour, End: 14 * time.Hour, Location: berlin}}, "2026-07-04T11:30:00Z", true},
		"the day the clock goes ahead": {[]policy.Window{{Days: everyDay, Start: 4 * time.Hour, End: 5 * time.Hour, Location: berlin}}, "2026-03-29T02:30:00Z", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(burstable(), recommend("cpu request", "1"))
			in.Settings.Resize.Schedule = tc.windows
			var err error
			if in.Now, err = time.Parse(time.RFC3339, tc.at); err != nil {
				t.Fatal(err)
			}
			if d := resize.Plan(in); (d.Reason == resize.ReasonChange) != tc.want {
				t.Errorf("%s", d.Reason)
			}
		})
	}
}

// C56, C73: only targets by utilisation depend on the request.
func TestAutoscaledRequests(t *testing.T) {
	utilisation := func(res corev1.ResourceName, container string) autoscalingv2.MetricSpec {
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType}
		if container != "" {
			return autoscalingv2.MetricSpec{ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: res, Container: container, Target: target}}
		}
		return autoscalingv2.MetricSpec{Resource: &autoscalingv2.ResourceMetricSource{Name: res, Target: target}}
	}
	value := utilisation("memory", "")
	value.Resource.Target.Type = autoscalingv2.AverageValueMetricType
	hpa := func(name, kind, target string, metrics ...autoscalingv2.MetricSpec) autoscalingv2.HorizontalPodAutoscaler {
		h := autoscalingv2.HorizontalPodAutoscaler{}
		h.Name, h.Spec.Metrics = name, metrics
		h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{Kind: kind, Name: target}
		return h
	}
	got := resize.AutoscaledRequests([]autoscalingv2.HorizontalPodAutoscaler{
		hpa("b", "Deployment", "web", utilisation("cpu", ""), value),
		hpa("a", "Deployment", "web", utilisation("memory", "c"), autoscalingv2.MetricSpec{External: &autoscalingv2.ExternalMetricSource{}}),
		hpa("c", "Deployment", "other", utilisation("cpu", "")),
		hpa("d", "StatefulSet", "web", utilisation("cpu", "")),
		hpa("e", "ReplicaSet", "web-1"),
	}, resize.Target{Kind: "Deployment", Name: "web"}, resize.Target{Kind: "ReplicaSet", Name: "web-1"})
	want := []resize.Autoscaled{
		{Container: "c", Resource: "memory", Autoscaler: "a"}, {Resource: "cpu", Autoscaler: "b"}, {Resource: "cpu", Autoscaler: "e"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A quota bounds only the pods its scopes cover.
func TestQuotaScopes(t *testing.T) {
	class := func(op corev1.ScopeSelectorOperator, values ...string) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) {
			q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values},
			}}
		}
	}
	scope := func(s corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
		return func(q *corev1.ResourceQuota) { q.Spec.Scopes = []corev1.ResourceQuotaScope{s} }
	}
	tests := map[string]struct {
		quota  func(*corev1.ResourceQuota)
		covers bool
	}{
		"no scope":            {func(*corev1.ResourceQuota) {}, true},
		"terminating":         {scope(corev1.ResourceQuotaScopeTerminating), false},
		"not terminating":     {scope(corev1.ResourceQuotaScopeNotTerminating), true},
		"BestEffort":          {scope(corev1.ResourceQuotaScopeBestEffort), false},
		"not BestEffort":      {scope(corev1.ResourceQuotaScopeNotBestEffort), true},
		"its class":           {class(corev1.ScopeSelectorOpIn, "high", "low"), true},
		"another class":       {class(corev1.ScopeSelectorOpIn, "low"), false},
		"any other class":     {class(corev1.ScopeSelectorOpNotIn, "high"), false},
		"a class":             {class(corev1.ScopeSelectorOpExists), true},
		"no class":            {class(corev1.ScopeSelectorOpDoesNotExist), false},
		"a scope of tomorrow": {scope("Tomorrow"), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(burstable(), recommend("cpu request", "1"))
			in.Pod.Spec.PriorityClassName = "high"
			q := quota("cpu", "1", "1")
			tc.quota(&q)
			in.Bounds.Quotas = []corev1.ResourceQuota{q}
			d := resize.Plan(in)
			if held := d.Reason == resize.ReasonNoChange; held != tc.covers {
				t.Errorf("%s, want covered %v", d.Reason, tc.covers)
			}
		})
	}
}

// What a pod counts for: init containers run one after another, beside the
// restartable ones before them, and the overhead comes on top.
func TestRequested(t *testing.T) {
	pod := running(ctr("a", list("cpu", "100m"), nil), ctr("b", nil, list("cpu", "200m")))
	pod.Spec.InitContainers = []corev1.Container{
		ctr("first", list("cpu", "250m"), nil), sidecar(ctr("s", list("cpu", "50m"), nil)), ctr("last", list("cpu", "400m"), nil),
	}
	for _, want := range []string{"450m", "350m"} {
		if got := resize.Requested(pod, "cpu"); got.String() != want {
			t.Errorf("%s, want %s", got.String(), want)
		}
		pod.Spec.InitContainers = pod.Spec.InitContainers[:2]
	}
	pod.Spec.Overhead = list("cpu", "10m")
	if got := resize.Requested(pod, "cpu"); got.String() != "360m" {
		t.Errorf("%s with overhead", got.String())
	}
}
