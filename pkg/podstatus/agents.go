package podstatus

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

const (
	// Heartbeat is the time between two reports of an agent whose state does not change.
	Heartbeat = 5 * time.Minute
	// Silence is after how long without a report an agent counts as silent:
	// two heartbeats may be lost, and clocks may differ.
	Silence = 3 * Heartbeat
	// ReasonSilent is why an agent that reports no more is not healthy.
	ReasonSilent = "Silent"
	// ReasonNotReady is why one is not healthy that does not say more.
	ReasonNotReady = "NotReady"

	mostAgents       = 20
	mostAgentMessage = 512
)

// SummariseAgents counts agents and names the worst, silent ones first, then by
// node. Expected is how many should report, or negative when it is not known.
// The second result is when the summary changes by itself, zero for never.
func SummariseAgents(expected int, agents []v1alpha1.AgentStatus, now time.Time) (v1alpha1.AgentsSummary, time.Time) {
	s := v1alpha1.AgentsSummary{Expected: int32(len(agents))}
	if expected >= 0 {
		s.Expected = int32(expected)
	}
	var next time.Time
	var worst []v1alpha1.UnhealthyAgent
	for i := range agents {
		ill, until := judge(&agents[i], now)
		if !until.IsZero() {
			s.Reporting++
			if next.IsZero() || until.Before(next) {
				next = until
			}
		}
		if ill == nil {
			s.Healthy++
		} else {
			worst = append(worst, *ill)
		}
	}
	slices.SortFunc(worst, func(a, b v1alpha1.UnhealthyAgent) int {
		if (a.Reason == ReasonSilent) != (b.Reason == ReasonSilent) {
			if a.Reason == ReasonSilent {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Node, b.Node)
	})
	s.Worst = worst[:min(len(worst), mostAgents)]
	return s, next
}

// judge says what is wrong with an agent, nil for nothing, and until when it
// counts as reporting, zero when it does not.
func judge(a *v1alpha1.AgentStatus, now time.Time) (*v1alpha1.UnhealthyAgent, time.Time) {
	ill := v1alpha1.UnhealthyAgent{Node: a.Spec.NodeName, Reason: ReasonSilent, Message: "it has never reported"}
	if a.Status.Heartbeat == nil {
		return &ill, time.Time{}
	}
	until := a.Status.Heartbeat.Add(Silence)
	if !until.After(now) {
		// The moment, not the time since: the message must not change by itself.
		ill.Message = fmt.Sprintf("its last report is of %s", a.Status.Heartbeat.UTC().Format(time.RFC3339))
		return &ill, time.Time{}
	}
	c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady)
	if c != nil && c.Status == metav1.ConditionTrue {
		return nil, until
	}
	ill.Reason, ill.Message = ReasonNotReady, cmp.Or(a.Status.LastError, "it does not say why")
	if c != nil {
		ill.Reason, ill.Message = clip(cmp.Or(c.Reason, ReasonNotReady), 64), cmp.Or(c.Message, ill.Message)
	}
	ill.Message = clip(ill.Message, mostAgentMessage)
	return &ill, until
}
