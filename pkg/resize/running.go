package resize

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/policy"
)

// gateRunning refuses pods that cannot be resized now.
func gateRunning(in PlanInput) (Decision, bool) {
	no := func(r Reason, format string, args ...any) (Decision, bool) {
		return Decision{Reason: r, Message: fmt.Sprintf(format, args...)}, false
	}
	pod, last, s := in.Pod, in.Last, in.Settings.Resize
	if n := in.Node.Node; n != nil && n.Labels[corev1.LabelOSStable] == string(corev1.Windows) {
		return no(ReasonWindows, "node %s runs Windows", n.Name)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return no(ReasonNotRunning, "the pod is not running")
	}
	if name, ok := notStarted(pod); ok {
		return no(ReasonNotStarted, "container %s has not started", name)
	}
	if Class(pod) == corev1.PodQOSBestEffort {
		return no(ReasonBestEffort, "a BestEffort pod cannot be given resources while it runs")
	}
	if p := Observe(pod); p.InFlight() {
		return no(ReasonInFlight, "an earlier resize is not finished: %s", p)
	}
	switch {
	case last.Refused != 0 && last.Refused == pod.Generation:
		return no(ReasonInfeasible, "the kubelet called a resize of this generation infeasible: %s", last.Message)
	case in.Now.Before(last.HeldUntil):
		return no(ReasonHeld, "held until %s: %s", last.HeldUntil.UTC().Format(time.RFC3339), last.Message)
	case last.State == StateRequested || last.State == StateResized && in.Now.Before(last.Since.Add(s.RollbackWatch)):
		return no(ReasonWatching, "the resize of %s is still watched", last.At.UTC().Format(time.RFC3339))
	case !last.At.IsZero() && in.Now.Before(last.At.Add(s.Interval)):
		return no(ReasonCoolDown, "the last resize was at %s", last.At.UTC().Format(time.RFC3339))
	case !allowed(s.Schedule, in.Now):
		return no(ReasonOutsideSchedule, "the policy's schedule allows no change now")
	}
	return Decision{}, true
}

// notStarted returns a long-running container that has not started, if any.
func notStarted(pod *corev1.Pod) (string, bool) {
	started := map[string]bool{}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			started[s.Name] = s.State.Running != nil && s.Started != nil && *s.Started
		}
	}
	for _, c := range longRunning(pod) {
		if !started[c.Name] {
			return c.Name, true
		}
	}
	return "", false
}

// allowed reports whether a time lies in one of the windows; no windows allow
// every time. A window is read on the wall clock of its location.
func allowed(windows []policy.Window, now time.Time) bool {
	if len(windows) == 0 {
		return true
	}
	for _, w := range windows {
		loc := w.Location
		if loc == nil {
			loc = time.UTC
		}
		t := now.In(loc)
		clock := time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute + time.Duration(t.Second())*time.Second
		today, yesterday := w.Days[t.Weekday()], w.Days[(t.Weekday()+6)%7]
		switch {
		case w.Start < w.End:
			if today && clock >= w.Start && clock < w.End {
				return true
			}
		case today && clock >= w.Start, yesterday && clock < w.End:
			return true
		}
	}
	return false
}
