package resize_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/resize"
)

// resized is a pod whose cpu request and memory limit were changed a minute
// ago; it runs with the new values.
func resized() (*corev1.Pod, resize.Record) {
	pod := running(ctr("c", list("cpu", "500m", "memory", "500Mi"), list("cpu", "2", "memory", "1000Mi")))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	d := resize.Plan(input(pod, recommend("cpu request", "1", "cpu limit", "1", "memory limit", "500Mi")))
	r := resize.Begin(pod, "a", d, map[string]resize.Live{"c": {}}, resize.Record{}, now.Add(-time.Minute))
	d.Set(pod)
	conditions := pod.Status.Conditions
	start(pod)
	pod.Status.Conditions = conditions
	pod.Generation++
	return pod, r
}

func TestFollow(t *testing.T) {
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	behind := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].Resources.Requests["cpu"] = resource.MustParse("400m")
	}
	tests := map[string]struct {
		pod    func(*corev1.Pod)
		record func(*resize.Record)
		live   resize.Live
		now    time.Duration
		state  resize.State
		reason resize.Reason
		back   map[string]string
		again  time.Duration
	}{
		"C64 actuated":            {state: resize.StateResized, reason: resize.ReasonResized, again: 10 * time.Minute},
		"C64 not actuated":        {pod: behind, state: resize.StateRequested, again: 14 * time.Minute},
		"the kubelet is at it":    {pod: func(p *corev1.Pod) { condition(p, corev1.PodResizeInProgress, "") }, state: resize.StateRequested, again: 14 * time.Minute},
		"the kubelet tries again": {pod: func(p *corev1.Pod) { condition(p, corev1.PodResizeInProgress, "Error") }, state: resize.StateRequested, again: 14 * time.Minute},
		"the kubelet takes for ever": {
			pod: func(p *corev1.Pod) { condition(p, corev1.PodResizeInProgress, "Error") }, now: 14 * time.Minute,
			state: resize.StateWithdrawn, reason: resize.ReasonTimeout, back: allBack,
		},
		"C61 deferred": {pod: func(p *corev1.Pod) { condition(p, corev1.PodResizePending, "Deferred") }, state: resize.StateRequested, again: 4 * time.Minute},
		"C61 out of patience": {
			pod: func(p *corev1.Pod) { condition(p, corev1.PodResizePending, "Deferred") }, now: 4 * time.Minute,
			state: resize.StateWithdrawn, reason: resize.ReasonDeferred, back: allBack,
		},
		"deferred, of an older generation": {
			pod:   func(p *corev1.Pod) { condition(p, corev1.PodResizePending, "Infeasible"); p.Generation++ },
			state: resize.StateRequested, again: 14 * time.Minute,
		},
		"C62 infeasible": {
			pod:   func(p *corev1.Pod) { condition(p, corev1.PodResizePending, "Infeasible") },
			state: resize.StateReverted, reason: resize.ReasonInfeasible, back: allBack,
		},
		"C71 OOM kill": {
			record: watched,
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: ago(0)}
			},
			state: resize.StateRolledBack, reason: resize.ReasonOOMKilled, back: allBack,
		},
		"C71 OOM kill while it is changed": {
			pod: func(p *corev1.Pod) {
				condition(p, corev1.PodResizeInProgress, "")
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: ago(0)}}
			},
			state: resize.StateRolledBack, reason: resize.ReasonOOMKilled, back: allBack,
		},
		"an OOM kill before the change": {
			record: watched,
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: ago(time.Hour)}
			},
			state: resize.StateResized, again: 9 * time.Minute,
		},
		"C30 C71 OOM kill of a child": {record: watched, live: resize.Live{OOMKills: 1}, state: resize.StateRolledBack, reason: resize.ReasonOOMKilled, back: allBack},
		"C71 restart": {
			record: watched, pod: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 1 },
			state: resize.StateRolledBack, reason: resize.ReasonRestarted, back: allBack,
		},
		"C71 unready": {
			record: watched, pod: func(p *corev1.Pod) {
				p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = "False", ago(time.Minute)
			},
			state: resize.StateRolledBack, reason: resize.ReasonUnready, back: allBack,
		},
		"unready for a moment": {
			record: watched, pod: func(p *corev1.Pod) {
				p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = "False", ago(time.Second)
			},
			state: resize.StateResized, again: 5 * time.Second,
		},
		"unready before the change": {
			record: func(r *resize.Record) { watched(r); r.Ready = false },
			pod: func(p *corev1.Pod) {
				p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = "False", ago(time.Hour)
			},
			state: resize.StateResized, again: 9 * time.Minute,
		},
		"C71 throttled":     {record: watched, live: resize.Live{ThrottledShare: 0.3}, state: resize.StateRolledBack, reason: resize.ReasonThrottled, back: allBack},
		"throttled no more": {record: watched, live: resize.Live{ThrottledShare: 0.2}, state: resize.StateResized, again: 9 * time.Minute},
		"watched long enough": {
			record: watched, now: 9 * time.Minute, pod: func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 1 }, state: resize.StateResized,
		},
		"somebody else changed the cpu request": {
			record: watched, live: resize.Live{ThrottledShare: 0.3},
			pod:   func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("123m") },
			state: resize.StateRolledBack, reason: resize.ReasonThrottled, back: map[string]string{"c cpu limit": "1500m→2", "c memory limit": "750Mi→1000Mi"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod, r := resized()
			if tc.pod != nil {
				tc.pod(pod)
			}
			if tc.record != nil {
				tc.record(&r)
			}
			s := resize.Follow(resize.FollowInput{
				Pod: pod, Record: r, Settings: settings().Resize, Live: map[string]resize.Live{"c": tc.live}, Now: now.Add(tc.now),
			})
			if s.Record.State != tc.state || s.Again != tc.again || tc.reason != "" && s.Record.Reason != tc.reason {
				t.Errorf("state %s, reason %s, again %v; want %s, %s, %v", s.Record.State, s.Record.Reason, s.Again, tc.state, tc.reason, tc.again)
			}
			if s.Changed != (s.Record.State != r.State) {
				t.Errorf("changed %v from %s to %s", s.Changed, r.State, s.Record.State)
			}
			back := values(resize.Decision{Changes: s.TakeBack})
			want := map[string]string{}
			for f, v := range tc.back {
				want[f] = v + " " + string(tc.reason)
			}
			if diff := cmp.Diff(want, back); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func watched(r *resize.Record) { r.State, r.Since = resize.StateResized, r.At }

var allBack = map[string]string{"c cpu request": "750m→500m", "c cpu limit": "1500m→2", "c memory limit": "750Mi→1000Mi"}

// More memory is not taken back from a container that ran out of it.
func TestAnOOMKillKeepsRaisedMemory(t *testing.T) {
	pod := running(ctr("c", list("cpu", "500m"), list("memory", "500Mi")))
	d := resize.Plan(input(pod, recommend("cpu request", "1", "memory limit", "1000Mi")))
	r := resize.Begin(pod, "a", d, nil, resize.Record{}, now)
	d.Set(pod)
	start(pod)
	pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled", FinishedAt: metav1.NewTime(now.Add(time.Second))}
	s := resize.Follow(resize.FollowInput{Pod: pod, Record: r, Settings: settings().Resize, Now: now.Add(time.Minute)})
	if diff := cmp.Diff(map[string]string{"c cpu request": "750m→500m OOMKilled"}, values(resize.Decision{Changes: s.TakeBack})); diff != "" {
		t.Error(diff)
	}
}

// C65: the restart that an allowed change needs is no harm.
func TestAnExpectedRestartIsNoHarm(t *testing.T) {
	pod, _ := resized()
	pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer}}
	in := input(pod, recommend("memory limit", "2000Mi"))
	in.Settings.Resize.AllowRestart = true
	d := resize.Plan(in)
	r := resize.Begin(pod, "a", d, nil, resize.Record{}, now)
	d.Set(pod)
	start(pod)
	pod.Status.ContainerStatuses[0].RestartCount = 1
	s := resize.Follow(resize.FollowInput{Pod: pod, Record: r, Settings: in.Settings.Resize, Now: now.Add(time.Minute)})
	if s.Record.State != resize.StateResized {
		t.Errorf("state %s: %s", s.Record.State, s.Record.Message)
	}
}

// Each failure in a row doubles how long a pod is held.
func TestHoldBacksOff(t *testing.T) {
	var held []time.Duration
	last := resize.Record{}
	for range 4 {
		pod, _ := resized()
		r := resize.Begin(pod, "a", resize.Decision{}, nil, last, now)
		watched(&r)
		pod.Status.ContainerStatuses[0].RestartCount = 1
		r.Restarts = 0
		s := resize.Follow(resize.FollowInput{Pod: pod, Record: r, Settings: settings().Resize, Now: now.Add(time.Second)})
		last = s.Record
		held = append(held, last.HeldUntil.Sub(last.Since))
	}
	want := []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour}
	if diff := cmp.Diff(want, held); diff != "" {
		t.Error(diff)
	}
}

func TestAdopt(t *testing.T) {
	pod, _ := resized()
	pod.Status.ContainerStatuses[0].Resources.Requests["cpu"] = resource.MustParse("500m")
	r := resize.Adopt(pod, "gone", now)
	want := []resize.RecordedChange{{Container: "c", Field: "cpu request", From: "500m", To: "750m"}}
	if diff := cmp.Diff(want, r.Changes); diff != "" || r.State != resize.StateRequested || r.By != "gone" {
		t.Errorf("%+v %s", r, diff)
	}
}

func TestCanary(t *testing.T) {
	wave := now.Add(-time.Hour)
	at := func(state resize.State, since time.Duration) resize.Record {
		return resize.Record{At: now.Add(-since), Since: now.Add(-since), State: state}
	}
	tests := map[string]struct {
		records  []resize.Record
		fraction float64
		want     int
		reason   resize.Reason
	}{
		"no canary":                 {nil, 0, -1, ""},
		"none yet":                  {make([]resize.Record, 20), 0.1, 2, ""},
		"one of two":                {[]resize.Record{at(resize.StateResized, time.Minute)}, 0.1, 1, ""},
		"both are watched":          {[]resize.Record{at(resize.StateResized, time.Minute), at(resize.StateRequested, time.Minute)}, 0.1, 0, resize.ReasonCanary},
		"one is watched":            {[]resize.Record{at(resize.StateResized, 20*time.Minute), at(resize.StateResized, time.Minute)}, 0.1, 0, resize.ReasonCanary},
		"both did well":             {[]resize.Record{at(resize.StateResized, 20*time.Minute), at(resize.StateResized, 11*time.Minute)}, 0.1, -1, ""},
		"one did badly":             {[]resize.Record{at(resize.StateResized, 20*time.Minute), at(resize.StateRolledBack, time.Minute)}, 0.1, 0, resize.ReasonCanaryFailed},
		"one did badly before that": {[]resize.Record{at(resize.StateRolledBack, 2*time.Hour)}, 0.1, 2, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n, reason := resize.Canary(tc.records, 20, tc.fraction, 10*time.Minute, wave, now)
			if n != tc.want || reason != tc.reason {
				t.Errorf("%d %s, want %d %s", n, reason, tc.want, tc.reason)
			}
		})
	}
}

func TestRecordRoundTrip(t *testing.T) {
	_, r := resized()
	r.HeldUntil, r.Message = now, `a "quoted" <message>`
	got, err := resize.ParseRecord(r.String())
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{"x", "[]", `{"at":1}`, `{"failures":"x"}`, string(make([]byte, 1<<20))} {
		if _, err := resize.ParseRecord(bad); err == nil {
			t.Errorf("%.20q is taken for a record", bad)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	_, r := resized()
	f.Add(r.String())
	f.Add("")
	f.Add(`{"changes":[{"c":"c","f":"cpu request","from":"1e999","to":"-1"}],"failures":-9223372036854775808}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := resize.ParseRecord(text)
		if err != nil {
			return
		}
		pod, _ := resized()
		for _, state := range []resize.State{r.State, resize.StateRequested, resize.StateResized} {
			r.State = state
			condition(pod, corev1.PodResizePending, "Infeasible")
			s := resize.Follow(resize.FollowInput{Pod: pod, Record: r, Settings: settings().Resize, Now: now})
			if _, err := resize.ParseRecord(s.Record.String()); err != nil && len(s.Record.String()) < 10<<10 {
				t.Errorf("%v of %s", err, s.Record)
			}
			for _, c := range s.TakeBack {
				if c.To.Sign() <= 0 {
					t.Errorf("takes back to %v", c)
				}
			}
		}
		in := input(pod, recommend("cpu request", "1"))
		in.Last = r
		resize.Plan(in)
	})
}
