package resize_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
)

func input(pod *corev1.Pod, recs ...v1alpha1.ContainerStatus) resize.PlanInput {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	node.Status.Allocatable = list("cpu", "8", "memory", "16Gi")
	return resize.PlanInput{
		Pod: pod, Settings: settings(), Profile: profile(recs...), Now: now,
		Node: resize.Node{Node: node, Requested: list("cpu", "1", "memory", "1Gi")},
		Live: map[string]resize.Live{"c": {WorkingSet: 100 << 20, PeakWorkingSet: 110 << 20}},
	}
}

// burstable has room on both sides of everything it asks for.
func burstable() *corev1.Pod {
	return running(ctr("c", list("cpu", "500m", "memory", "500Mi"), list("cpu", "4", "memory", "1000Mi")))
}

// C60: half the gap a cycle, never away from the target, and the last step lands.
func TestC60StepsLandExactly(t *testing.T) {
	tests := map[string]struct {
		from, to string
		want     []string
	}{
		"up":                    {"500m", "1", []string{"750m", "875m", "1"}},
		"down":                  {"1", "500m", []string{"750m", "625m", "562m", "500m"}},
		"one millicore":         {"10m", "12m", []string{"12m"}},
		"already there":         {"1", "1", nil},
		"under the threshold":   {"920m", "1", nil},
		"at the threshold":      {"900m", "1", []string{"1"}},
		"to the least there is": {"100m", "10m", []string{"55m", "32m", "21m", "15m", "12m", "11m", "10m"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := running(ctr("c", list("cpu", tc.from, "memory", "500Mi"), list("cpu", "4")))
			var got []string
			for range 20 {
				d := resize.Plan(input(pod, recommend("cpu request", tc.to)))
				if d.Reason != resize.ReasonChange {
					break
				}
				d.Set(pod)
				start(pod)
				q := pod.Spec.Containers[0].Resources.Requests["cpu"]
				got = append(got, q.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPlanOutcomes(t *testing.T) {
	up := recommend("cpu request", "1", "memory request", "800Mi", "memory limit", "1600Mi")
	tests := map[string]struct {
		with func(*resize.PlanInput)
		want resize.Reason
	}{
		"change":          {func(*resize.PlanInput) {}, resize.ReasonChange},
		"no settings":     {func(in *resize.PlanInput) { in.Settings = nil }, resize.ReasonNoPolicy},
		"no rules":        {func(in *resize.PlanInput) { in.Settings.Rules = nil }, resize.ReasonNoPolicy},
		"no profile":      {func(in *resize.PlanInput) { in.Profile = nil }, resize.ReasonNotSufficient},
		"learning":        {func(in *resize.PlanInput) { in.Profile.Conditions[0].Status = "False" }, resize.ReasonNotSufficient},
		"stale":           {func(in *resize.PlanInput) { in.Profile.State = v1alpha1.ProfileStale }, resize.ReasonStale},
		"other container": {func(in *resize.PlanInput) { in.Profile.Containers[0].Name = "x" }, resize.ReasonNoRecommendation},
		"deleted":         {func(in *resize.PlanInput) { in.Pod.DeletionTimestamp = &metav1.Time{Time: now} }, resize.ReasonNotRunning},
		"pending":         {func(in *resize.PlanInput) { in.Pod.Status.Phase = corev1.PodPending }, resize.ReasonNotRunning},
		"C66 not started": {func(in *resize.PlanInput) { in.Pod.Status.ContainerStatuses[0].Started = nil }, resize.ReasonNotStarted},
		"C66 no status":   {func(in *resize.PlanInput) { in.Pod.Status.ContainerStatuses = nil }, resize.ReasonNotStarted},
		"C67 static pod": {func(in *resize.PlanInput) {
			metav1.SetMetaDataAnnotation(&in.Pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "x")
		}, resize.ReasonStaticPod},
		"C67 Windows pod":  {func(in *resize.PlanInput) { in.Pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, resize.ReasonWindows},
		"C67 Windows node": {func(in *resize.PlanInput) { in.Node.Node.Labels = map[string]string{corev1.LabelOSStable: "windows"} }, resize.ReasonWindows},
		"pod-level": {func(in *resize.PlanInput) {
			in.Pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list("cpu", "1")}
		}, resize.ReasonPodResources},
		"best effort": {func(in *resize.PlanInput) { in.Pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{} }, resize.ReasonBestEffort},
		"deferred":    {func(in *resize.PlanInput) { condition(in.Pod, corev1.PodResizePending, "Deferred") }, resize.ReasonInFlight},
		"in progress": {func(in *resize.PlanInput) { condition(in.Pod, corev1.PodResizeInProgress, "") }, resize.ReasonInFlight},
		"C64 not actuated": {func(in *resize.PlanInput) {
			in.Pod.Status.ContainerStatuses[0].Resources.Requests["cpu"] = resource.MustParse("400m")
		}, resize.ReasonInFlight},
		"C62 infeasible":     {func(in *resize.PlanInput) { in.Last = resize.Record{Refused: 3} }, resize.ReasonInfeasible},
		"C62 new generation": {func(in *resize.PlanInput) { in.Last = resize.Record{Refused: 2} }, resize.ReasonChange},
		"C71 held":           {func(in *resize.PlanInput) { in.Last = resize.Record{HeldUntil: now.Add(time.Second)} }, resize.ReasonHeld},
		"hold over":          {func(in *resize.PlanInput) { in.Last = resize.Record{HeldUntil: now} }, resize.ReasonChange},
		"watching": {func(in *resize.PlanInput) {
			in.Settings.Resize.Interval = time.Second
			in.Last = resize.Record{State: resize.StateResized, At: now.Add(-time.Minute), Since: now.Add(-time.Minute)}
		}, resize.ReasonWatching},
		"cool-down": {func(in *resize.PlanInput) {
			in.Last = resize.Record{State: resize.StateResized, At: now.Add(-14 * time.Minute)}
		}, resize.ReasonCoolDown},
		"cooled down": {func(in *resize.PlanInput) {
			in.Last = resize.Record{State: resize.StateResized, At: now.Add(-15 * time.Minute)}
		}, resize.ReasonChange},
		"schedule": {func(in *resize.PlanInput) {
			in.Settings.Resize.Schedule = []policy.Window{{Days: everyDay, Start: 0, End: time.Hour}}
		}, resize.ReasonOutsideSchedule},
		"drift too small": {func(in *resize.PlanInput) { in.Settings.Resize.Threshold = 1 }, resize.ReasonWithinThreshold},
		"node full": {func(in *resize.PlanInput) {
			in.Node.Requested = list("cpu", "8", "memory", "16Gi")
			in.Settings.Rules = in.Settings.Rules[:1]
		}, resize.ReasonNoChange},
		"swap": {func(in *resize.PlanInput) {
			swap := int64(1)
			in.Node.Node.Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
			in.Settings.Rules = in.Settings.Rules[2:]
		}, resize.ReasonNoChange},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := input(burstable(), up)
			tc.with(&in)
			d := resize.Plan(in)
			if d.Reason != tc.want {
				t.Errorf("reason %s (%s), want %s", d.Reason, d.Message, tc.want)
			}
			if (d.Reason == resize.ReasonChange) != (len(d.Changes) > 0) {
				t.Errorf("reason %s with changes %v", d.Reason, d.Changes)
			}
			if d.Reason != resize.ReasonChange && d.Reason != resize.ReasonWithinThreshold && d.Message == "" {
				t.Error("no message")
			}
		})
	}
}

var everyDay = [7]bool{true, true, true, true, true, true, true}

func condition(p *corev1.Pod, typ corev1.PodConditionType, reason string) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: corev1.ConditionTrue, Reason: reason, ObservedGeneration: p.Generation})
}

func TestPlanFields(t *testing.T) {
	all := recommend("cpu request", "1", "cpu limit", "4", "memory request", "250Mi", "memory limit", "500Mi")
	tests := map[string]struct {
		pod  *corev1.Pod
		with func(*resize.PlanInput)
		want map[string]string
		kept map[string]resize.Reason
	}{
		"steps": {
			want: map[string]string{"c cpu request": "500m→750m Step", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"C63 live usage holds the memory limit": {
			with: func(in *resize.PlanInput) {
				in.Live["c"] = resize.Live{WorkingSet: 800 << 20, PeakWorkingSet: 700 << 20}
			},
			want: map[string]string{"c cpu request": "500m→750m Step", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→880Mi LiveUsage"},
		},
		"C63 usage above the limit": {
			with: func(in *resize.PlanInput) { in.Live["c"] = resize.Live{PeakWorkingSet: 990 << 20} },
			want: map[string]string{"c cpu request": "500m→750m Step", "c memory request": "500Mi→375Mi Step"},
			kept: map[string]resize.Reason{"c memory limit": resize.ReasonLiveUsage},
		},
		"no live value": {
			with: func(in *resize.PlanInput) { in.Live = nil },
			want: map[string]string{"c cpu request": "500m→750m Step"},
			kept: map[string]resize.Reason{"c memory request": resize.ReasonNoLiveUsage, "c memory limit": resize.ReasonNoLiveUsage},
		},
		"C73 an HPA targets the cpu request": {
			with: func(in *resize.PlanInput) { in.HPA = []resize.Autoscaled{{Resource: "cpu", Autoscaler: "h"}} },
			want: map[string]string{"c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
			kept: map[string]resize.Reason{"c cpu request": resize.ReasonAutoscaled},
		},
		"an HPA the policy ignores": {
			with: func(in *resize.PlanInput) {
				in.HPA = []resize.Autoscaled{{Resource: "cpu", Autoscaler: "h"}}
				in.Settings.Apply.HPA = v1alpha1.HPAIgnore
			},
			want: map[string]string{"c cpu request": "500m→750m Step", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"C65 a restart is not allowed": {
			with: func(in *resize.PlanInput) {
				in.Pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer}}
			},
			want: map[string]string{"c cpu request": "500m→750m Step"},
			kept: map[string]resize.Reason{"c memory request": resize.ReasonRestart, "c memory limit": resize.ReasonRestart},
		},
		"C65 a restart is allowed": {
			with: func(in *resize.PlanInput) {
				in.Pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "memory", RestartPolicy: corev1.RestartContainer}}
				in.Settings.Resize.AllowRestart = true
			},
			want: map[string]string{"c cpu request": "500m→750m Step", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"C67 swap": {
			with: func(in *resize.PlanInput) {
				swap := int64(1 << 30)
				in.Node.Node.Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &swap}
			},
			want: map[string]string{"c cpu request": "500m→750m Step"},
			kept: map[string]resize.Reason{"c memory request": resize.ReasonSwap, "c memory limit": resize.ReasonSwap},
		},
		"C67 static CPU manager": {
			pod:  running(ctr("c", list("cpu", "2", "memory", "1000Mi"), list("cpu", "2", "memory", "1000Mi"))),
			with: func(in *resize.PlanInput) { in.Node.StaticCPU = true },
			want: map[string]string{"c memory request": "1000Mi→750Mi Step", "c memory limit": "1000Mi→750Mi Step"},
			kept: map[string]resize.Reason{"c cpu request": resize.ReasonStaticCPU, "c cpu limit": resize.ReasonStaticCPU},
		},
		"Guaranteed moves together": {
			pod:  running(ctr("c", list("cpu", "2", "memory", "1000Mi"), list("cpu", "2", "memory", "1000Mi"))),
			want: map[string]string{"c cpu request": "2→3 Step", "c cpu limit": "2→3 Step", "c memory request": "1000Mi→750Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"Guaranteed and live usage": {
			pod:  running(ctr("c", list("cpu", "2", "memory", "1000Mi"), list("cpu", "2", "memory", "1000Mi"))),
			with: func(in *resize.PlanInput) { in.Live["c"] = resize.Live{PeakWorkingSet: 800 << 20} },
			want: map[string]string{"c cpu request": "2→3 Step", "c cpu limit": "2→3 Step", "c memory request": "1000Mi→880Mi LiveUsage", "c memory limit": "1000Mi→880Mi LiveUsage"},
		},
		"Guaranteed, and the policy sets only requests": {
			pod: running(ctr("c", list("cpu", "2", "memory", "1000Mi"), list("cpu", "2", "memory", "1000Mi"))),
			with: func(in *resize.PlanInput) {
				in.Settings.Rules = []policy.Rule{rule("cpu", "request"), rule("memory", "request")}
			},
			want: map[string]string{},
			kept: map[string]resize.Reason{"c cpu request": resize.ReasonQoS, "c memory request": resize.ReasonQoS},
		},
		"never set before": {
			pod:  running(ctr("c", list("cpu", "500m"), nil)),
			want: map[string]string{"c cpu request": "500m→750m Step"},
			kept: map[string]resize.Reason{"c cpu limit": resize.ReasonUnset, "c memory request": resize.ReasonUnset, "c memory limit": resize.ReasonUnset},
		},
		"only an OOM kill counts without history": {
			with: func(in *resize.PlanInput) {
				in.Profile.Conditions[0].Status = metav1.ConditionFalse
				in.Profile.Containers = []v1alpha1.ContainerStatus{recommend("cpu request", "1", "memory request", "250Mi", "memory limit", "2000Mi")}
				in.Profile.Containers[0].OOMKills = 1
			},
			want: map[string]string{"c memory limit": "1000Mi→1500Mi Step"},
		},
		"smaller steps where there was no room": {
			with: func(in *resize.PlanInput) { in.Last = resize.Record{State: resize.StateWithdrawn, Failures: 2} },
			want: map[string]string{"c cpu request": "500m→563m Step", "c memory request": "500Mi→480000Ki Step", "c memory limit": "1000Mi→960000Ki Step"},
		},
		"the quota has 100m left": {
			with: func(in *resize.PlanInput) {
				in.Bounds.Quotas = []corev1.ResourceQuota{quota("requests.cpu", "2", "1900m")}
			},
			want: map[string]string{"c cpu request": "500m→600m ResourceQuota", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"the node has 200m left": {
			with: func(in *resize.PlanInput) { in.Node.Requested = list("cpu", "7800m") },
			want: map[string]string{"c cpu request": "500m→700m NodeFull", "c memory request": "500Mi→375Mi Step", "c memory limit": "1000Mi→750Mi Step"},
		},
		"a LimitRange": {
			with: func(in *resize.PlanInput) {
				in.Bounds.LimitRanges = []corev1.LimitRange{limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: list("cpu", "600m"), Min: list("memory", "450Mi")})}
			},
			// The cpu limit the pod has is above the LimitRange already; the API server takes no resize that leaves it there.
			want: map[string]string{"c cpu request": "500m→600m LimitRange", "c cpu limit": "4→600m LimitRange", "c memory request": "500Mi→450Mi LimitRange", "c memory limit": "1000Mi→750Mi Step"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := tc.pod
			if pod == nil {
				pod = burstable()
			}
			in := input(pod, *all.DeepCopy())
			if tc.with != nil {
				tc.with(&in)
			}
			d := resize.Plan(in)
			if diff := cmp.Diff(tc.want, values(d)); diff != "" {
				t.Errorf("%s %s\n%s", d.Reason, d.Message, diff)
			}
			if tc.kept == nil {
				tc.kept = map[string]resize.Reason{}
			}
			if diff := cmp.Diff(tc.kept, kept(d)); diff != "" {
				t.Errorf("kept %s", diff)
			}
		})
	}
}

func quota(name corev1.ResourceName, hard, used string) corev1.ResourceQuota {
	return corev1.ResourceQuota{Status: corev1.ResourceQuotaStatus{Hard: list(string(name), hard), Used: list(string(name), used)}}
}

func limitRange(items ...corev1.LimitRangeItem) corev1.LimitRange {
	return corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: items}}
}
