package podstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Reasons of a policy's Ready condition.
const (
	ReasonCompiled    = "Compiled"       // every replica works by the policy as it is now
	ReasonNotCompiled = "NotCompiled"    // a replica could not compile it
	ReasonBehind      = "ReplicasBehind" // a replica has not seen the policy as it is now
	ReasonNoReplica   = "NoReplica"      // no replica runs
)

const (
	// mostReplicas is how many entries status.byPod may have.
	mostReplicas = 256
	// mostMessage is how many bytes of a message are kept.
	mostMessage = 1024
)

// Policy is what a report about a policy is compared with.
type Policy struct {
	UID        types.UID
	Generation int64
}

// Aggregate is what the replicas say together about one policy.
type Aggregate struct {
	// ByPod has what each replica says, sorted by pod.
	ByPod []v1alpha1.PolicyStatusByPod
	// Status, Reason and Message are those of the policy's Ready condition.
	Status  metav1.ConditionStatus
	Reason  string
	Message string
	// Complete is true when every replica has reported about the policy as it is now.
	Complete bool
}

// NewAggregate sums up the reports about a policy. Replicas are the pods that
// should report; others' reports are left out, and so are those about a policy
// object of another UID. The order of reports and replicas does not matter.
func NewAggregate(p Policy, replicas []string, reports []v1alpha1.PolicyPodStatus) Aggregate {
	byPod := map[string]v1alpha1.PolicyPodStatusStatus{}
	for _, r := range reports {
		if r.Status.ParentUID == string(p.UID) {
			byPod[r.Spec.Pod] = r.Status
		}
	}
	replicas = slices.Clone(replicas)
	slices.Sort(replicas)
	replicas = slices.Compact(replicas)
	a := Aggregate{Complete: true, Status: metav1.ConditionTrue, Reason: ReasonCompiled}
	var ill complaints
	broken := false
	for _, pod := range replicas {
		s, ok := byPod[pod]
		if ok && len(a.ByPod) < mostReplicas {
			a.ByPod = append(a.ByPod, v1alpha1.PolicyStatusByPod{Pod: pod, ParentGeneration: s.ParentGeneration, State: s.State, Message: s.Message})
		}
		switch {
		case !ok:
			ill.add("has not reported", pod)
		case s.ParentGeneration < p.Generation:
			ill.add(fmt.Sprintf("has not seen generation %d", p.Generation), pod)
		case s.State != v1alpha1.PolicyCompiled:
			ill.add(cmp.Or(s.Message, "does not say why"), pod)
			broken = true
			continue
		default:
			continue
		}
		a.Complete = false
	}
	switch {
	case len(replicas) == 0:
		a.Status, a.Reason, a.Message = metav1.ConditionUnknown, ReasonNoReplica, "no replica of the webhook runs"
	case ill.pods > 0:
		a.Status, a.Reason = metav1.ConditionFalse, ReasonBehind
		if broken {
			a.Reason = ReasonNotCompiled
		}
		a.Message = Clip(fmt.Sprintf("%d/%d replicas unhealthy: %s", ill.pods, len(replicas), ill.String()))
	default:
		a.Message = fmt.Sprintf("%d/%d replicas work by generation %d", len(replicas), len(replicas), p.Generation)
	}
	return a
}

// complaints are what is wrong and with which pods; pods come sorted.
type complaints struct {
	what []string
	who  map[string][]string
	pods int
}

func (c *complaints) add(what, pod string) {
	if c.who == nil {
		c.who = map[string][]string{}
	}
	if len(c.who[what]) == 0 {
		c.what = append(c.what, what)
	}
	c.who[what] = append(c.who[what], pod)
	c.pods++
}

// String names each complaint once, and at most three pods that have it.
func (c *complaints) String() string {
	const most = 3
	var b strings.Builder
	for i, what := range c.what {
		if i > 0 {
			b.WriteString("; ")
		}
		who, more := c.who[what], ""
		if len(who) > most {
			who, more = who[:most], fmt.Sprintf(" and %d more", len(who)-most)
		}
		fmt.Fprintf(&b, "%s%s: %s", strings.Join(who, ", "), more, what)
	}
	return b.String()
}

// Clip cuts a message to what a status may hold, between characters.
func Clip(message string) string { return clip(message, mostMessage) }

func clip(message string, most int) string {
	const mark = "…"
	message = strings.ToValidUTF8(message, "?")
	if len(message) <= most {
		return message
	}
	cut := most - len(mark)
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + mark
}
