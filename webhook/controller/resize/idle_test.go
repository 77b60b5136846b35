package resize_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/webhook/controller/resize"
)

// stock is a cache that holds what an idle cluster would: it answers reads of
// profiles and nodes and fails every write.
type stock struct {
	client.Client
	profiles map[string]*v1alpha1.WorkloadProfile
	pods     map[string][]corev1.Pod // by profile
	nodes    map[string][]corev1.Pod
}

func (s *stock) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.WorkloadProfile:
		if p := s.profiles[key.Name]; p != nil {
			*o = *p
			return nil
		}
	case *corev1.Node:
		o.Name = key.Name
		o.Status.Allocatable = list("cpu", "64", "memory", "256Gi")
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (s *stock) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if pods, ok := l.(*corev1.PodList); ok {
		var o client.ListOptions
		for _, opt := range opts {
			opt.ApplyToList(&o)
		}
		pods.Items = s.nodes[o.FieldSelector.Requirements()[0].Value]
	}
	return nil
}

func (s *stock) OfProfile(_ context.Context, name string) ([]corev1.Pod, error) {
	return s.pods[name], nil
}

// BenchmarkIdle10000 is one look at 10,000 pods of 500 profiles, none of which
// drifts, all of them this replica's: what happens every ten seconds.
func BenchmarkIdle10000(b *testing.B) {
	const profiles, each, perNode = 500, 20, 100
	s := &stock{profiles: map[string]*v1alpha1.WorkloadProfile{}, pods: map[string][]corev1.Pod{}, nodes: map[string][]corev1.Pod{}}
	ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "all"}
	crp := v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{
		{Resource: "cpu", Field: "request"}, {Resource: "cpu", Field: "limit"}, {Resource: "memory", Field: "request"}, {Resource: "memory", Field: "limit"},
	}}}
	holder := &policy.Holder{}
	holder.Set(policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{crp}))
	maker := bench{t: b, ns: "shop"}
	for i := range profiles {
		wp := idleProfile(fmt.Sprintf("web-%d", i), ref)
		s.profiles[wp.Name] = wp
		for j := range each {
			pod := idlePod(maker.template(), wp.Name, ref, i*each+j, perNode)
			s.pods[wp.Name] = append(s.pods[wp.Name], pod)
			s.nodes[pod.Spec.NodeName] = append(s.nodes[pod.Spec.NodeName], pod)
		}
	}
	c, err := resize.New(resize.Options{Client: s, Policies: holder, Pods: s, Replica: "a", Interval: 10 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	began := cpuTime(b)
	for i := 0; i < b.N; i++ {
		for name := range s.profiles {
			if _, err := c.Reconcile(b.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	share := 100 * (cpuTime(b) - began).Seconds() / float64(b.N) / 10
	fmt.Printf("RESULT resize_idle_10k_core_percent %.2f percent\n", share)
}

func idleProfile(name string, ref v1alpha1.PolicyReference) *v1alpha1.WorkloadProfile {
	wp := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: name}}
	wp.Spec.Identity.PolicyRef = &ref
	wp.Status.State = v1alpha1.ProfileSufficient
	wp.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionTrue}}
	wp.Status.Containers = []v1alpha1.ContainerStatus{{Name: "c", Recommendations: []v1alpha1.Recommendation{
		{Resource: "cpu", Field: "request", Value: list("cpu", "10m")["cpu"]}, {Resource: "cpu", Field: "limit", Value: list("cpu", "105m")["cpu"]},
		{Resource: "memory", Field: "request", Value: list("memory", "16Mi")["memory"]}, {Resource: "memory", Field: "limit", Value: list("memory", "66Mi")["memory"]},
	}}}
	return wp
}

// idlePod is a pod that was resized an hour ago.
func idlePod(t corev1.PodTemplateSpec, profileName string, ref v1alpha1.PolicyReference, n, perNode int) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	pod.Namespace, pod.Name, pod.UID = "shop", fmt.Sprintf("web-%d", n), types.UID(fmt.Sprint(n))
	pod.Spec.NodeName = fmt.Sprintf("node-%d", n/perNode)
	hour := time.Now().Add(-time.Hour).UTC()
	r := plan.Record{At: hour, Since: hour, By: "a", State: plan.StateResized, Reason: plan.ReasonResized, Ready: true, Changes: []plan.RecordedChange{
		{Container: "c", Field: "cpu request", From: "5m", To: "10m"}, {Container: "c", Field: "memory limit", From: "60Mi", To: "64Mi"},
	}}
	pod.Annotations[v1alpha1.AnnotationPolicyRef], pod.Annotations[v1alpha1.AnnotationProfileRef] = profile.FormatRef(ref), profileName
	pod.Annotations[v1alpha1.AnnotationResize] = r.String()
	started := true
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true, Started: &started,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: pod.Spec.Containers[0].Resources.DeepCopy()}}
	return pod
}

// cpuTime is what this process has used; other work on the machine does not count.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
