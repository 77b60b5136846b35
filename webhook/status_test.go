package main_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/admission/admissiontest"
)

// statusesWritten waits until a replica has reported about policy "all", the
// report stands in the policy's status, and an agent's in the configuration's.
func statusesWritten(t *testing.T, replica string) {
	t.Helper()
	c := world.client
	config := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	agent := &v1alpha1.AgentStatus{ObjectMeta: metav1.ObjectMeta{Namespace: admissiontest.Namespace, Name: "node-1"}, Spec: v1alpha1.AgentStatusSpec{NodeName: "node-1"}}
	for _, o := range []client.Object{config, agent} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(context.WithoutCancel(t.Context()), o) })
	}
	admissiontest.Wait(t, "the statuses of policy and configuration", func() error {
		p := &v1alpha1.ClusterResourcePolicy{}
		if err := c.Get(t.Context(), client.ObjectKey{Name: "all"}, p); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) || len(p.Status.ByPod) != 1 || p.Status.ByPod[0].Pod != replica {
			return fmt.Errorf("the policy's status is %+v", p.Status)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(config), config); err != nil {
			return err
		}
		if a := config.Status.Agents; a == nil || len(a.Worst) != 1 || a.Worst[0].Node != "node-1" {
			return fmt.Errorf("the agents are %+v", a)
		}
		return nil
	})
}
