package recommend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/test/env"
	"plimsoll.dev/webhook/controller/recommend"
)

func (b *bench) want(what, got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestADayOfMeasurementsIsSufficient(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "True Measuring")
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "True EnoughHistory")
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "230m")
	b.want("memory limit", b.value(corev1.ResourceMemory, v1alpha1.FieldLimit), "345Mi")
	s := b.get().Status
	b.want("state", string(s.State), string(v1alpha1.ProfileSufficient))
	b.want("cpu", s.CPU, "230m/230m")
	b.want("memory", s.Memory, "345Mi/345Mi")
	if s.PolicyGeneration != 1 || s.UpdatedAt == nil {
		t.Errorf("policy generation %d, updated at %v", s.PolicyGeneration, s.UpdatedAt)
	}
	if len(s.Containers) != 1 || len(s.Containers[0].Usage) != 4 || s.Containers[0].Usage[0].Samples != 23*60+31 {
		t.Errorf("usage: %+v", s.Containers)
	}
}

func TestLearning(t *testing.T) {
	b := newBench(t, redis)
	// The profile is as old as the server says, wherever in its hour the test's own clock stands.
	created := b.get().CreationTimestamp.Time
	b.options.Now = func() time.Time { return created.Add(time.Minute) }
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "Unknown AwaitingSamples")
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "False NoSamples")
	b.want("state", string(b.get().Status.State), string(v1alpha1.ProfileLearning))
	b.controller.Now = func() time.Time { return created.Add(11 * time.Minute) }
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "False NoNewSamples")
	b.controller.Now = func() time.Time { return now }
	b.measure("app", 6, 0.2, 300*mi)
	b.reconcile()
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "False NotEnoughTime")
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "230m")
}

func TestC82NothingIsWrittenWhenNothingMatters(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 30, 0.2, 300*mi)
	b.reconcile()
	before := b.get().ResourceVersion
	// A simulated hour: the clock goes on, closed hours are folded, use differs within the noise.
	for minute := range 60 {
		b.controller.Now = func() time.Time { return now.Add(time.Duration(minute) * time.Second) }
		b.measure("app", 1, 0.2+0.00002*float64(minute), 300*mi+float64(minute))
		b.reconcile()
	}
	if after := b.get().ResourceVersion; after != before {
		t.Errorf("the status was written: %+v", b.get().Status)
	}
	b.measure("app", 6, 0.4, 300*mi)
	b.reconcile()
	if after := b.get().ResourceVersion; after == before {
		t.Error("doubled use was not written")
	}
}

func TestC10AHeadroomEditIsUsedAtOnce(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.reconcile()
	b.edit(func(s *v1alpha1.ResourcePolicySpec) { s.Resources[0].Headroom = "2" })
	if r := b.reconcile(); r.RequeueAfter > time.Second {
		t.Errorf("the index is behind, looked at again only after %v", r.RequeueAfter)
	}
	b.index()
	b.reconcile()
	b.want("cpu limit", b.value(corev1.ResourceCPU, v1alpha1.FieldLimit), "230m")
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "230m")
	if g := b.get().Status.PolicyGeneration; g != 2 {
		t.Errorf("policy generation %d, want 2", g)
	}
	b.edit(func(s *v1alpha1.ResourcePolicySpec) { s.Resources[1].Headroom = "2" })
	b.index()
	b.reconcile()
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "400m")
}

func TestC42AKillWithoutSamplesRaisesMemory(t *testing.T) {
	b := newBench(t, redis)
	b.reconcile()
	b.kill("app", now.Add(-time.Second), 64*mi)
	b.reconcile()
	b.want("memory limit", b.value(corev1.ResourceMemory, v1alpha1.FieldLimit), "164Mi")
	b.want("memory request", b.value(corev1.ResourceMemory, v1alpha1.FieldRequest), "164Mi")
}

func TestC43KillsCountWheneverAndOfWhomever(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.options.Pods = podList{} // the killed pod was deleted
	b.kill("app", now.Add(-30*time.Second), 1024*mi)
	b.reconcile()
	b.want("memory limit", b.value(corev1.ResourceMemory, v1alpha1.FieldLimit), "1229Mi")
	b.kill("app", now.Add(-time.Minute), 2048*mi) // older, arrives later
	b.reconcile()
	b.want("memory limit", b.value(corev1.ResourceMemory, v1alpha1.FieldLimit), "2458Mi")
}

func TestC12ARenamedContainerLeavesReadiness(t *testing.T) {
	b := newBench(t, redis)
	b.measure("old", 2, 0.2, 300*mi)
	b.measure("new", 24, 0.2, 300*mi)
	b.options.Pods = podList{pod("a", "new")}
	b.reconcile()
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "True EnoughHistory")
}

// An init container of one pod has the name of another's app container: the app is recommended for all the same.
func TestC13AnInitContainerOfTheSameNameExcludesNothing(t *testing.T) {
	b := newBench(t, redis)
	b.measure("worker", 24, 0.2, 300*mi)
	b.measure("app", 24, 0.2, 300*mi)
	other := pod("b", "app")
	other.Spec.InitContainers = []corev1.Container{{Name: "worker", Image: "x"}}
	b.options.Pods = podList{pod("a", "worker"), other}
	b.reconcile()
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "True EnoughHistory")
	var got []string
	for _, c := range b.get().Status.Containers {
		if len(c.Recommendations) > 0 {
			got = append(got, c.Name)
		}
	}
	if diff := cmp.Diff([]string{"app", "worker"}, got); diff != "" {
		t.Errorf("recommended for (-want +got):\n%s", diff)
	}
}

func TestNamesNoContainerCanHaveAreLeftOut(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.measure("Not a container", 24, 0.2, 300*mi)
	b.kill("neither/this", now, 64*mi)
	b.reconcile()
	if s := b.get().Status; len(s.Containers) != 1 || s.Containers[0].Name != "app" {
		t.Errorf("got %+v", s.Containers)
	}
}

func TestMoreContainersThanAStatusHolds(t *testing.T) {
	b := newBench(t, redis)
	for i := range 70 {
		b.measure(fmt.Sprintf("run-%02d", i), 1, 0.2, 300*mi)
	}
	b.options.Pods = podList{pod("a", "run-69")}
	b.reconcile()
	s := b.get().Status
	if len(s.Containers) != 64 || s.Containers[63].Name != "run-69" {
		t.Errorf("%d containers, the running one is left out: %+v", len(s.Containers), s.Containers)
	}
}

func TestNoPolicy(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	if err := b.client.Delete(t.Context(), b.policy); err != nil {
		t.Fatal(err)
	}
	b.policies.Set(policy.NewIndex(nil, nil))
	b.reconcile()
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "False PolicyNotFound")
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "")
}

func TestSilentAgents(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.options.Now = func() time.Time { return now.Add(20 * time.Minute) }
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "False NoNewSamples")
	b.want("state", string(b.get().Status.State), string(v1alpha1.ProfileStale))

	pending := pod("b", "app")
	pending.Status.Phase = corev1.PodPending
	b.controller.Pods = podList{pending}
	b.reconcile()
	b.want("Ready with a pod that found no node", b.condition(v1alpha1.ConditionReady), "True NoPods")

	b.controller.Pods = podList{} // a CronJob between two runs
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "True NoPods")
}

func TestOnlyTheOwnerWrites(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	b.options.Owns = func(string) bool { return false }
	if r := b.reconcile(); r.RequeueAfter < 30*time.Second {
		t.Errorf("looked at again after %v; ownership may change later", r.RequeueAfter)
	}
	if s := b.get().Status; len(s.Conditions) != 0 {
		t.Errorf("a replica that does not own the profile wrote %+v", s)
	}
}

func TestRedisAwayKeepsTheValuesAndSaysStale(t *testing.T) {
	server := env.StartRedis(t, env.RedisOptions{Persist: true})
	b := newBench(t, server)
	b.measure("app", 24, 0.2, 300*mi)
	b.reconcile()
	server.Stop()
	if r := b.reconcile(); r.RequeueAfter > 30*time.Second {
		t.Errorf("a failed read is repeated only after %v", r.RequeueAfter)
	}
	b.want("Ready after one failed read", b.condition(v1alpha1.ConditionReady), "True Measuring")
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "False RedisUnavailable")
	b.want("state", string(b.get().Status.State), string(v1alpha1.ProfileStale))
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "230m")
	before := b.get().ResourceVersion
	b.reconcile()
	b.want("resourceVersion, nothing new to say", b.get().ResourceVersion, before)
	server.Start()
	b.reconcile()
	b.want("Ready", b.condition(v1alpha1.ConditionReady), "True Measuring")
	b.want("state", string(b.get().Status.State), string(v1alpha1.ProfileSufficient))
}

func TestC85RedisRestartsEmpty(t *testing.T) {
	server := env.StartRedis(t, env.RedisOptions{})
	b := newBench(t, server)
	b.measure("app", 24, 0.2, 300*mi)
	b.reconcile()
	server.RestartEmpty()
	b.reconcile()
	b.reconcile()
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "False NoSamples")
	b.measure("app", 24, 0.3, 300*mi)
	b.reconcile()
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "345m")
}

func TestAnotherWritersConditionIsKept(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	live, err := client.NewWithWatch(api.Config, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	raced := false
	b.options.Client = interceptor.NewClient(live, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if !raced {
				raced = true
				other := b.get()
				other.Status.ActivePods = 3
				other.Status.Conditions = []metav1.Condition{{
					Type: "Resizing", Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
				}}
				if err := b.client.Status().Update(ctx, other); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		},
	})
	if r := b.reconcile(); r.RequeueAfter > time.Second {
		t.Errorf("after a conflict looked at again only after %v", r.RequeueAfter)
	}
	b.reconcile()
	b.want("Resizing", b.condition("Resizing"), "True Test")
	b.want("Sufficient", b.condition(v1alpha1.ConditionSufficient), "True EnoughHistory")
	if n := b.get().Status.ActivePods; n != 3 {
		t.Errorf("activePods %d, want 3", n)
	}
}

func TestNoLargerThanTheLargestNode(t *testing.T) {
	b := newBench(t, redis)
	b.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "small"}})
	node := &corev1.Node{}
	if err := b.client.Get(t.Context(), client.ObjectKey{Name: "small"}, node); err != nil {
		t.Fatal(err)
	}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("200Mi")}
	if err := b.client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.measure("app", 24, 0.2, 300*mi)
	b.reconcile()
	b.want("memory limit", b.value(corev1.ResourceMemory, v1alpha1.FieldLimit), "200Mi")
	b.want("cpu request", b.value(corev1.ResourceCPU, v1alpha1.FieldRequest), "230m")
}

func TestExplain(t *testing.T) {
	b := newBench(t, redis)
	b.measure("app", 24, 0.2, 300*mi)
	e, err := recommend.New(b.options).Explain(t.Context(), b.profile)
	if err != nil {
		t.Fatal(err)
	}
	if e.PolicyRef.Name != b.profile || e.PolicyGeneration != 1 || !e.Sufficient {
		t.Errorf("got %+v", e)
	}
	if n := len(e.Containers[0].Recommendations); n != 4 {
		t.Fatalf("%d recommendations, want 4", n)
	}
	for _, r := range e.Containers[0].Recommendations {
		if len(r.Steps) < 3 {
			t.Errorf("%s %s has %d steps", r.Resource, r.Field, len(r.Steps))
		}
	}
	if s := b.get().Status; len(s.Conditions) != 0 {
		t.Error("explaining wrote the status")
	}
	if _, err := recommend.New(b.options).Explain(t.Context(), "nobody"); err == nil {
		t.Error("no error for a profile that does not exist")
	}
}
