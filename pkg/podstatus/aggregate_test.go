package podstatus_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
)

func report(pod, uid string, generation int64, broken string) v1alpha1.PolicyPodStatus {
	s := v1alpha1.PolicyPodStatus{Spec: v1alpha1.PolicyPodStatusSpec{Pod: pod, PolicyRef: cluster("fleet")}}
	s.Status = v1alpha1.PolicyPodStatusStatus{ParentUID: uid, ParentGeneration: generation, State: v1alpha1.PolicyCompiled}
	if broken != "" {
		s.Status.State, s.Status.Message = v1alpha1.PolicyError, broken
	}
	return s
}

func TestAggregate(t *testing.T) {
	tests := map[string]struct {
		replicas []string
		reports  []v1alpha1.PolicyPodStatus
		pods     []string
		reason   string
		message  string
		complete bool
	}{
		"all well": {
			replicas: []string{"b", "a"}, reports: []v1alpha1.PolicyPodStatus{report("b", "u", 3, ""), report("a", "u", 3, "")},
			pods: []string{"a", "b"}, reason: podstatus.ReasonCompiled, message: "2/2 replicas work by generation 3", complete: true,
		},
		"two opinions": {
			replicas: []string{"a", "b", "c", "d", "e"},
			reports: []v1alpha1.PolicyPodStatus{
				report("e", "u", 3, "spec.priority: no"), report("d", "u", 3, ""), report("c", "u", 3, ""), report("b", "u", 3, "spec.priority: no"), report("a", "u", 3, ""),
			},
			pods: []string{"a", "b", "c", "d", "e"}, reason: podstatus.ReasonNotCompiled, message: "2/5 replicas unhealthy: b, e: spec.priority: no", complete: true,
		},
		"behind and silent": {
			replicas: []string{"a", "b", "c"}, reports: []v1alpha1.PolicyPodStatus{report("a", "u", 2, ""), report("c", "u", 3, "")},
			pods: []string{"a", "c"}, reason: podstatus.ReasonBehind, message: "2/3 replicas unhealthy: a: has not seen generation 3; b: has not reported",
		},
		"C81: about the policy before this one": {
			replicas: []string{"a"}, reports: []v1alpha1.PolicyPodStatus{report("a", "old", 9, "")},
			reason: podstatus.ReasonBehind, message: "1/1 replicas unhealthy: a: has not reported",
		},
		"a pod that is gone": {
			replicas: []string{"a"}, reports: []v1alpha1.PolicyPodStatus{report("a", "u", 3, ""), report("gone", "u", 3, "broken")},
			pods: []string{"a"}, reason: podstatus.ReasonCompiled, message: "1/1 replicas work by generation 3", complete: true,
		},
		"nobody": {reason: podstatus.ReasonNoReplica, message: "no replica of the webhook runs", complete: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			a := podstatus.NewAggregate(podstatus.Policy{UID: "u", Generation: 3}, tc.replicas, tc.reports)
			var pods []string
			for _, p := range a.ByPod {
				pods = append(pods, p.Pod)
			}
			if diff := cmp.Diff(tc.pods, pods); diff != "" {
				t.Error(diff)
			}
			if a.Reason != tc.reason || a.Message != tc.message || a.Complete != tc.complete {
				t.Errorf("%s, %q, complete %v", a.Reason, a.Message, a.Complete)
			}
		})
	}
}

// Whatever the order, the aggregate is the same, and it fits where it goes.
func TestAggregateIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var replicas []string
		var reports []v1alpha1.PolicyPodStatus
		for i := range rapid.IntRange(0, 300).Draw(t, "replicas") {
			pod := fmt.Sprintf("web-%d", i)
			replicas = append(replicas, pod)
			if i%7 > 0 {
				reports = append(reports, report(pod, "u", int64(i%3), strings.Repeat("ä", i%5*200)))
			}
		}
		p := podstatus.Policy{UID: "u", Generation: 1}
		a := podstatus.NewAggregate(p, replicas, reports)
		b := podstatus.NewAggregate(p, rapid.Permutation(replicas).Draw(t, "order"), rapid.Permutation(reports).Draw(t, "arrival"))
		if diff := cmp.Diff(a, b); diff != "" {
			t.Fatal(diff)
		}
		if len(a.ByPod) > 256 || len(a.Message) > 1024 {
			t.Fatalf("%d entries, a message of %d bytes", len(a.ByPod), len(a.Message))
		}
	})
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func agent(node string, ago time.Duration, reason string) v1alpha1.AgentStatus {
	a := v1alpha1.AgentStatus{Spec: v1alpha1.AgentStatusSpec{NodeName: node}}
	a.Status.Heartbeat = &metav1.Time{Time: noon.Add(-ago)}
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}
	if reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, "because"
	}
	a.Status.Conditions = []metav1.Condition{c}
	return a
}

func TestSummariseAgents(t *testing.T) {
	got, next := podstatus.SummariseAgents(6, []v1alpha1.AgentStatus{
		agent("n4", time.Minute, ""), agent("n3", 16*time.Minute, ""), agent("n2", 4*time.Minute, "RedisAway"),
		agent("n1", time.Minute, "RedisAway"), {Spec: v1alpha1.AgentStatusSpec{NodeName: "n5"}},
	}, noon)
	want := v1alpha1.AgentsSummary{Expected: 6, Reporting: 3, Healthy: 1, Worst: []v1alpha1.UnhealthyAgent{
		{Node: "n3", Reason: podstatus.ReasonSilent, Message: "its last report is of 2026-01-01T11:44:00Z"},
		{Node: "n5", Reason: podstatus.ReasonSilent, Message: "it has never reported"},
		{Node: "n1", Reason: "RedisAway", Message: "because"},
		{Node: "n2", Reason: "RedisAway", Message: "because"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want := noon.Add(11 * time.Minute); !next.Equal(want) {
		t.Errorf("it changes by itself at %s, want %s", next, want)
	}
	if unknown, _ := podstatus.SummariseAgents(-1, nil, noon); unknown.Expected != 0 {
		t.Errorf("without agents %d are expected", unknown.Expected)
	}
}

// C83: a thousand agents with the longest messages there can be.
func TestC83SummaryStaysSmall(t *testing.T) {
	var agents []v1alpha1.AgentStatus
	for i := range 1000 {
		a := agent(fmt.Sprintf("node-%0200d", i), time.Minute, strings.Repeat("R", 1024))
		a.Status.Conditions[0].Message = strings.Repeat("ä", 16384)
		agents = append(agents, a)
	}
	s, _ := podstatus.SummariseAgents(1000, agents, noon)
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 64<<10 || len(s.Worst) != 20 {
		t.Errorf("%d bytes, %d of the worst", len(b), len(s.Worst))
	}
	t.Logf("RESULT agents=1000 aggregate_bytes=%d", len(b))
}

func BenchmarkSummariseAgents(b *testing.B) {
	var agents []v1alpha1.AgentStatus
	for i := range 1000 {
		agents = append(agents, agent(fmt.Sprintf("node-%d", i), time.Minute, ""))
	}
	for b.Loop() {
		podstatus.SummariseAgents(1000, agents, noon)
	}
}
