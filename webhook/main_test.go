package main_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/admission/admissiontest"
)

// Mistakes on the command line end the program with a message that names what
// to change.
func TestMistakesSayWhatToDo(t *testing.T) {
	dir, _ := certDir(t)
	redis := "redis://" + world.redis.Addr()
	tests := map[string]struct {
		flags []string
		want  []string
	}{
		"no redis":              {[]string{"--redis="}, []string{"--redis is not set", "PLIMSOLL_REDIS_URL"}},
		"malformed redis URL":   {[]string{"--redis=localhost:6379", "--cert-dir", dir}, []string{"--redis", "redis://host:6379"}},
		"unknown redis scheme":  {[]string{"--redis=http://localhost", "--cert-dir", dir}, []string{"--redis", "use redis or rediss"}},
		"missing certificate":   {[]string{"--redis", redis, "--cert-dir", t.TempDir()}, []string{"tls.crt", "--cert-dir", "--cert-mode=self-signed"}},
		"files without folder":  {[]string{"--redis", redis, "--cert-mode=files"}, []string{"--cert-dir"}},
		"unknown cert mode":     {[]string{"--redis", redis, "--cert-mode=magic"}, []string{"--cert-mode=magic", "self-signed"}},
		"missing kubeconfig":    {[]string{"--redis", redis, "--cert-dir", dir, "--kubeconfig=/does/not/exist"}, []string{"--kubeconfig /does/not/exist"}},
		"port out of range":     {[]string{"--redis", redis, "--port=99999"}, []string{"--port=99999"}},
		"interval too short":    {[]string{"--redis", redis, "--recommend-interval=1ms"}, []string{"--recommend-interval=1ms", "1s"}},
		"unknown flag":          {[]string{"--reddis=x"}, []string{"unknown flag", "reddis"}},
		"an argument too many":  {[]string{"serve"}, []string{"serve"}},
		"log level unknown":     {[]string{"--log-level=loud"}, []string{"log-level", "loud"}},
		"replica name too long": {[]string{"--redis", redis, "--cert-dir", dir, "--replica", strings.Repeat("x", 200)}, []string{"replica name"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := start(t, tc.flags...)
			if err := p.ended(t); err == nil {
				t.Fatal("it ended without an error")
			}
			for _, want := range tc.want {
				if !strings.Contains(p.output(), want) {
					t.Errorf("the message is %q, want it to hold %q", p.output(), want)
				}
			}
			if strings.Contains(p.output(), "goroutine ") {
				t.Errorf("it crashed:\n%s", p.output())
			}
		})
	}
}

func TestHelpAndVersion(t *testing.T) {
	out, err := exec.Command(world.binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--replica", "--kubeconfig", "--redis", "--cert-dir", "--port", "--bind-address", "--metrics-addr", "--health-addr",
		"--namespace", "--cert-mode", "--recommend-interval", "--resync", "--version", "fails open"} {
		if !strings.Contains(string(out), flag) {
			t.Errorf("--help does not speak of %s", flag)
		}
	}
	if out, err := exec.Command(world.binary, "--version").Output(); err != nil || !strings.Contains(string(out), "webhook version") {
		t.Errorf("--version says %q, %v", out, err)
	}
}

// The whole program: a policy in the API, a pod created through it is stamped,
// a profile appears, a broken policy is refused, and SIGTERM ends it in order.
func TestPodIsStampedAndGetsAProfile(t *testing.T) {
	dir, ca := certDir(t)
	p := start(t, "--redis", "redis://"+world.redis.Addr(), "--cert-dir", dir)
	policyAll(t)
	p.ready(t)
	admissiontest.Render(t, "plimsoll", admissiontest.URL(fmt.Sprintf("https://127.0.0.1:%d", p.port), ca)...).Install(t, world.clients)
	n := 0
	var stamped *corev1.Pod
	admissiontest.Wait(t, "a stamped pod", func() error {
		n++
		got, err := create(t, pod(fmt.Sprintf("p%d", n), v1alpha1.LabelMode, "apply"))
		if err != nil {
			return err
		}
		if got.Annotations[v1alpha1.AnnotationPolicyRef] != "ClusterResourcePolicy/all" {
			return fmt.Errorf("annotations %v", got.Annotations)
		}
		stamped = got
		return nil
	})
	admissiontest.Wait(t, "its profile", func() error {
		wp := &v1alpha1.WorkloadProfile{}
		return world.client.Get(t.Context(), client.ObjectKey{Name: stamped.Annotations[v1alpha1.AnnotationProfileRef]}, wp)
	})
	broken := &v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: "broken"}}
	broken.Spec.Selector.Namespaces = &v1alpha1.NamespaceSelector{Include: []v1alpha1.Pattern{"/shop-(/"}}
	err := world.client.Create(t.Context(), broken)
	if err == nil || !strings.Contains(err.Error(), "spec.selector.namespaces.include[0]") {
		t.Errorf("a broken expression: %v", err)
	}
	if _, body := p.get(p.metrics + "/metrics"); !strings.Contains(body, `plimsoll_admission_requests_total{outcome="stamped",webhook="pods"}`) ||
		!strings.Contains(body, "plimsoll_redis_up 1") || !strings.Contains(body, `plimsoll_webhook_certificate_expiry_timestamp_seconds{certificate="serving"}`) {
		t.Errorf("metrics are missing:\n%.3000s", body)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); err != nil {
		t.Errorf("it ended with %v", err)
	}
	// C53: the last replica is gone.
	begin := time.Now()
	if _, err := create(t, pod("later", v1alpha1.LabelMode, "apply")); err != nil || time.Since(begin) > 3*time.Second {
		t.Errorf("a pod after the last replica went: %v after %s", err, time.Since(begin))
	}
}

// On SIGTERM a replica is not ready any more, but answers what is still sent,
// then ends in order.
func TestShutdownDrains(t *testing.T) {
	dir, ca := certDir(t)
	p := start(t, "--redis", "redis://"+world.redis.Addr(), "--cert-dir", dir, "--shutdown-delay", "3s")
	p.ready(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	review := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","kind":{"kind":"Node"},"object":{}}}`
	call := func() error {
		r, err := c.Post(fmt.Sprintf("https://127.0.0.1:%d/mutate-pods", p.port), "application/json", strings.NewReader(review))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", r.StatusCode)
		}
		return nil
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	admissiontest.Wait(t, "readiness to end", func() error {
		if code, _ := p.get(p.health + "/readyz"); code == http.StatusOK {
			return errors.New("still ready")
		}
		return nil
	})
	c.CloseIdleConnections() // as a new connection would arrive
	if err := call(); err != nil {
		t.Errorf("a call during the shutdown: %v", err)
	}
	if err := p.ended(t); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// An enrolled pod that was created while no replica ran is counted and said.
func TestUnseenPodsAreNoticed(t *testing.T) {
	dir, _ := certDir(t)
	policyAll(t)
	if _, err := create(t, pod("unseen", v1alpha1.LabelMode, "measure")); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--redis", "redis://"+world.redis.Addr(), "--cert-dir", dir)
	p.ready(t)
	admissiontest.Wait(t, "the count", func() error {
		if _, body := p.get(p.metrics + "/metrics"); !strings.Contains(body, "plimsoll_admission_unseen_pods_total 1") {
			return errors.New("not counted")
		}
		return nil
	})
	if n := strings.Count(p.output(), "admission never saw"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
}

// While everything is suspended admission stamps nothing, and nothing is missed.
func TestSuspendedPodsAreNotUnseen(t *testing.T) {
	dir, _ := certDir(t)
	policyAll(t)
	suspended := true
	config := &v1alpha1.PlimsollConfig{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName},
		Spec:       v1alpha1.PlimsollConfigSpec{Suspended: &suspended},
	}
	if err := world.client.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = world.client.Delete(context.Background(), config) })
	created, err := create(t, pod("suspended", v1alpha1.LabelMode, "measure"))
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "--redis", "redis://"+world.redis.Addr(), "--cert-dir", dir)
	p.ready(t)
	admissiontest.Wait(t, "the controller's stamp: measuring goes on", func() error {
		if err := world.client.Get(t.Context(), client.ObjectKeyFromObject(created), created); err != nil {
			return err
		}
		if created.Annotations[v1alpha1.AnnotationPolicyRef] == "" {
			return errors.New("not stamped")
		}
		return nil
	})
	if _, body := p.get(p.metrics + "/metrics"); !strings.Contains(body, "plimsoll_admission_unseen_pods_total 0") {
		t.Error("a pod of a suspended cluster counts as unseen")
	}
}

// Redis away: pods are admitted and stamped, and it is said once in the log, in
// a metric, and on the profile.
func TestRedisAwayDoesNotStopAdmission(t *testing.T) {
	dir, ca := certDir(t)
	p := start(t, "--redis", fmt.Sprintf("redis://127.0.0.1:%d", port(t)), "--cert-dir", dir, "--recommend-interval", "1s")
	policyAll(t)
	p.ready(t)
	admissiontest.Render(t, "plimsoll", admissiontest.URL(fmt.Sprintf("https://127.0.0.1:%d", p.port), ca)...).Install(t, world.clients)
	n := 0
	profile := ""
	admissiontest.Wait(t, "a stamped pod", func() error {
		n++
		got, err := create(t, pod(fmt.Sprintf("r%d", n), v1alpha1.LabelMode, "resize"))
		if err != nil {
			return err
		}
		if profile = got.Annotations[v1alpha1.AnnotationProfileRef]; profile == "" {
			return errors.New("not stamped")
		}
		return nil
	})
	admissiontest.Wait(t, "the profile to say so", func() error {
		wp := &v1alpha1.WorkloadProfile{}
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: profile}, wp); err != nil {
			return err
		}
		for _, c := range wp.Status.Conditions {
			if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("conditions are %v", wp.Status.Conditions)
	})
	if n := strings.Count(p.output(), "Redis does not answer"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	if _, body := p.get(p.metrics + "/metrics"); !strings.Contains(body, "plimsoll_redis_up 0") {
		t.Error("the metric does not say so")
	}
}

// The chart's roles grant what a replica does in a cluster: nothing is forbidden.
func TestChartGrantsWhatAReplicaDoes(t *testing.T) {
	if _, err := world.api.Kubectl(string(admissiontest.Template(t, "granted", "rbac.yaml")), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	account := world.api.ServiceAccount(admissiontest.Namespace, "granted-webhook")
	policyAll(t)
	p := start(t, "--kubeconfig", world.api.KubeconfigFor(account), "--redis", "redis://"+world.redis.Addr(), "--cert-host", "127.0.0.1",
		"--service", "granted-webhook", "--webhook-configuration", "granted", "--replica", "granted-webhook-0", "--recommend-interval", "1s")
	p.ready(t)
	admissiontest.Render(t, "granted", admissiontest.URL(fmt.Sprintf("https://127.0.0.1:%d", p.port), nil)...).Install(t, world.clients)
	n := 0
	admissiontest.Wait(t, "a profile with a status", func() error {
		n++
		got, err := create(t, pod(fmt.Sprintf("g%d", n), v1alpha1.LabelMode, "resize"))
		if err != nil {
			return err
		}
		wp := &v1alpha1.WorkloadProfile{}
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: got.Annotations[v1alpha1.AnnotationProfileRef]}, wp); err != nil {
			return err
		}
		if len(wp.Status.Conditions) == 0 {
			return errors.New("no conditions")
		}
		return nil
	})
	statusesWritten(t, "granted-webhook-0")
	if strings.Contains(p.output(), "forbidden") {
		t.Error("something was forbidden")
	}
}

// Two replicas in the self-signed mode: both become ready, the authority is
// published, pods are stamped, and one of them can be killed.
func TestSelfSignedReplicas(t *testing.T) {
	policyAll(t)
	ports := []*process{}
	for _, name := range []string{"replica-a", "replica-b"} {
		ports = append(ports, start(t, "--redis", "redis://"+world.redis.Addr(), "--cert-host", "127.0.0.1",
			"--webhook-configuration", "signed", "--replica", name))
	}
	for _, p := range ports {
		p.ready(t)
	}
	admissiontest.Render(t, "signed", admissiontest.URL(fmt.Sprintf("https://127.0.0.1:%d", ports[1].port), nil)...).Install(t, world.clients)
	ports[0].kill()
	n := 0
	admissiontest.Wait(t, "a stamped pod", func() error {
		n++
		got, err := create(t, pod(fmt.Sprintf("s%d", n), v1alpha1.LabelMode, "measure"))
		if err != nil {
			return err
		}
		if got.Annotations[v1alpha1.AnnotationPolicyRef] == "" {
			return errors.New("not stamped")
		}
		return nil
	})
}
