package resize_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// byHand makes n running pods on a node that has no kubelet: the test says
// what a kubelet would. The pods are created by the given field manager.
func (b *bench) byHand(n int, creator string) {
	b.t.Helper()
	ctx := b.t.Context()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "hand-" + b.ns}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if err := b.client.Create(ctx, node); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = b.client.Delete(context.Background(), node) })
	bare := node.DeepCopy()
	node.Status.Allocatable = list("cpu", "64", "memory", "256Gi", "pods", "1000")
	node.Status.Capacity = node.Status.Allocatable
	if err := b.client.Status().Patch(ctx, node, client.MergeFrom(bare)); err != nil {
		b.t.Fatal(err)
	}
	template := b.template()
	for i := range n {
		pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
		pod.Namespace, pod.Name, pod.Spec.NodeName = b.ns, fmt.Sprintf("web-%d", i), node.Name
		if err := b.client.Create(ctx, pod, client.FieldOwner(creator)); err != nil {
			b.t.Fatal(err)
		}
		b.report(pod, nil)
	}
}

// report is a kubelet's word: the pod runs with what its spec says, or has a
// resize condition.
func (b *bench) report(pod *corev1.Pod, condition *corev1.PodCondition) {
	b.t.Helper()
	started, now := true, metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	if condition != nil {
		condition.Status, condition.LastTransitionTime, condition.ObservedGeneration = corev1.ConditionTrue, now, pod.Generation
		pod.Status.Conditions = append(pod.Status.Conditions, *condition)
	} else {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "c", Ready: true, Started: &started, Resources: pod.Spec.Containers[0].Resources.DeepCopy(),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}}
	}
	if err := b.client.Status().Update(b.t.Context(), pod); err != nil {
		b.t.Fatal(err)
	}
}

// actuate plays the kubelet for every pod of the bench until the test ends.
func (b *bench) actuate() {
	w, err := client.NewWithWatch(api.Config, client.Options{Scheme: scheme()})
	if err != nil {
		b.t.Fatal(err)
	}
	events, err := w.Watch(b.t.Context(), &corev1.PodList{}, client.InNamespace(b.ns))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(events.Stop)
	go func() {
		for e := range events.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok || len(pod.Status.ContainerStatuses) == 0 || values(pod) == render(pod.Spec.Containers[0].Resources) {
				continue
			}
			pod.Status.ContainerStatuses[0].Resources = pod.Spec.Containers[0].Resources.DeepCopy()
			_ = w.Status().Update(b.t.Context(), pod) // a newer event follows a conflict
		}
	}()
}

// changed counts how often each pod's spec was changed since it was made.
func (b *bench) changed() map[string]int64 {
	out := map[string]int64{}
	for _, p := range b.pods() {
		out[p.Name] = p.Generation - 1
	}
	return out
}

func (b *bench) events(reason string) []string {
	b.t.Helper()
	var l corev1.EventList
	if err := b.client.List(b.t.Context(), &l, client.InNamespace(b.ns)); err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, e := range l.Items {
		if e.Reason == reason && e.ReportingController == "plimsoll" {
			out = append(out, e.InvolvedObject.Name+": "+e.Message)
		}
	}
	return out
}

func (b *bench) suspend(on bool) {
	b.t.Helper()
	c := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	c.Spec.Suspended = &on
	ctx := context.Background()
	err := b.client.Patch(ctx, c, client.Merge)
	if apierrors.IsNotFound(err) {
		c = &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}, Spec: v1alpha1.PlimsollConfigSpec{Suspended: &on}}
		err = b.client.Create(ctx, c)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
