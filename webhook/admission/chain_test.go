package admission_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/webhook/admission/admissiontest"
)

// injector is another webhook, called after ours, that adds a container to
// every pod that has none of that name.
func injector(t *testing.T) {
	t.Helper()
	leaf, ca := admissiontest.Certificate(t)
	cert, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in admissionv1.AdmissionReview
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &in)
		}
		var pod corev1.Pod
		if err == nil {
			err = json.Unmarshal(in.Request.Object.Raw, &pod)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		in.Response = &admissionv1.AdmissionResponse{UID: in.Request.UID, Allowed: true}
		if len(pod.Spec.Containers) == 1 {
			kind := admissionv1.PatchTypeJSONPatch
			in.Response.PatchType = &kind
			in.Response.Patch = []byte(`[{"op":"add","path":"/spec/containers/-","value":{"name":"injected","image":"i"}}]`)
		}
		in.Request = nil
		_ = json.NewEncoder(w).Encode(in)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	c := admissiontest.Configurations{
		Validating: &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "zz-injector"}},
		Mutating: &admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "zz-injector"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name:                    "injector.example.org",
				AdmissionReviewVersions: []string{"v1"},
				SideEffects:             ptr(admissionregistrationv1.SideEffectClassNone),
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr("https://" + l.Addr().String()), CABundle: ca},
				ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"inject": "yes"}},
				Rules: []admissionregistrationv1.RuleWithOperations{{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}},
			}},
		},
	}
	c.Install(t, world.clients)
	admissiontest.Wait(t, "the injector to be called", func() error {
		pod := newPod("probe", map[string]string{"inject": "yes"})
		got, err := world.clients.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(got.Spec.Containers) != 2 {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
}

// C52: a container that another webhook adds after us is sized as well, and the
// second call changes nothing of what the first one set.
func TestC52InjectedContainerIsSizedAndReinvocationChangesNothingElse(t *testing.T) {
	serve(t)
	injector(t)
	tests := map[string]struct {
		namespace, labels map[string]string
		ranges            bool
	}{
		"own mode":                    {labels: mode("apply")},
		"the namespace's mode":        {namespace: mode("apply")},
		"own mode, defaulted values":  {labels: mode("apply"), ranges: true},
		"namespace, defaulted values": {namespace: mode("apply"), ranges: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := namespace(t, tc.namespace)
			if tc.ranges {
				// Equal defaults make a pod Guaranteed that its author left BestEffort.
				put(t, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "defaults"}, Spec: corev1.LimitRangeSpec{
					Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Default: list("1", "1Gi"), DefaultRequest: list("1", "1Gi")}},
				}})
			}
			ref := govern(t, v1alpha1.ResourcePolicySpec{Resources: rules()})
			pod := newPod("p", tc.labels)
			pod.Labels["inject"] = "yes"
			learn(t, pod, ref, recommended("app", "100m", "200m", "64Mi", "128Mi"), recommended("injected", "50m", "60m", "32Mi", "48Mi"))
			before := world.calls.Load()
			got := create(t, ns, pod)
			if n := world.calls.Load() - before; n != 2 {
				t.Errorf("the webhook was called %d times, want 2", n)
			}
			for i, want := range []string{"100m/200m 64Mi/128Mi", "50m/60m 32Mi/48Mi"} {
				if v := values(got.Spec.Containers[i].Resources); v != want {
					t.Errorf("container %d has %s, want %s", i, v, want)
				}
			}
			from := ""
			if tc.ranges {
				from = "1"
			}
			if a := applied(t, got, true); len(a.Changes) != 8 || a.Changes[0].From != from {
				t.Errorf("the annotation says %s", got.Annotations[v1alpha1.AnnotationApplied])
			}
		})
	}
}

func list(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// C53: all replicas are dead, in the two ways there are: pods are created within
// the timeout, and kube-system is never matched.
func TestC53DeadWebhookNeverStopsPods(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	_, ca := admissiontest.Certificate(t)
	tests := map[string]struct {
		address string
		most    time.Duration
	}{
		"nobody listens": {free(t), time.Second},
		"nobody answers": {silent.Addr().String(), 3 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := admissiontest.Render(t, "plimsoll", admissiontest.URL("https://"+tc.address, ca)...)
			c.Install(t, world.clients)
			ns := namespace(t, mode("apply"))
			for _, labels := range []map[string]string{mode("apply"), nil} {
				start := time.Now()
				create(t, ns, newPod(fmt.Sprintf("p%d", len(labels)), labels))
				if took := time.Since(start); took > tc.most {
					t.Errorf("creating a pod took %s, want at most %s", took, tc.most)
				}
			}
			for _, w := range c.Mutating.Webhooks {
				if *w.FailurePolicy != admissionregistrationv1.Ignore || *w.TimeoutSeconds > 2 {
					t.Errorf("%s: failure policy %s, timeout %d", w.Name, *w.FailurePolicy, *w.TimeoutSeconds)
				}
			}
		})
	}
}

// C53: neither kube-system nor Plimsoll's own namespace ever calls the webhook,
// nor does a pod that is not enrolled.
func TestC53SystemNamespacesAreNeverMatched(t *testing.T) {
	serve(t)
	for _, ns := range []string{"kube-system", admissiontest.Namespace} {
		labelled := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
		if ns != "kube-system" {
			if _, err := world.clients.CoreV1().Namespaces().Create(t.Context(), labelled, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		before := world.calls.Load()
		create(t, ns, newPod("p", mode("apply")))
		if n := world.calls.Load() - before; n != 0 {
			t.Errorf("a pod of %s called the webhook", ns)
		}
	}
	before := world.calls.Load()
	create(t, namespace(t, nil), newPod("p", nil))
	create(t, namespace(t, mode("off")), newPod("p", nil))
	create(t, namespace(t, nil), newPod("p", mode("off")))
	if n := world.calls.Load() - before; n != 0 {
		t.Errorf("pods that are not enrolled called the webhook %d times", n)
	}
}
