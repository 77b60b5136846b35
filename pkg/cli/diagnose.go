package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/version"
)

const (
	// mostEvents and mostProfiles bound the bundle: the newest events, and profiles with something wrong.
	mostEvents   = 200
	mostProfiles = 100
)

func newDiagnose(connect func() (client.Client, string, error)) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "diagnose",
		Short: "Gather what a report of a problem needs, without secrets",
		Long: `Gather what a report of a problem needs into one YAML file: what is wrong at a glance, Plimsoll's configuration, policies,
the statuses of its replicas and agents, profiles with something wrong, its own workloads, and recent warnings.

Secrets are never read. Values of environment variables, passwords in URLs, tokens and keys are removed. Names of your
namespaces, policies and nodes stay: read the file before you share it. What you may not read is left out and said.`,
		Example: `  kubectl plimsoll diagnose -o plimsoll.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, _, err := connect()
			if err != nil {
				return err
			}
			b := gather(c.Context(), cl, time.Now())
			if output == "" || output == "-" {
				return b.write(c.OutOrStdout())
			}
			f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return fmt.Errorf("making the file: %w", err)
			}
			if err := b.write(f); err != nil {
				_ = f.Close()
				return err
			}
			if err := f.Close(); err != nil {
				return fmt.Errorf("writing %s: %w", output, err)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%d problems, %d objects: %s\n", len(b.Problems), len(b.objects), output)
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to make; default standard output")
	return c
}

// bundle is what was gathered; its exported fields are the file's first document.
type bundle struct {
	Time       string         `json:"time"`
	Client     string         `json:"client"`
	Namespaces []string       `json:"namespaces"` // Plimsoll is installed in
	Counts     map[string]int `json:"counts"`     // of objects there are, by kind
	Problems   []string       `json:"problems"`

	ctx     context.Context
	c       client.Client
	objects []map[string]any
}

func (b *bundle) problem(format string, args ...any) {
	b.Problems = append(b.Problems, fmt.Sprintf(format, args...))
}

// gather reads everything; what fails is a problem like any other.
func gather(ctx context.Context, c client.Client, now time.Time) *bundle {
	b := &bundle{Time: now.UTC().Format(time.RFC3339), Client: version.Version, Counts: map[string]int{}, ctx: ctx, c: c}
	own := client.MatchingLabels{"app.kubernetes.io/name": "plimsoll"}
	var config v1alpha1.PlimsollConfigList
	b.list(&config, b.config)
	b.list(&v1alpha1.ClusterResourcePolicyList{}, b.policy)
	b.list(&v1alpha1.ResourcePolicyList{}, b.policy)
	b.list(&v1alpha1.PolicyPodStatusList{}, everything)
	b.list(&v1alpha1.AgentStatusList{}, everything)
	b.list(&v1alpha1.WorkloadProfileList{}, b.profile())
	b.list(&appsv1.DeploymentList{}, b.workload, own)
	b.list(&appsv1.DaemonSetList{}, b.workload, own)
	for _, namespace := range b.Namespaces {
		b.list(&corev1.PodList{}, b.pod, own, client.InNamespace(namespace))
		b.list(&coordinationv1.LeaseList{}, everything, client.HasLabels{"plimsoll.dev/member"}, client.InNamespace(namespace))
	}
	b.events()
	if len(config.Items) == 0 {
		b.problem("there is no PlimsollConfig %s: the defaults hold, and the agents are not summed up", v1alpha1.ConfigName)
	}
	if len(b.Namespaces) == 0 {
		b.problem("found no Deployment or DaemonSet of Plimsoll that you may read")
	}
	return b
}

// list reads a kind and keeps the objects that are wanted.
func (b *bundle) list(list client.ObjectList, wanted func(client.Object) bool, options ...client.ListOption) {
	gvk, err := apiutil.GVKForObject(list, b.c.Scheme())
	kind := strings.TrimSuffix(gvk.Kind, "List")
	if err == nil {
		err = b.c.List(b.ctx, list, options...)
	}
	if err != nil {
		b.problem("reading %s failed: %v", kind, err)
		return
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		b.problem("reading %s failed: %v", kind, err)
		return
	}
	b.Counts[kind] += len(items)
	for _, item := range items {
		o, ok := item.(client.Object)
		if ok && wanted(o) {
			b.add(o)
		}
	}
}

func everything(client.Object) bool { return true }

// add keeps an object without secrets.
func (b *bundle) add(o client.Object) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err == nil {
		if gvk, gvkErr := apiutil.GVKForObject(o, b.c.Scheme()); gvkErr == nil {
			content["apiVersion"], content["kind"] = gvk.GroupVersion().String(), gvk.Kind
		}
		redact(content)
		b.objects = append(b.objects, content)
		return
	}
	b.problem("leaving out %s: %v", o.GetName(), err)
}

func (b *bundle) config(o client.Object) bool {
	c, ok := o.(*v1alpha1.PlimsollConfig)
	if !ok || c.Status.Agents == nil {
		return ok
	}
	if c.Spec.Suspended != nil && *c.Spec.Suspended {
		b.problem("PlimsollConfig is suspended: no pod is changed")
	}
	a := c.Status.Agents
	if a.Healthy < max(a.Expected, a.Reporting) {
		b.problem("%d agents expected, %d report, %d are healthy", a.Expected, a.Reporting, a.Healthy)
	}
	for _, w := range a.Worst {
		b.problem("agent on %s: %s: %s", w.Node, w.Reason, w.Message)
	}
	return true
}

func (b *bundle) policy(o client.Object) bool {
	status := &v1alpha1.ResourcePolicyStatus{}
	kind := v1alpha1.KindResourcePolicy
	switch p := o.(type) {
	case *v1alpha1.ResourcePolicy:
		status = &p.Status
	case *v1alpha1.ClusterResourcePolicy:
		status, kind = &p.Status, v1alpha1.KindClusterResourcePolicy
	}
	b.conditions(kind, o, status.Conditions)
	return true
}

// profile keeps the first profiles with something wrong, and says how many there are of each kind of wrong.
func (b *bundle) profile() func(client.Object) bool {
	kept := 0
	return func(o client.Object) bool {
		p, ok := o.(*v1alpha1.WorkloadProfile)
		if !ok || !b.conditions("WorkloadProfile", o, p.Status.Conditions) || kept == mostProfiles {
			return false
		}
		kept++
		return true
	}
}

// conditions notes a Ready condition that is not true, and reports whether it did.
func (b *bundle) conditions(kind string, o client.Object, conditions []metav1.Condition) bool {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status == metav1.ConditionTrue {
		return false
	}
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	b.problem("%s %s is not ready: %s: %s", kind, name, c.Reason, c.Message)
	return true
}

func (b *bundle) workload(o client.Object) bool {
	if !slices.Contains(b.Namespaces, o.GetNamespace()) {
		b.Namespaces = append(b.Namespaces, o.GetNamespace())
	}
	var want, have int32
	switch w := o.(type) {
	case *appsv1.Deployment:
		want, have = 1, w.Status.ReadyReplicas
		if w.Spec.Replicas != nil {
			want = *w.Spec.Replicas
		}
	case *appsv1.DaemonSet:
		want, have = w.Status.DesiredNumberScheduled, w.Status.NumberReady
	}
	if have < want {
		b.problem("%s/%s has %d of %d pods ready", o.GetNamespace(), o.GetName(), have, want)
	}
	return true
}

func (b *bundle) pod(o client.Object) bool {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return false
	}
	for _, s := range pod.Status.ContainerStatuses {
		if t := s.LastTerminationState.Terminated; t != nil {
			b.problem("pod %s/%s: %s was restarted %d times, last after %s with exit code %d", pod.Namespace, pod.Name, s.Name, s.RestartCount,
				cmp.Or(t.Reason, "an end"), t.ExitCode)
		}
		if w := s.State.Waiting; w != nil {
			b.problem("pod %s/%s: %s waits: %s: %s", pod.Namespace, pod.Name, s.Name, w.Reason, w.Message)
		}
	}
	return true
}

// events keeps the newest warnings that Plimsoll gave or that are about its objects and pods.
func (b *bundle) events() {
	var all corev1.EventList
	b.list(&all, func(client.Object) bool { return false }, client.MatchingFields{"type": corev1.EventTypeWarning})
	ours := slices.DeleteFunc(all.Items, func(e corev1.Event) bool {
		return !strings.HasPrefix(e.InvolvedObject.APIVersion, v1alpha1.GroupVersion.Group+"/") && e.ReportingController != "plimsoll" &&
			!slices.Contains(b.Namespaces, e.Namespace)
	})
	newest := func(e corev1.Event) time.Time {
		if !e.LastTimestamp.IsZero() {
			return e.LastTimestamp.Time
		}
		return cmp.Or(e.EventTime.Time, e.CreationTimestamp.Time)
	}
	slices.SortStableFunc(ours, func(x, y corev1.Event) int { return newest(y).Compare(newest(x)) })
	for i := range ours[:min(len(ours), mostEvents)] {
		b.add(&ours[i])
	}
}

// write writes one YAML document for the bundle and one per object.
func (b *bundle) write(out io.Writer) error {
	for i, p := range b.Problems {
		b.Problems[i] = scrub(p)
	}
	documents := []any{b}
	for _, o := range b.objects {
		documents = append(documents, o)
	}
	for i, d := range documents {
		text, err := yaml.Marshal(d)
		if err != nil {
			return fmt.Errorf("encoding the bundle: %w", err)
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := out.Write(text); err != nil {
			return fmt.Errorf("writing the bundle: %w", err)
		}
	}
	return nil
}
