package resize

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// maxHold bounds how long a pod is held back, whatever went wrong how often.
const maxHold = 24 * time.Hour

// unreadyFor is how long a pod must have been unready to count as harmed: a
// restart shows as lost readiness first and is named a moment later.
const unreadyFor = 5 * time.Second

// FollowInput is what Follow decides from.
type FollowInput struct {
	Pod      *corev1.Pod
	Record   Record
	Settings policy.Resize
	Live     map[string]Live // by container
	Now      time.Time
}

// Step is what to do next about a resize that was sent.
type Step struct {
	// Record is the new record; it is to be written if Changed.
	Record  Record
	Changed bool
	// TakeBack are changes to send first: the record holds once they are.
	TakeBack []Change
	// Again is when to look again at the latest; zero when nothing is awaited.
	Again time.Duration
}

// Begin makes the record of a change that was just sent. The replica follows
// it from now on.
func Begin(pod *corev1.Pod, replica string, d Decision, live map[string]Live, last Record, now time.Time) Record {
	r := Record{At: now, By: replica, State: StateRequested, Since: now, Restarts: restartCount(pod), Ready: ready(pod)}
	if last.State == StateWithdrawn || last.State == StateRolledBack || last.State == StateReverted {
		r.Failures = last.Failures
	}
	if len(live) > 0 {
		kills := oomKills(live)
		r.OOMKills = &kills
	}
	for _, c := range d.Changes {
		rc := RecordedChange{Container: c.Container, Field: string(c.Resource) + " " + string(c.Field.Field), To: c.To.String(), Reason: c.Reason}
		if c.From != nil {
			rc.From = c.From.String()
		}
		r.Changes = append(r.Changes, rc)
		if ctr := container(pod, c.Container); ctr != nil && restarts(ctr, c.Resource) {
			// The restart that the change needs is no harm.
			r.Restarts++
			r.Ready = false
		}
	}
	return r
}

// Follow says what comes next for a resize that was sent: what the kubelet did
// with it, how long it may take, and whether it did the pod harm.
func Follow(in FollowInput) Step {
	r, s := in.Record, in.Settings
	switch r.State {
	case StateRequested:
	case StateResized:
		left := r.Since.Add(s.RollbackWatch).Sub(in.Now)
		if left <= 0 {
			return Step{Record: r}
		}
		if reason, message := harm(in); reason != "" {
			return takeBack(in, StateRolledBack, reason, message)
		}
		if r.Ready && !ready(in.Pod) {
			left = min(left, unreadyFor)
		}
		return Step{Record: r, Again: left}
	default:
		return Step{Record: r}
	}
	p := Observe(in.Pod)
	if p.Stage == StageDone || p.Stage == StageInProgress || p.Stage == StageError {
		if reason, message := harm(in); reason != "" {
			return takeBack(in, StateRolledBack, reason, message)
		}
	}
	waited := in.Now.Sub(r.At)
	wait := func(patience time.Duration, reason Reason) Step {
		if waited >= patience {
			return takeBack(in, StateWithdrawn, reason, p.String())
		}
		return Step{Record: r, Again: patience - waited}
	}
	switch p.Stage {
	case StageDone:
		r.State, r.Since, r.Reason, r.Message = StateResized, in.Now, ReasonResized, ""
		return Step{Record: r, Changed: true, Again: s.RollbackWatch}
	case StageInfeasible:
		return takeBack(in, StateReverted, ReasonInfeasible, p.Message)
	case StageDeferred:
		return wait(s.DeferredPatience, ReasonDeferred)
	default:
		return wait(s.ProgressPatience, ReasonTimeout)
	}
}

// takeBack returns the step that undoes the recorded changes.
func takeBack(in FollowInput, state State, reason Reason, message string) Step {
	r := in.Record
	var back []Change
	for _, c := range r.Changes {
		ch, ok := c.reverse(in.Pod)
		if !ok || reason == ReasonOOMKilled && ch.Resource == corev1.ResourceMemory && ch.From.Cmp(ch.To) > 0 {
			continue // less memory helps no one who ran out of it
		}
		ch.Reason = reason
		back = append(back, ch)
	}
	r.State, r.Since, r.Reason, r.Message = state, in.Now, reason, message
	r.Failures++
	switch state {
	case StateReverted:
		r.Refused = in.Pod.Generation + 1 // the generation that taking it back makes
		if len(back) == 0 {
			r.Refused = in.Pod.Generation
		}
	case StateRolledBack:
		base := float64(max(in.Settings.Interval, in.Settings.RollbackWatch))
		r.HeldUntil = in.Now.Add(time.Duration(math.Min(float64(maxHold), base*math.Pow(2, float64(min(r.Failures, 20))))))
	}
	return Step{Record: r, Changed: true, TakeBack: back}
}

// reverse returns the change that sets a field back, unless somebody has
// changed it since or it cannot be unset.
func (c RecordedChange) reverse(pod *corev1.Pod) (Change, bool) {
	res, field, ok := strings.Cut(c.Field, " ")
	ctr := container(pod, c.Container)
	if !ok || ctr == nil || c.From == "" {
		return Change{}, false
	}
	from, err := parseQuantity(c.To)
	if err != nil {
		return Change{}, false
	}
	to, err := parseQuantity(c.From)
	if err != nil || to.Sign() <= 0 {
		return Change{}, false
	}
	f := Field{c.Container, corev1.ResourceName(res), v1alpha1.ResourceField(field)}
	if has, ok := valueOf(ctr, f); !ok || has.Cmp(from) != 0 {
		return Change{}, false
	}
	return Change{Field: f, From: &from, To: to}, true
}

// plainQuantity is what Quantity.String writes of amounts like these. Exponents
// are left out: parsing "1e999999999" takes for ever.
var plainQuantity = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?([num]|[kMGTPE]|[KMGTPE]i)?$`)

// parseQuantity reads a quantity from a record, which anyone who may edit the
// pod can have written.
func parseQuantity(text string) (resource.Quantity, error) {
	if !plainQuantity.MatchString(text) {
		return resource.Quantity{}, fmt.Errorf("parsing quantity %.32q of a record: it must be a plain number with a unit", text)
	}
	return resource.ParseQuantity(text)
}

// harm says whether the pod did badly since the change.
func harm(in FollowInput) (Reason, string) {
	r := in.Record
	for _, s := range statuses(in.Pod) {
		for _, t := range []*corev1.ContainerStateTerminated{s.LastTerminationState.Terminated, s.State.Terminated} {
			// Both times are whole seconds.
			if t != nil && t.Reason == "OOMKilled" && !t.FinishedAt.Time.Before(r.At.Truncate(time.Second)) {
				return ReasonOOMKilled, fmt.Sprintf("container %s was OOM-killed", s.Name)
			}
		}
	}
	if r.OOMKills != nil && len(in.Live) > 0 && oomKills(in.Live) > *r.OOMKills {
		return ReasonOOMKilled, "a process of the pod was OOM-killed"
	}
	if n := restartCount(in.Pod); n > r.Restarts {
		return ReasonRestarted, fmt.Sprintf("the pod's containers restarted %d times", n-r.Restarts)
	}
	if c := readiness(in.Pod); r.Ready && c.Status != corev1.ConditionTrue && in.Now.Sub(c.LastTransitionTime.Time) >= unreadyFor {
		return ReasonUnready, "the pod is not ready any more"
	}
	for _, c := range r.Changes {
		if live, ok := in.Live[c.Container]; ok && c.lowers("cpu limit") && live.ThrottledShare > in.Settings.RollbackThrottled {
			return ReasonThrottled, fmt.Sprintf("container %s is throttled in %.0f%% of its periods", c.Container, 100*live.ThrottledShare)
		}
	}
	return "", ""
}

func (c RecordedChange) lowers(field string) bool {
	from, err1 := parseQuantity(c.From)
	to, err2 := parseQuantity(c.To)
	return c.Field == field && err1 == nil && err2 == nil && to.Cmp(from) < 0
}

func statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return append(append([]corev1.ContainerStatus{}, pod.Status.InitContainerStatuses...), pod.Status.ContainerStatuses...)
}

func restartCount(pod *corev1.Pod) int32 {
	var n int32
	for _, s := range statuses(pod) {
		n += s.RestartCount
	}
	return n
}

func ready(pod *corev1.Pod) bool { return readiness(pod).Status == corev1.ConditionTrue }

// readiness returns the pod's Ready condition, an empty one if it has none.
func readiness(pod *corev1.Pod) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c
		}
	}
	return corev1.PodCondition{}
}

func oomKills(live map[string]Live) int64 {
	var n int64
	for _, l := range live {
		n += l.OOMKills
	}
	return n
}

// Adopt makes the record of a change that a replica which is gone sent and did
// not record. What it was before is known as long as the kubelet still reports it.
func Adopt(pod *corev1.Pod, by string, at time.Time) Record {
	r := Record{At: at, By: by, State: StateRequested, Since: at, Restarts: restartCount(pod), Ready: ready(pod)}
	for _, s := range statuses(pod) {
		ctr := container(pod, s.Name)
		if ctr == nil || s.Resources == nil {
			continue
		}
		for _, res := range resizeResources {
			for _, f := range []v1alpha1.ResourceField{v1alpha1.FieldRequest, v1alpha1.FieldLimit} {
				want, ok := valueOf(ctr, Field{s.Name, res, f})
				have, known := valueOf(&corev1.Container{Resources: *s.Resources}, Field{s.Name, res, f})
				if ok && known && want.Cmp(have) != 0 {
					r.Changes = append(r.Changes, RecordedChange{Container: s.Name, Field: string(res) + " " + string(f), From: have.String(), To: want.String()})
				}
			}
		}
	}
	return r
}
