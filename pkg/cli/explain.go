package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	"plimsoll.dev/pkg/recommend"
)

func newExplain(connect func() (client.Client, string, error)) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "explain POD | KIND/NAME",
		Short: "Derive the recommendations of a pod or workload step by step",
		Long: `Derive the recommendations of a pod or workload step by step, as its profile holds them: from measured use through the
policy's aggregation, headroom, floors and caps to the value.

A name alone is a pod, or a workload of any kind. KIND is pod, deployment, statefulset, daemonset, replicaset, job, cronjob
or any other kind that owns pods, or workloadprofile (wp).`,
		Example: `  kubectl plimsoll explain web-6c9f7d5b8-x2x7p
  kubectl plimsoll explain deployment/web -n shop`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("output %q is not known: use json, or leave it out for text", output)
			}
			cl, namespace, err := connect()
			if err != nil {
				return err
			}
			profiles, err := profilesOf(c.Context(), cl, namespace, args[0])
			if err != nil {
				return err
			}
			for i := range profiles {
				if err := writeProfile(c.OutOrStdout(), &profiles[i], output == "json"); err != nil {
					return fmt.Errorf("writing the explanation: %w", err)
				}
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "json, or text if left out")
	return c
}

// profilesOf returns the profiles of what an argument names: usually one, several while pods move to another policy.
func profilesOf(ctx context.Context, c client.Client, namespace, arg string) ([]v1alpha1.WorkloadProfile, error) {
	kind, name, given := strings.Cut(arg, "/")
	if !given {
		kind, name = "", arg
	}
	if name == "" {
		return nil, fmt.Errorf("%q names nothing: write a pod's name or kind/name", arg)
	}
	kind = strings.ToLower(kind)
	if full, ok := shortKinds[kind]; ok {
		kind = full
	}
	if kind == "workloadprofile" {
		p, err := getProfile(ctx, c, name)
		return []v1alpha1.WorkloadProfile{p}, err
	}
	pods, err := podsOf(ctx, c, namespace, kind, name)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pod in namespace %s is, or belongs to, %q", namespace, arg)
	}
	var refs []string
	for _, p := range pods {
		if ref := p.Annotations[v1alpha1.AnnotationProfileRef]; ref != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	if len(refs) == 0 {
		return nil, fmt.Errorf("%s has no profile: set the label %s=measure on its pods or their namespace; "+
			"a pod just created gets its profile within seconds", arg, v1alpha1.LabelMode)
	}
	slices.Sort(refs)
	var out []v1alpha1.WorkloadProfile
	for _, ref := range refs {
		p, err := getProfile(ctx, c, ref)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func getProfile(ctx context.Context, c client.Client, name string) (v1alpha1.WorkloadProfile, error) {
	var p v1alpha1.WorkloadProfile
	err := c.Get(ctx, client.ObjectKey{Name: name}, &p)
	if apierrors.IsNotFound(err) {
		return p, fmt.Errorf("profile %s does not exist (yet)", name)
	}
	if err != nil {
		return p, fmt.Errorf("reading profile %s: %w", name, err)
	}
	return p, nil
}

func writeProfile(out io.Writer, p *v1alpha1.WorkloadProfile, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"profile": p.Name, "identity": p.Spec.Identity, "status": p.Status})
	}
	ref := v1alpha1.PolicyReference{}
	if p.Spec.Identity.PolicyRef != nil {
		ref = *p.Spec.Identity.PolicyRef
	}
	w := &lines{out: out}
	w.line("Profile   %s, %s, %d pods", p.Name, stateText(p.Status.State), p.Status.ActivePods)
	w.line("Policy    %s, generation %d", profile.FormatRef(ref), p.Status.PolicyGeneration)
	for _, c := range p.Status.Conditions {
		w.line("%-9s %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
	}
	if len(p.Status.Containers) == 0 {
		w.line("\nNothing was measured yet.")
	}
	for _, c := range p.Status.Containers {
		w.line("\nContainer %s", c.Name)
		if c.OOMKills > 0 {
			w.line("  OOM kills remembered: %d", c.OOMKills)
		}
		w.usage(c.Usage)
		for _, r := range c.Recommendations {
			w.recommendation(r)
		}
		if len(c.Recommendations) == 0 {
			w.line("  The policy sets nothing for what was measured.")
		}
	}
	return w.err
}

func stateText(s v1alpha1.ProfileState) string {
	if s == "" {
		return "new"
	}
	return string(s)
}

// lines writes text and keeps the first error.
type lines struct {
	out io.Writer
	err error
}

func (l *lines) line(format string, args ...any) {
	_, err := fmt.Fprintf(l.out, format+"\n", args...)
	l.err = errors.Join(l.err, err)
}

// table writes rows whose cells are separated by tabs.
func (l *lines) table(rows []string) {
	w := tabwriter.NewWriter(l.out, 0, 0, 2, ' ', 0)
	_, err := io.WriteString(w, strings.Join(rows, "\n")+"\n")
	l.err = errors.Join(l.err, err, w.Flush())
}

func (l *lines) usage(usage []v1alpha1.ResourceUsage) {
	if len(usage) == 0 {
		return
	}
	rows := []string{"  USE\tAVERAGE\tP50\tP95\tP99\tMAX\tSAMPLES\tCOVERED"}
	for _, u := range usage {
		row := "  " + u.Resource
		for _, q := range []resource.Quantity{u.Average, u.P50, u.P95, u.P99, u.Max} {
			row += "\t" + quantity(q, u.Resource)
		}
		rows = append(rows, fmt.Sprintf("%s\t%d\t%d min", row, u.Samples, u.CoveredMinutes))
	}
	l.table(rows)
}

func (l *lines) recommendation(r v1alpha1.Recommendation) {
	note := ""
	switch {
	case r.ShareAbove == "":
	case r.Resource == corev1.ResourceCPU:
		note = fmt.Sprintf("; would throttle %s of the periods with use", r.ShareAbove)
	default:
		note = fmt.Sprintf("; use was above it %s of the time", r.ShareAbove)
	}
	l.line("  %s %s %s (%s%s)", r.Resource, r.Field, quantity(r.Value, string(r.Resource)), r.Reason, note)
	var rows []string
	for _, s := range recommend.ParseShort(r.Explanation) {
		row := "      " + s.Input
		if s.Value != "" {
			row += "\t= " + s.Value
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		l.table(rows)
	}
}
