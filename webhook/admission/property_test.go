package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/resize"
	"plimsoll.dev/webhook/admission"
)

// amounts are drawn from few values, so that equal and crossing ones are common.
var (
	cpus     = []int64{1, 10, 100, 250, 500, 800, 1000, 2000, 8000}
	memories = []int64{1 << 20, 16 << 20, 64 << 20, 100 << 20, 128 << 20, 1 << 30, 4 << 30}
)

func drawAmount(t *rapid.T, res corev1.ResourceName, label string) resource.Quantity {
	if res == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(rapid.SampledFrom(cpus).Draw(t, label), resource.DecimalSI)
	}
	return *resource.NewQuantity(rapid.SampledFrom(memories).Draw(t, label), resource.BinarySI)
}

var pair = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func drawResources(t *rapid.T) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, res := range pair {
		switch rapid.IntRange(0, 3).Draw(t, "set "+string(res)) {
		case 1:
			r.Requests[res] = drawAmount(t, res, "request")
		case 2:
			r.Limits[res] = drawAmount(t, res, "limit")
		case 3:
			a, b := drawAmount(t, res, "request"), drawAmount(t, res, "limit")
			if a.Cmp(b) > 0 {
				a, b = b, a
			}
			r.Requests[res], r.Limits[res] = a, b
		}
	}
	return r
}

func drawPod(t *rapid.T) *corev1.Pod {
	pod := newPod("p", mode("apply"))
	pod.Spec.Containers = nil
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "i", Resources: drawResources(t)})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "init containers") {
		c := corev1.Container{Name: fmt.Sprintf("i%d", i), Image: "i", Resources: drawResources(t)}
		if rapid.Bool().Draw(t, "sidecar") {
			c.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	return pod
}

func drawPolicy(t *rapid.T) v1alpha1.ResourcePolicySpec {
	var spec v1alpha1.ResourcePolicySpec
	for _, r := range rules() {
		if !rapid.Bool().Draw(t, "rule") {
			continue
		}
		a, b := drawAmount(t, r.Resource, "min"), drawAmount(t, r.Resource, "max")
		if a.Cmp(b) > 0 {
			a, b = b, a
		}
		if rapid.Bool().Draw(t, "bounded") {
			r.Min, r.Max = &a, &b
		}
		spec.Resources = append(spec.Resources, r)
	}
	spec.Apply = &v1alpha1.Apply{QoS: rapid.SampledFrom([]v1alpha1.QoSPolicy{v1alpha1.QoSKeep, v1alpha1.QoSAllowBurstable}).Draw(t, "qos")}
	return spec
}

// drawRange returns a LimitRange that the API server accepts.
func drawRange(t *rapid.T) corev1.LimitRangeSpec {
	item := corev1.LimitRangeItem{
		Type: rapid.SampledFrom([]corev1.LimitType{corev1.LimitTypeContainer, corev1.LimitTypePod}).Draw(t, "type"),
		Min:  corev1.ResourceList{}, Max: corev1.ResourceList{}, MaxLimitRequestRatio: corev1.ResourceList{},
	}
	if item.Type == corev1.LimitTypeContainer {
		item.Default, item.DefaultRequest = corev1.ResourceList{}, corev1.ResourceList{}
	}
	for _, res := range pair {
		var ordered [4]resource.Quantity
		for i := range ordered {
			ordered[i] = drawAmount(t, res, "bound")
			for j := i; j > 0 && ordered[j].Cmp(ordered[j-1]) < 0; j-- {
				ordered[j], ordered[j-1] = ordered[j-1], ordered[j]
			}
		}
		if rapid.Bool().Draw(t, "has min") {
			item.Min[res] = ordered[0]
		}
		if rapid.Bool().Draw(t, "has max") {
			item.Max[res] = ordered[3]
		}
		if item.Type == corev1.LimitTypeContainer && rapid.Bool().Draw(t, "has defaults") {
			item.DefaultRequest[res], item.Default[res] = ordered[1], ordered[2]
		}
		if rapid.IntRange(0, 3).Draw(t, "has ratio") == 0 {
			item.MaxLimitRequestRatio[res] = *resource.NewQuantity(rapid.Int64Range(1, 4).Draw(t, "ratio"), resource.DecimalSI)
		}
	}
	return corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}
}

// C50: whatever pod, policy, LimitRange and quota meet, a pod that the API
// server takes without us it takes with us, and the chain of bounds holds.
func TestC50AnyPodIsAccepted(t *testing.T) {
	serve(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		pod, spec := drawPod(rt), drawPolicy(rt)
		n++
		pod.Labels["app.kubernetes.io/name"] = fmt.Sprintf("generated-%d", n)
		ns := namespace(t, nil)
		if rapid.Bool().Draw(rt, "has a LimitRange") {
			lr := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "range"}, Spec: drawRange(rt)}
			if err := world.client.Create(t.Context(), lr); err != nil {
				rt.Skip("not a valid LimitRange: ", err)
			}
			seen(t, lr)
		}
		if rapid.IntRange(0, 3).Draw(rt, "has a quota") == 0 {
			quota(t, rt, ns)
		}
		world.nodes.Set("node", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("2Gi")})
		defer world.nodes.Set("node", nil)
		without := pod.DeepCopy()
		without.Labels[v1alpha1.LabelMode] = "off"
		dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		before, err := world.clients.CoreV1().Pods(ns).Create(t.Context(), without, dry)
		if err != nil {
			rt.Skip("refused without us: ", err)
		}
		ref := govern(t, spec)
		wp := learn(t, pod, ref, drawRecommendations(rt, pod)...)
		defer func() { _ = world.client.Delete(context.WithoutCancel(t.Context()), wp) }()
		after, err := world.clients.CoreV1().Pods(ns).Create(t.Context(), pod, dry)
		if err != nil {
			rt.Fatalf("refused because of us: %v\nwas %s\npolicy %s", err, mustJSON(t, before.Spec), mustJSON(t, spec))
		}
		holds(rt, spec, before, after)
	})
}

// quota makes a quota with little left.
func quota(t *testing.T, rt *rapid.T, ns string) {
	hard := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"requests.cpu", "limits.cpu", "requests.memory", "limits.memory"} {
		if rapid.Bool().Draw(rt, "quota of "+string(name)) {
			res := corev1.ResourceName(strings.SplitN(string(name), ".", 2)[1])
			hard[name] = drawAmount(rt, res, "hard")
		}
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if err := world.client.Create(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	// What the quota controller does, which does not run here.
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{}}
	for name := range hard {
		q.Status.Used[name] = resource.MustParse("0")
	}
	if err := world.client.Status().Update(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	seen(t, q)
}

func drawRecommendations(t *rapid.T, pod *corev1.Pod) []v1alpha1.ContainerStatus {
	var out []v1alpha1.ContainerStatus
	for _, cs := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range cs {
			s := v1alpha1.ContainerStatus{Name: c.Name}
			for _, r := range rules() {
				if rapid.IntRange(0, 4).Draw(t, "recommended") > 0 {
					s.Recommendations = append(s.Recommendations, v1alpha1.Recommendation{
						Resource: r.Resource, Field: r.Field, Value: drawAmount(t, r.Resource, "value"), Reason: "Estimated"})
				}
			}
			out = append(out, s)
		}
	}
	return out
}

// holds checks the chain request ≤ limit ≤ policy ≤ node wherever admission
// changed something, and the quality-of-service class.
func holds(t *rapid.T, spec v1alpha1.ResourcePolicySpec, before, after *corev1.Pod) {
	settings := policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}}).Policies()[0].Settings
	largest := world.nodes.Largest()
	ours := map[string]bool{}
	if text, ok := after.Annotations[v1alpha1.AnnotationApplied]; ok {
		a, err := admission.ParseApplied(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range a.Changes {
			ours[c.Container+" "+c.Field] = true
		}
	}
	for i, c := range after.Spec.Containers {
		was := before.Spec.Containers[i].Resources
		for _, r := range settings.Rules {
			now, old := c.Resources.Requests, was.Requests
			if r.Field == v1alpha1.FieldLimit {
				now, old = c.Resources.Limits, was.Limits
			}
			q, ok := now[r.Resource]
			o, had := old[r.Resource]
			// What was not set by us may be the API server's: a request that
			// is missing becomes the limit.
			if !ok || had && q.Cmp(o) == 0 || !ours[c.Name+" "+string(r.Resource)+" "+string(r.Field)] {
				continue
			}
			// A limit is never set below a request that the policy leaves alone,
			// and nothing is lowered below a LimitRange's least.
			lowered := had && q.Cmp(o) < 0
			raised := r.Field == v1alpha1.FieldLimit && q.Cmp(c.Resources.Requests[r.Resource]) == 0
			if r.Max > 0 && q.AsApproximateFloat64() > float64(r.Max)*1.000001 && !raised && !lowered {
				t.Fatalf("%s %s of %s is %s, above the policy's maximum %v\nwas %s\nannotation %s", r.Resource, r.Field, c.Name, &q, r.Max, mustJSON(t, before.Spec), after.Annotations[v1alpha1.AnnotationApplied])
			}
			if m := largest[r.Resource]; r.Field == v1alpha1.FieldRequest && q.Cmp(m) > 0 {
				t.Fatalf("%s request of %s is %s, above the largest node's %s", r.Resource, c.Name, &q, &m)
			}
		}
		for res, lim := range c.Resources.Limits {
			if req, ok := c.Resources.Requests[res]; ok && req.Cmp(lim) > 0 {
				t.Fatalf("%s of %s: request %s above limit %s", res, c.Name, &req, &lim)
			}
		}
	}
	was, is := resize.Class(before), resize.Class(after)
	if was != is && (is != corev1.PodQOSBurstable || spec.Apply.QoS == v1alpha1.QoSKeep) {
		t.Fatalf("the class was %s and is %s", was, is)
	}
}
