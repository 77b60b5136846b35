package admission_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/admission"
	"plimsoll.dev/webhook/admission/admissiontest"
)

func ptr[T any](v T) *T { return &v }

// rules sets cpu and memory, request and limit.
func rules() []v1alpha1.ResourceRule {
	return []v1alpha1.ResourceRule{
		{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldRequest},
		{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldLimit},
		{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldRequest},
		{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldLimit},
	}
}

// recommended returns a container's recommendations: cpu request and limit, then memory's.
func recommended(name string, values ...string) v1alpha1.ContainerStatus {
	c := v1alpha1.ContainerStatus{Name: name}
	for i, r := range rules() {
		if i < len(values) && values[i] != "" {
			c.Recommendations = append(c.Recommendations, v1alpha1.Recommendation{
				Resource: r.Resource, Field: r.Field, Value: resource.MustParse(values[i]), Reason: "Estimated",
			})
		}
	}
	return c
}

// values shows a container's resources as "cpu request/limit memory request/limit".
func values(r corev1.ResourceRequirements) string {
	show := func(l corev1.ResourceList, n corev1.ResourceName) string {
		if q, ok := l[n]; ok {
			return q.String()
		}
		return "-"
	}
	return show(r.Requests, "cpu") + "/" + show(r.Limits, "cpu") + " " + show(r.Requests, "memory") + "/" + show(r.Limits, "memory")
}

func resources(req, lim map[corev1.ResourceName]string) corev1.ResourceRequirements {
	list := func(m map[corev1.ResourceName]string) corev1.ResourceList {
		if m == nil {
			return nil
		}
		out := corev1.ResourceList{}
		for k, v := range m {
			out[k] = resource.MustParse(v)
		}
		return out
	}
	return corev1.ResourceRequirements{Requests: list(req), Limits: list(lim)}
}

func mode(m v1alpha1.Mode) map[string]string { return map[string]string{v1alpha1.LabelMode: string(m)} }

func TestPodsAreStamped(t *testing.T) {
	serve(t)
	govern(t, v1alpha1.ResourcePolicySpec{})
	const policyRef, profileRef = "ClusterResourcePolicy/all", "web--all-"
	tests := map[string]struct {
		namespace map[string]string
		labels    map[string]string
		change    func(*corev1.Pod)
		wantMode  string
		wantRef   string
	}{
		"own mode":                     {labels: mode("measure"), wantMode: "measure", wantRef: policyRef},
		"a forged stamp is replaced":   {labels: mode("apply"), change: forge, wantMode: "apply", wantRef: policyRef},
		"not enrolled":                 {},
		"off":                          {labels: mode("off"), wantMode: "off"},
		"the namespace's mode":         {namespace: mode("resize"), wantMode: "resize", wantRef: policyRef},
		"off in an enrolled namespace": {namespace: mode("resize"), labels: mode("off"), wantMode: "off"},
		"its own mode wins":            {namespace: mode("resize"), labels: mode("measure"), wantMode: "measure", wantRef: policyRef},
		"namespace off":                {namespace: mode("off")},
		"namespace mode unknown":       {namespace: mode("sometimes")},
		"windows": {labels: mode("apply"), wantMode: "apply", change: func(p *corev1.Pod) {
			forge(p)
			p.Spec.OS = &corev1.PodOS{Name: corev1.Windows}
		}},
		"pod-level resources": {labels: mode("apply"), wantMode: "apply", change: func(p *corev1.Pod) {
			forge(p)
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t, tc.namespace)
			pod := newPod("p", tc.labels)
			if tc.change != nil {
				tc.change(pod)
			}
			got := create(t, ns, pod)
			if got.Labels[v1alpha1.LabelMode] != tc.wantMode {
				t.Errorf("mode is %q, want %q", got.Labels[v1alpha1.LabelMode], tc.wantMode)
			}
			if copied := got.Labels[v1alpha1.LabelModeSource] == v1alpha1.ModeSourceNamespace; copied != (tc.labels == nil && tc.wantRef != "") {
				t.Errorf("marked as a copy: %v", copied)
			}
			if ref := got.Annotations[v1alpha1.AnnotationPolicyRef]; ref != tc.wantRef {
				t.Errorf("policy-ref is %q, want %q", ref, tc.wantRef)
			}
			if ref := got.Annotations[v1alpha1.AnnotationProfileRef]; tc.wantRef == "" && ref != "" || tc.wantRef != "" && !strings.HasPrefix(ref, profileRef) {
				t.Errorf("profile-ref is %q", ref)
			}
		})
	}
}

func forge(p *corev1.Pod) {
	p.Annotations = map[string]string{
		v1alpha1.AnnotationPolicyRef: "ClusterResourcePolicy/mine", v1alpha1.AnnotationProfileRef: "mine", "kept": "yes",
	}
}

func TestUnknownModeIsRefusedNamingTheValidOnes(t *testing.T) {
	serve(t)
	_, err := world.clients.CoreV1().Pods("default").Create(t.Context(), newPod("p", mode("on")), metav1.CreateOptions{})
	if err == nil {
		t.Fatal("the pod was created")
	}
	if want := `label plimsoll.dev/mode="on": use one of off, measure, apply or resize`; !strings.Contains(err.Error(), want) {
		t.Errorf("the message is %q, want it to hold %q", err, want)
	}
}

func TestSuspendedConfigurationTouchesNothing(t *testing.T) {
	serve(t)
	govern(t, v1alpha1.ResourcePolicySpec{})
	config := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	config.Spec.Suspended = ptr(true)
	put(t, config)
	got := create(t, namespace(t, nil), newPod("p", mode("apply")))
	if len(got.Annotations) > 0 {
		t.Errorf("annotations %v were set", got.Annotations)
	}
	if err := world.client.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	admissiontest.Wait(t, "the cache to forget the configuration", func() error {
		if got := create(t, namespace(t, nil), newPod("p", mode("apply"))); len(got.Annotations) == 0 {
			return errNotYet
		}
		return nil
	})
}

func TestRecommendedValuesAreApplied(t *testing.T) {
	serve(t)
	sidecar := corev1.Container{Name: "proxy", Image: "proxy", RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways)}
	tests := map[string]struct {
		policy v1alpha1.ResourcePolicySpec
		mode   v1alpha1.Mode
		have   corev1.ResourceRequirements
		change func(*corev1.Pod)
		learn  []v1alpha1.ContainerStatus
		want   string // of container app
	}{
		"nothing set": {
			mode: "apply", learn: []v1alpha1.ContainerStatus{recommended("app", "100m", "200m", "64Mi", "128Mi")},
			want: "100m/200m 64Mi/128Mi",
		},
		"too much set": {
			mode: "resize", have: resources(map[corev1.ResourceName]string{"cpu": "2", "memory": "4Gi"}, map[corev1.ResourceName]string{"memory": "8Gi"}),
			learn: []v1alpha1.ContainerStatus{recommended("app", "100m", "", "64Mi", "128Mi")},
			want:  "100m/- 64Mi/128Mi",
		},
		"measured only": {
			mode: "measure", learn: []v1alpha1.ContainerStatus{recommended("app", "100m")},
			want: "-/- -/-",
		},
		"dry run": {
			mode: "apply", policy: v1alpha1.ResourcePolicySpec{Apply: &v1alpha1.Apply{DryRun: ptr(true)}},
			learn: []v1alpha1.ContainerStatus{recommended("app", "100m")},
			want:  "-/- -/-",
		},
		// C50: the recommended request is above a limit that the policy leaves alone.
		"C50 request above the limit": {
			mode: "apply", have: resources(map[corev1.ResourceName]string{"cpu": "100m"}, map[corev1.ResourceName]string{"cpu": "500m"}),
			policy: v1alpha1.ResourcePolicySpec{Resources: rules()[:1]},
			learn:  []v1alpha1.ContainerStatus{recommended("app", "800m")},
			want:   "500m/500m -/-",
		},
		// C51: a Guaranteed pod stays Guaranteed.
		"C51 guaranteed moves together": {
			mode: "apply", have: resources(map[corev1.ResourceName]string{"cpu": "2", "memory": "1Gi"}, map[corev1.ResourceName]string{"cpu": "2", "memory": "1Gi"}),
			learn: []v1alpha1.ContainerStatus{recommended("app", "300m", "400m", "100Mi", "200Mi")},
			want:  "400m/400m 200Mi/200Mi",
		},
		"C51 guaranteed and only requests may change": {
			mode: "apply", have: resources(map[corev1.ResourceName]string{"cpu": "2", "memory": "1Gi"}, map[corev1.ResourceName]string{"cpu": "2", "memory": "1Gi"}),
			policy: v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{rules()[0], rules()[2]}},
			learn:  []v1alpha1.ContainerStatus{recommended("app", "300m", "", "100Mi")},
			want:   "2/2 1Gi/1Gi",
		},
		"best effort is kept": {
			mode: "apply", policy: v1alpha1.ResourcePolicySpec{Apply: &v1alpha1.Apply{QoS: v1alpha1.QoSKeep}},
			learn: []v1alpha1.ContainerStatus{recommended("app", "100m", "200m", "64Mi", "128Mi")},
			want:  "-/- -/-",
		},
		"a native sidecar too": {
			mode: "apply", change: func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{sidecar} },
			learn: []v1alpha1.ContainerStatus{recommended("app", "100m"), recommended("proxy", "50m")},
			want:  "100m/- -/-",
		},
		"other resources survive": {
			mode: "apply", have: resources(map[corev1.ResourceName]string{"example.org/gpu": "1"}, map[corev1.ResourceName]string{"example.org/gpu": "1"}),
			learn: []v1alpha1.ContainerStatus{recommended("app", "100m", "200m", "64Mi", "128Mi")},
			want:  "100m/200m 64Mi/128Mi",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.policy.Resources == nil {
				tc.policy.Resources = rules()
			}
			ref := govern(t, tc.policy)
			pod := newPod("p", mode(tc.mode))
			pod.Spec.Containers[0].Resources = tc.have
			if tc.change != nil {
				tc.change(pod)
			}
			learn(t, pod, ref, tc.learn...)
			got := create(t, namespace(t, nil), pod)
			if v := values(got.Spec.Containers[0].Resources); v != tc.want {
				t.Errorf("values are %s, want %s", v, tc.want)
			}
			for n, q := range tc.have.Limits {
				if strings.Contains(string(n), "/") && got.Spec.Containers[0].Resources.Limits[n] != q {
					t.Errorf("%s was lost", n)
				}
			}
			if len(got.Spec.InitContainers) > 0 && values(got.Spec.InitContainers[0].Resources) != "50m/- -/-" {
				t.Errorf("the sidecar's values are %s", values(got.Spec.InitContainers[0].Resources))
			}
			applied(t, got, values(tc.have) != tc.want || name == "dry run")
		})
	}
}

// applied checks that the annotation is there if something was changed and reads back.
func applied(t *testing.T, pod *corev1.Pod, want bool) admission.Applied {
	t.Helper()
	text, ok := pod.Annotations[v1alpha1.AnnotationApplied]
	if !ok {
		if want {
			t.Error("the annotation that says what was applied is missing")
		}
		return admission.Applied{}
	}
	a, err := admission.ParseApplied(text)
	if err != nil {
		t.Fatal(err)
	}
	if (len(a.Changes) > 0) != want || a.Profile != pod.Annotations[v1alpha1.AnnotationProfileRef] {
		t.Errorf("the annotation says %s", text)
	}
	return a
}

// C56: a request that an autoscaler targets by utilisation is left alone, with the reason.
func TestC56AutoscaledRequestsAreLeft(t *testing.T) {
	serve(t)
	tests := map[string]struct {
		hpa  v1alpha1.HPAPolicy
		kind string
		want string
	}{
		"left by default":       {kind: "StatefulSet", want: "1/- 64Mi/-"},
		"policy says ignore":    {kind: "StatefulSet", hpa: v1alpha1.HPAIgnore, want: "100m/- 64Mi/-"},
		"another kind's target": {kind: "Deployment", want: "100m/- 64Mi/-"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t, nil)
			ref := govern(t, v1alpha1.ResourcePolicySpec{Resources: rules(), Apply: &v1alpha1.Apply{HPA: tc.hpa}})
			put(t, &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "scale-web"},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					MaxReplicas:    9,
					ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: tc.kind, Name: "web"},
					Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
						Name: "cpu", Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr(int32(70))},
					}}},
				},
			})
			pod := newPod("p", mode("apply"))
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "1", Controller: ptr(true)}}
			pod.Spec.Containers[0].Resources = resources(map[corev1.ResourceName]string{"cpu": "1"}, nil)
			learn(t, pod, ref, recommended("app", "100m", "", "64Mi"))
			got := create(t, ns, pod)
			if v := values(got.Spec.Containers[0].Resources); v != tc.want {
				t.Errorf("values are %s, want %s", v, tc.want)
			}
			kept := []admission.KeptField(nil)
			if strings.HasPrefix(tc.want, "1/") {
				kept = []admission.KeptField{{Container: "app", Field: "cpu request", Reason: "HorizontalPodAutoscaler"}}
			}
			if diff := cmp.Diff(kept, applied(t, got, true).Kept); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

// C57: the ReplicaSet is milliseconds old, in no cache, and the policy selects Deployments.
func TestC57OwnerInNoCacheYet(t *testing.T) {
	serve(t)
	govern(t, v1alpha1.ResourcePolicySpec{Selector: v1alpha1.Selector{Kinds: []string{"Deployment"}}})
	ns := namespace(t, nil)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "1", Controller: ptr(true)}}},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/name": "web"}},
				Spec:       newPod("", nil).Spec,
			},
		},
	}
	for range 20 {
		rs.Name += "x"
		made, err := world.clients.AppsV1().ReplicaSets(ns).Create(t.Context(), rs, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod := newPod(rs.Name, mode("measure"))
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(made, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		if got := create(t, ns, pod).Annotations[v1alpha1.AnnotationPolicyRef]; got != "ClusterResourcePolicy/all" {
			t.Fatalf("policy-ref is %q", got)
		}
	}
	// An owner that is nowhere: nothing is stamped, the controllers resolve it later.
	pod := newPod("orphan", mode("measure"))
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "gone", UID: "1", Controller: ptr(true)}}
	if got := create(t, ns, pod).Annotations; len(got) > 0 {
		t.Errorf("annotations %v of a pod whose owner is unknown", got)
	}
}

// C04: the pod object's own namespace is empty, the request's counts.
func TestC04NamespaceOfTheRequest(t *testing.T) {
	ns := namespace(t, nil)
	govern(t, v1alpha1.ResourcePolicySpec{Selector: v1alpha1.Selector{Namespaces: &v1alpha1.NamespaceSelector{Include: []v1alpha1.Pattern{v1alpha1.Pattern(ns)}}}})
	pod := newPod("p", mode("measure"))
	if pod.Namespace != "" {
		t.Fatal("the pod has a namespace")
	}
	got := admit(t, ns, pod)
	if got.Annotations[v1alpha1.AnnotationPolicyRef] != "ClusterResourcePolicy/all" {
		t.Errorf("annotations are %v", got.Annotations)
	}
}
