package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/cli"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/test/env"
)

var api *env.API

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{}) })
}

// run runs kubectl plimsoll and returns what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	c := cli.New()
	c.SetOut(&out)
	c.SetArgs(append([]string{"--kubeconfig", api.Kubeconfig}, args...))
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func connect(t *testing.T) (client.Client, *runtime.Scheme) {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(api.Config, client.Options{Scheme: s})
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// status is what the recommend controller writes for a container at its memory limit's kill.
func status(t *testing.T) v1alpha1.WorkloadProfileStatus {
	t.Helper()
	settings, err := policy.SettingsOf(v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{
		{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldRequest},
		{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldLimit},
	}})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	c := recommend.Container{Name: "app", Running: true, CoveredHours: 24, CoveredMinutes: 1440}
	c.Kills = []recommend.Kill{{Time: now.Time, Limit: 512 << 20}}
	for r, v := range map[sample.Resource]float64{sample.CPU: 0.2, sample.Memory: 300 << 20} {
		c.Series[r] = &sketch.Sketch{}
		for range 500 {
			c.Series[r].Add(v, 1000)
		}
	}
	r := recommend.Compute(recommend.Input{Settings: settings, Containers: []recommend.Container{c}, Now: now.Time})
	return v1alpha1.WorkloadProfileStatus{
		State: v1alpha1.ProfileSufficient, PolicyGeneration: 7, ActivePods: 2, Containers: r.Statuses(),
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionSufficient, Status: metav1.ConditionTrue, Reason: string(r.Reason), Message: r.Message, LastTransitionTime: now,
		}},
	}
}

// setUp creates a Deployment's pod and a CronJob's, both of one profile, and a pod without a profile.
func setUp(t *testing.T) {
	t.Helper()
	c, scheme := connect(t)
	create := func(o client.Object, owner client.Object) {
		t.Helper()
		o.SetNamespace("default")
		if owner != nil {
			if err := controllerutil.SetControllerReference(owner, o, scheme); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(t.Context(), o) })
	}
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}, RestartPolicy: corev1.RestartPolicyAlways},
	}
	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	create(deployment, nil)
	replicas := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}, Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	create(replicas, deployment)
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly"}, Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}}}
	create(cron, nil)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "nightly-1"}, Spec: batchv1.JobSpec{Template: once}}
	create(job, cron)
	for name, owner := range map[string]client.Object{"web-1-a": replicas, "nightly-1-a": job, "bare": nil} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: template.Spec}
		if owner != nil {
			pod.Annotations = map[string]string{v1alpha1.AnnotationProfileRef: "web--fleet"}
		}
		create(pod, owner)
	}
	p := &v1alpha1.WorkloadProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "web--fleet"},
		Spec: v1alpha1.WorkloadProfileSpec{Identity: v1alpha1.Identity{
			PolicyRef: &v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "fleet"}, MeasurementHash: "0123456789abcdef",
		}},
	}
	create(p, nil)
	p.Status = status(t)
	if err := c.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

const derivation = `
Container app
  OOM kills remembered: 1
  USE     AVERAGE  P50    P95    P99    MAX    SAMPLES  COVERED
  cpu     200m     200m   200m   200m   200m   500      1440 min
  memory  300Mi    300Mi  300Mi  300Mi  300Mi  500      1440 min
  cpu request 230m (Estimated)
      p95 of 500 samples covering 24 h  = 200m
      × headroom 1.15                   = 230m
  memory limit 615Mi (RaisedByOOM; use was above it 0% of the time)
      peak of 500 samples covering 24 h                                        = 300Mi
      × headroom 1.15                                                          = 345Mi
      at least what the OOM kill 0 s ago at limit 512Mi asks for (1 remembered)  = 614.4Mi
      rounded to 1Mi                                                           = 615Mi
`

func TestExplain(t *testing.T) {
	setUp(t)
	for _, arg := range []string{
		"web-1-a", "pod/web-1-a", "web", "deploy/web", "Deployment/web", "rs/web-1", "cronjob/nightly", "cj/nightly", "job/nightly-1",
		"wp/web--fleet",
	} {
		t.Run(arg, func(t *testing.T) {
			out, err := run(t, "explain", arg)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"Profile   web--fleet, Sufficient, 2 pods\n", "Policy    ClusterResourcePolicy/fleet, generation 7\n",
				"Sufficient True (EnoughHistory): ",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing in:\n%s", want, out)
				}
			}
			if strings.Join(strings.Fields(out[strings.Index(out, "\nContainer"):]), " ") != strings.Join(strings.Fields(derivation), " ") {
				t.Errorf("got:\n%s\nwant:\n%s", out, derivation)
			}
		})
	}
	t.Run("json", func(t *testing.T) {
		out, err := run(t, "explain", "web", "-o", "json")
		if err != nil || !json.Valid([]byte(out)) {
			t.Errorf("%v: %s", err, out)
		}
	})
	for arg, want := range map[string]string{
		"bare":                "bare has no profile: set the label plimsoll.dev/mode=measure",
		"nobody":              `no pod in namespace default is, or belongs to, "nobody"`,
		"statefulset/web":     `no pod in namespace default is, or belongs to, "statefulset/web"`,
		"deployment/":         `"deployment/" names nothing`,
		"workloadprofile/abc": "profile abc does not exist (yet)",
	} {
		t.Run(arg, func(t *testing.T) {
			if _, err := run(t, "explain", arg); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	if _, err := run(t, "explain", "web", "-o", "xml"); err == nil {
		t.Error("no error for an unknown output")
	}
}
