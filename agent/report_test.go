package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/build"
	"plimsoll.dev/test/env"
	"plimsoll.dev/test/env/controlplane"
)

// The chart's roles grant what an agent does: it becomes ready, keeps its
// AgentStatus, and nothing is forbidden.
func TestChartGrantsWhatAnAgentDoes(t *testing.T) {
	const namespace = "granted-system"
	c, node := kube(t), build.Node("node-granted").Obj()
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, node} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = c.Delete(context.WithoutCancel(t.Context()), node) })
	root, err := controlplane.Root()
	if err != nil {
		t.Fatal(err)
	}
	render := exec.CommandContext(t.Context(), "go", "tool", "-modfile=test/tools/go.mod", "helm", "template", "granted", "charts/plimsoll",
		"--namespace", namespace, "--show-only", "templates/rbac.yaml")
	render.Dir = root
	roles, err := render.Output()
	if err != nil {
		t.Fatalf("rendering the chart's roles: %v", err)
	}
	if _, err := api.Kubectl(string(roles), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}

	redis := env.StartRedis(t, env.RedisOptions{})
	account := api.KubeconfigFor(api.ServiceAccount(namespace, "granted-agent"))
	a := startAgent(t, "redis://"+redis.Addr(), "", node.Name, "--kubeconfig", account, "--namespace", namespace)
	eventually(t, 60*time.Second, func() string {
		var s v1alpha1.AgentStatus
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: node.Name}, &s); err != nil {
			return err.Error()
		}
		if !meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.ConditionReady) || s.Status.KernelVersion == "" || s.Status.CgroupMode == "" || s.Status.LastFlush == nil {
			return fmt.Sprintf("it says %+v", s.Status)
		}
		return ""
	})
	if strings.Contains(a.logged(), "forbidden") {
		t.Errorf("something was forbidden:\n%s", a.logged())
	}
}
