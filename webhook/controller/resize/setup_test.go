package resize_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/profile"
	plan "plimsoll.dev/pkg/resize"
	"plimsoll.dev/test/env"
)

var api *env.API

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	if os.Getenv(asReplica) != "" {
		replicaMain()
		return
	}
	env.Main(m, func(t env.TB) {
		api = env.StartAPI(t, env.Options{ControllerManager: true, Scheduler: true, Kubelets: 2, Node: env.Node{MaxPods: 200}})
	})
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}

// bench is a workload in a namespace of its own, under a policy and with a
// profile of its own.
type bench struct {
	t        testing.TB
	client   client.Client
	ns       string
	profile  string
	policies *policy.Holder
	spec     v1alpha1.ResourcePolicySpec
	live     *liveUse
}

func newBench(t testing.TB) *bench {
	t.Helper()
	c, err := client.New(api.Config, client.Options{Scheme: scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "resize-"}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, client: c, ns: ns.Name, profile: "web--" + ns.Name, policies: &policy.Holder{}, live: &liveUse{}}
	b.spec = v1alpha1.ResourcePolicySpec{
		Resources: []v1alpha1.ResourceRule{
			{Resource: "cpu", Field: v1alpha1.FieldRequest}, {Resource: "cpu", Field: v1alpha1.FieldLimit},
			{Resource: "memory", Field: v1alpha1.FieldRequest}, {Resource: "memory", Field: v1alpha1.FieldLimit},
		},
		Resize: &v1alpha1.Resize{
			MaxChangePerCycle: "100%", Interval: &metav1.Duration{Duration: 5 * time.Second},
			Rollback: &v1alpha1.Rollback{Watch: &metav1.Duration{Duration: 10 * time.Second}},
		},
	}
	b.govern(func(*v1alpha1.ResourcePolicySpec) {})
	wp := &v1alpha1.WorkloadProfile{ObjectMeta: metav1.ObjectMeta{Name: b.profile}}
	wp.Spec.Identity = v1alpha1.Identity{
		Tuple:     map[string]string{"app.kubernetes.io/name": "web"},
		PolicyRef: &v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: b.ns, Name: "web"}, MeasurementHash: "0123456789abcdef",
	}
	if err := c.Create(t.Context(), wp); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		_ = c.Delete(ctx, wp)
		_ = c.Delete(ctx, ns)
	})
	return b
}

// govern changes the policy.
func (b *bench) govern(change func(*v1alpha1.ResourcePolicySpec)) {
	change(&b.spec)
	rp := v1alpha1.ResourcePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "web"}, Spec: b.spec}
	b.policies.Set(policy.NewIndex([]v1alpha1.ResourcePolicy{rp}, nil))
}

// recommend writes pairs like "cpu request", "800m" for container c into the
// profile's status.
func (b *bench) recommend(pairs ...string) {
	b.t.Helper()
	wp := b.profileObject()
	c := v1alpha1.ContainerStatus{Name: "c"}
	for i := 0; i < len(pairs); i += 2 {
		res, field, _ := strings.Cut(pairs[i], " ")
		c.Recommendations = append(c.Recommendations, v1alpha1.Recommendation{
			Resource: corev1.ResourceName(res), Field: v1alpha1.ResourceField(field), Value: resource.MustParse(pairs[i+1]),
		})
	}
	at := metav1.Now()
	wp.Status.State, wp.Status.Containers, wp.Status.UpdatedAt = v1alpha1.ProfileSufficient, []v1alpha1.ContainerStatus{c}, &at
	wp.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionTrue, Reason: "EnoughHistory", LastTransitionTime: metav1.Now()}}
	if err := b.client.Status().Update(b.t.Context(), wp); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) profileObject() *v1alpha1.WorkloadProfile {
	b.t.Helper()
	wp := &v1alpha1.WorkloadProfile{}
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Name: b.profile}, wp); err != nil {
		b.t.Fatal(err)
	}
	return wp
}

// template is the pod of the workload, enrolled for resizing.
func (b *bench) template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"app.kubernetes.io/name": "web", v1alpha1.LabelMode: string(v1alpha1.ModeResize)},
			Annotations: map[string]string{
				v1alpha1.AnnotationPolicyRef:  profile.FormatRef(v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: b.ns, Name: "web"}),
				v1alpha1.AnnotationProfileRef: b.profile,
			},
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "app", Resources: corev1.ResourceRequirements{
				Requests: list("cpu", "10m", "memory", "16Mi"), Limits: list("cpu", "100m", "memory", "64Mi"),
			}}},
		},
	}
}

func list(text ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(text); i += 2 {
		l[corev1.ResourceName(text[i])] = resource.MustParse(text[i+1])
	}
	return l
}

// deploy starts n pods and waits until they run.
func (b *bench) deploy(n int32, change func(*corev1.PodTemplateSpec)) {
	b.t.Helper()
	template := b.template()
	if change != nil {
		change(&template)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: b.ns, Name: "web"}}
	d.Spec = appsv1.DeploymentSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": "web"}}, Template: template}
	if err := b.client.Create(b.t.Context(), d); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the pods run", 60*time.Second, func() error {
		pods := b.pods()
		if len(pods) != int(n) {
			return fmt.Errorf("%d pods", len(pods))
		}
		for i := range pods {
			if !ready(&pods[i]) || plan.Observe(&pods[i]).InFlight() {
				return fmt.Errorf("pod %s is %s", pods[i].Name, pods[i].Status.Phase)
			}
		}
		return nil
	})
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (b *bench) pods() []corev1.Pod {
	b.t.Helper()
	var l corev1.PodList
	if err := b.client.List(b.t.Context(), &l, client.InNamespace(b.ns)); err != nil {
		b.t.Fatal(err)
	}
	return l.Items
}

func record(t testing.TB, p *corev1.Pod) plan.Record {
	t.Helper()
	r, err := plan.ParseRecord(p.Annotations[v1alpha1.AnnotationResize])
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// values renders what the kubelet says container c has, as "cpu 10m/100m memory 16Mi/64Mi".
func values(p *corev1.Pod) string {
	if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].Resources == nil {
		return ""
	}
	return render(*p.Status.ContainerStatuses[0].Resources)
}

func render(r corev1.ResourceRequirements) string {
	return fmt.Sprintf("cpu %s/%s memory %s/%s", r.Requests.Cpu(), r.Limits.Cpu(), r.Requests.Memory(), r.Limits.Memory())
}

func (b *bench) eventually(what string, within time.Duration, check func() error) {
	b.t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-b.t.Context().Done():
			b.t.Fatalf("%s: %v", what, b.t.Context().Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// every checks all pods of the workload until they pass.
func (b *bench) every(what string, within time.Duration, check func(*corev1.Pod) error) {
	b.t.Helper()
	b.eventually(what, within, func() error {
		pods := b.pods()
		for i := range pods {
			if err := check(&pods[i]); err != nil {
				return fmt.Errorf("pod %s (%s): %w; record %s", pods[i].Name, values(&pods[i]), err, pods[i].Annotations[v1alpha1.AnnotationResize])
			}
		}
		return nil
	})
}

func has(want string) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		if got := values(p); got != want {
			return fmt.Errorf("has %s, want %s", got, want)
		}
		return nil
	}
}

func in(t testing.TB, state plan.State) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		if r := record(t, p); r.State != state {
			return fmt.Errorf("is %q, want %q", r.State, state)
		}
		return nil
	}
}
