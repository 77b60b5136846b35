package build_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/test/build"
)

func TestObjectsAreCopies(t *testing.T) {
	b := build.Pod("shop", "web-0").Label("app", "web").
		Container(build.Container("app").Request("cpu", "100m").Limit("memory", "1Gi"))
	first := b.Obj()
	b.Label("app", "other").Container(build.Container("sidecar"))
	second := b.Obj()
	if first.Labels["app"] != "web" || len(first.Spec.Containers) != 1 {
		t.Errorf("the first object changed with its builder: %+v", first)
	}
	if second.Labels["app"] != "other" || len(second.Spec.Containers) != 2 {
		t.Errorf("the second object lacks what was added: %+v", second)
	}
}

func TestRunningPod(t *testing.T) {
	p := build.Pod("shop", "web-0").
		InitContainer(build.Container("proxy").Sidecar()).
		Container(build.Container("app").Request("cpu", "100m").Limit("memory", "1Gi")).
		Running().Obj()
	if p.Status.Phase != corev1.PodRunning || len(p.Status.InitContainerStatuses) != 1 {
		t.Errorf("status is %+v", p.Status)
	}
	if diff := cmp.Diff(&p.Spec.Containers[0].Resources, p.Status.ContainerStatuses[0].Resources); diff != "" {
		t.Errorf("running with other resources than asked for (-spec +status):\n%s", diff)
	}
}

func TestDeploymentSelectsItsPods(t *testing.T) {
	d := build.Deployment("shop", "web", build.Pod("", "").Label("app", "web").Container(build.Container("app"))).Replicas(3).Obj()
	if diff := cmp.Diff(d.Spec.Selector.MatchLabels, d.Spec.Template.Labels); diff != "" || len(d.Spec.Template.Labels) == 0 {
		t.Errorf("selector and template differ:\n%s", diff)
	}
	if *d.Spec.Replicas != 3 {
		t.Errorf("%d replicas, want 3", *d.Spec.Replicas)
	}
}
