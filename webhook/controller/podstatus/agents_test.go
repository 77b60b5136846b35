package podstatus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
)

// agentSays writes an agent's status; without a reason it is well.
func (w *world) agentSays(ctx context.Context, node, reason string) error {
	a := &v1alpha1.AgentStatus{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: node}, Spec: v1alpha1.AgentStatusSpec{NodeName: node}}
	if err := w.c.Get(ctx, client.ObjectKeyFromObject(a), a); client.IgnoreNotFound(err) != nil {
		return err
	} else if err != nil {
		if err := w.c.Create(ctx, a); err != nil {
			return err
		}
	}
	now := metav1.NewTime(w.now())
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Working", LastTransitionTime: now}
	if reason != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, reason, strings.Repeat("because ", 100)
	}
	a.Status = v1alpha1.AgentStatusStatus{Heartbeat: &now, Conditions: []metav1.Condition{c}}
	return w.c.Status().Update(ctx, a)
}

func (w *world) config() *v1alpha1.PlimsollConfig {
	w.t.Helper()
	c := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	w.must(w.c.Create(w.t.Context(), c))
	return c
}

// agents waits until the configuration's summary is the one wanted but for the worst's messages.
func (w *world) agents(c *v1alpha1.PlimsollConfig, want v1alpha1.AgentsSummary) {
	w.t.Helper()
	w.eventually("the summary of agents", func() error {
		if err := w.c.Get(w.t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
			return err
		}
		got := c.Status.Agents.DeepCopy()
		if got == nil {
			return fmt.Errorf("there is none")
		}
		for i := range got.Worst {
			got.Worst[i].Message = ""
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}

// The summary counts against the DaemonSet, names who is ill, and notices silence by itself.
func TestAgentsAreSummedUp(t *testing.T) {
	w := newWorld(t)
	w.startReplica("a")
	w.startReplica("b")
	c := w.config()
	labels := map[string]string{"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/component": "agent"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent:1"}}, NodeSelector: map[string]string{"no": "node"}},
			},
		},
	}
	w.must(w.c.Create(t.Context(), set))
	for node, reason := range map[string]string{"n1": "", "n2": "RedisAway", "n3": ""} {
		w.must(w.agentSays(t.Context(), node, reason))
	}
	// The controller manager wants none of them anywhere: no Node matches.
	ill := v1alpha1.UnhealthyAgent{Node: "n2", Reason: "RedisAway"}
	w.agents(c, v1alpha1.AgentsSummary{Reporting: 3, Healthy: 2, Worst: []v1alpha1.UnhealthyAgent{ill}})
	w.must(w.c.Delete(t.Context(), set))
	w.agents(c, v1alpha1.AgentsSummary{Expected: 3, Reporting: 3, Healthy: 2, Worst: []v1alpha1.UnhealthyAgent{ill}})

	w.pass(podstatus.Silence - time.Second)
	w.must(w.agentSays(t.Context(), "n1", ""))
	w.pass(2 * time.Second)
	w.agents(c, v1alpha1.AgentsSummary{Expected: 3, Reporting: 1, Healthy: 1, Worst: []v1alpha1.UnhealthyAgent{
		{Node: "n2", Reason: podstatus.ReasonSilent}, {Node: "n3", Reason: podstatus.ReasonSilent},
	}})
}

// A thousand agents, a third of them ill: C83, and what a rebuild costs.
func BenchmarkThousandAgents(b *testing.B) {
	w := newWorld(b)
	c := w.config()
	const agents, writers = 1000, 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := i; n < agents; n += writers {
				reason := ""
				if n%3 == 0 {
					reason = "RedisAway"
				}
				if err := w.agentSays(context.Background(), fmt.Sprintf("node-%d", n), reason); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.startReplica("a")
	eventually := func(healthy int32) {
		w.eventually("the summary", func() error {
			if err := w.c.Get(context.Background(), client.ObjectKeyFromObject(c), c); err != nil {
				return err
			}
			if s := c.Status.Agents; s == nil || s.Reporting != agents || s.Healthy != healthy {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	eventually(666)
	for i := 0; b.Loop(); i++ {
		// From one agent's change to the summary: 100 ms of it are gathering.
		reason := []string{"RedisAway", ""}[i%2]
		if err := w.agentSays(context.Background(), "node-1", reason); err != nil {
			b.Fatal(err)
		}
		eventually(int32(665 + i%2))
	}
	size, err := json.Marshal(c.Status)
	if err != nil {
		b.Fatal(err)
	}
	if len(size) > 64<<10 {
		b.Errorf("C83: the summary has %d bytes", len(size))
	}
	b.ReportMetric(float64(len(size)), "bytes/aggregate")
	b.Logf("RESULT agents=%d aggregate_bytes=%d change_to_summary_ms=%.0f", agents, len(size), float64(b.Elapsed().Milliseconds())/float64(b.N))
}
