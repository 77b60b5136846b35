package resize_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
	"plimsoll.dev/pkg/sample"
)

var now = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) // a Wednesday

// list reads "cpu=500m memory=1Gi".
func list(text ...string) corev1.ResourceList {
	if len(text) == 0 {
		return nil
	}
	l := corev1.ResourceList{}
	for i := 0; i < len(text); i += 2 {
		l[corev1.ResourceName(text[i])] = resource.MustParse(text[i+1])
	}
	return l
}

func ctr(name string, requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func sidecar(c corev1.Container) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

// running makes a pod whose containers have all started and have what they ask for.
func running(containers ...corev1.Container) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop", Generation: 3}}
	for _, c := range containers {
		if c.RestartPolicy != nil {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	start(p)
	return p
}

func start(p *corev1.Pod) {
	yes := true
	status := func(c corev1.Container) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: c.Name, Ready: true, Started: &yes, Resources: c.Resources.DeepCopy(),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	for _, c := range p.Spec.InitContainers {
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, status(c))
	}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status(c))
	}
}

func rule(res corev1.ResourceName, f v1alpha1.ResourceField) policy.Rule {
	lo := sample.Amount(0.01)
	if res != corev1.ResourceCPU {
		lo = 16 << 20
	}
	return policy.Rule{Resource: res, Field: f, Headroom: 1, Min: lo}
}

// settings has rules for cpu and memory, requests and limits, and the defaults.
func settings() *policy.Settings {
	return &policy.Settings{
		Rules: []policy.Rule{
			rule("cpu", v1alpha1.FieldRequest), rule("cpu", v1alpha1.FieldLimit),
			rule("memory", v1alpha1.FieldRequest), rule("memory", v1alpha1.FieldLimit),
		},
		Apply: policy.Apply{QoS: v1alpha1.QoSAllowBurstable, HPA: v1alpha1.HPALeave},
		Resize: policy.Resize{
			Threshold: 0.1, MaxChangePerCycle: 0.5, Interval: 15 * time.Minute, DecreaseMargin: 0.1,
			RollbackWatch: 10 * time.Minute, DeferredPatience: 5 * time.Minute, ProgressPatience: 15 * time.Minute,
			RollbackThrottled: 0.25,
		},
	}
}

func rules(rs ...policy.Rule) *policy.Settings {
	s := settings()
	s.Rules = rs
	return s
}

// recommend reads pairs like "cpu request", "800m" for container c.
func recommend(text ...string) v1alpha1.ContainerStatus {
	const container = "c"
	c := v1alpha1.ContainerStatus{Name: container}
	for i := 0; i < len(text); i += 2 {
		f := field(container, text[i])
		c.Recommendations = append(c.Recommendations, v1alpha1.Recommendation{
			Resource: f.Resource, Field: f.Field, Value: resource.MustParse(text[i+1]), Reason: "Estimated",
		})
	}
	return c
}

func profile(containers ...v1alpha1.ContainerStatus) *v1alpha1.WorkloadProfileStatus {
	return &v1alpha1.WorkloadProfileStatus{
		State:      v1alpha1.ProfileSufficient,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionTrue}},
		Containers: containers,
	}
}

func field(container, text string) resize.Field {
	for i := range text {
		if text[i] == ' ' {
			return resize.Field{Container: container, Resource: corev1.ResourceName(text[:i]), Field: v1alpha1.ResourceField(text[i+1:])}
		}
	}
	panic(text)
}

// values renders a decision as "c cpu request" → "100m→200m Reason".
func values(d resize.Decision) map[string]string {
	out := map[string]string{}
	for _, c := range d.Changes {
		from := ""
		if c.From != nil {
			from = c.From.String()
		}
		out[c.Container+" "+string(c.Resource)+" "+string(c.Field.Field)] = from + "→" + c.To.String() + " " + string(c.Reason)
	}
	return out
}

func kept(d resize.Decision) map[string]resize.Reason {
	out := map[string]resize.Reason{}
	for _, k := range d.Kept {
		out[k.Container+" "+string(k.Resource)+" "+string(k.Field.Field)] = k.Reason
	}
	return out
}
