package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// sick makes an installation with secrets in every place they may stand in, and something wrong everywhere.
func sick(t *testing.T) {
	t.Helper()
	c, _ := connect(t)
	const ns = "plimsoll-sick"
	labels := map[string]string{"app.kubernetes.io/name": "plimsoll", "app.kubernetes.io/component": "webhook"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "webhook", Image: "webhook:1", Args: []string{"--redis=redis://user:hunter2@redis:6379", "--token=hunter2"},
		Env: []corev1.EnvVar{{Name: "PLAIN", Value: "hunter2"}},
	}}}}
	policy := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "sick"}}
	agent := &v1alpha1.AgentStatus{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "node-1"}, Spec: v1alpha1.AgentStatusSpec{NodeName: "node-1"}}
	config := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	event := func(name, kind, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: corev1.EventTypeWarning, Reason: "Because", Message: message,
			InvolvedObject: corev1.ObjectReference{Kind: kind, APIVersion: "v1", Namespace: "default", Name: "x"},
		}
	}
	ours := event("ours", "ClusterResourcePolicy", "could not reach rediss://:hunter2@redis")
	ours.InvolvedObject.APIVersion, ours.InvolvedObject.Namespace, ours.Namespace = v1alpha1.GroupVersion.String(), "", "default"
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "webhook-certs", Labels: labels}, StringData: map[string]string{"tls.key": "hunter2"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "webhook", Labels: labels},
			Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "webhook-1", Labels: labels, Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: `{"hunter2":true}`, "note": "Authorization: Bearer hunter2hunter2",
		}}, Spec: template.Spec},
		policy, agent, config, ours, event("theirs", "Pod", "somebody else's"),
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Delete(t.Context(), o) })
	}
	condition := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	condition.Reason, condition.Message = "NotCompiled", "2/5 replicas unhealthy: a: password=hunter2"
	policy.Status.Conditions = []metav1.Condition{condition}
	agent.Status = v1alpha1.AgentStatusStatus{Conditions: policy.Status.Conditions, LastError: "-----BEGIN KEY-----\nhunter2\n-----END KEY-----"}
	config.Status.Agents = &v1alpha1.AgentsSummary{Expected: 2, Reporting: 1, Worst: []v1alpha1.UnhealthyAgent{{Node: "node-1", Reason: "RedisAway", Message: "away"}}}
	for _, o := range []client.Object{policy, agent, config} {
		if err := c.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDiagnose(t *testing.T) {
	sick(t)
	file := filepath.Join(t.TempDir(), "bundle.yaml")
	said, err := run(t, "diagnose", "-o", file)
	if err != nil || !strings.Contains(said, file) {
		t.Fatalf("%q, %v", said, err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if i := strings.Index(text, "hunter2"); i >= 0 {
		t.Errorf("a secret is left: %.200s", text[max(0, i-100):])
	}
	for _, not := range []string{"managedFields", "last-applied", "kind: Secret", "somebody else's"} {
		if strings.Contains(text, not) {
			t.Errorf("the bundle holds %q", not)
		}
	}
	kinds := map[string]int{}
	var first struct{ Problems, Namespaces []string }
	for i, document := range strings.Split(text, "\n---\n") {
		if i == 0 {
			if err := yaml.Unmarshal([]byte(document), &first); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var o struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(document), &o); err != nil || o.APIVersion == "" {
			t.Fatalf("%v:\n%s", err, document)
		}
		kinds[o.Kind]++
	}
	for _, kind := range []string{"PlimsollConfig", "ClusterResourcePolicy", "AgentStatus", "Deployment", "Pod", "Event"} {
		if kinds[kind] != 1 {
			t.Errorf("%d objects of kind %s", kinds[kind], kind)
		}
	}
	problems := strings.Join(first.Problems, "\n")
	for _, want := range []string{
		"2 agents expected, 1 report, 0 are healthy", "agent on node-1: RedisAway: away",
		"ClusterResourcePolicy sick is not ready: NotCompiled: 2/5 replicas unhealthy: a: password=(removed)",
		"plimsoll-sick/webhook has 0 of 1 pods ready",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("the problems lack %q:\n%s", want, problems)
		}
	}
	if _, err := run(t, "diagnose", "-o", file); err == nil {
		t.Error("a file was overwritten")
	}
	if out, err := run(t, "diagnose"); err != nil || !strings.Contains(out, "problems:") {
		t.Errorf("without a file: %v\n%.300s", err, out)
	}
}

// What one may not read is said, and the rest is there.
func TestDiagnoseWithFewRights(t *testing.T) {
	poor := api.KubeconfigFor(api.User("poor"))
	out, err := run(t, "diagnose", "--kubeconfig", poor)
	if err != nil || !strings.Contains(out, "reading AgentStatus failed") || !strings.Contains(out, "forbidden") {
		t.Errorf("%v\n%s", err, out)
	}
}
