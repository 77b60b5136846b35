package resize

import (
	"context"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	plan "plimsoll.dev/pkg/resize"
)

// indexNode finds pods by the node they run on.
const indexNode = "plimsoll.dev/resize-node"

func nodeOf(o client.Object) []string {
	if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// gatherer reads, once per cycle, what bounds the pods of a profile.
type gatherer struct {
	c        *Controller
	settings *policy.Settings
	profile  *v1alpha1.WorkloadProfileStatus
	live     map[string]map[string]plan.Live
	spaces   map[string]*space
	nodes    map[string]plan.Node
}

// space is what bounds the pods of a namespace.
type space struct {
	bounds plan.Bounds
	hpas   []autoscalingv2.HorizontalPodAutoscaler
}

// decide plans a pod; the pod must not be changed. What its node has left is
// read only if anything would change.
func (g *gatherer) decide(ctx context.Context, pod *corev1.Pod) (plan.Decision, error) {
	in, err := g.input(ctx, pod)
	if err != nil {
		return plan.Decision{}, err
	}
	d := plan.Plan(in)
	if d.Reason != plan.ReasonChange {
		return d, nil
	}
	if in.Node, err = g.load(ctx, pod.Spec.NodeName); err != nil {
		return plan.Decision{}, err
	}
	return plan.Plan(in), nil
}

// input gathers what Plan decides from, all but what the node has left.
func (g *gatherer) input(ctx context.Context, pod *corev1.Pod) (plan.PlanInput, error) {
	in := plan.PlanInput{
		Pod: pod, Settings: g.settings, Profile: g.profile, Live: g.live[string(pod.UID)],
		Last: g.c.record(pod), Now: g.c.Now(),
	}
	if by, at, ok := unrecorded(pod, in.Last); ok {
		in.Last = plan.Adopt(pod, by, at) // whoever follows it writes this down
	}
	s, err := g.space(ctx, pod.Namespace)
	if err != nil {
		return in, err
	}
	in.Bounds = s.bounds
	if len(s.hpas) > 0 {
		targets, err := g.targets(ctx, pod)
		if err != nil {
			return in, err
		}
		in.HPA = plan.AutoscaledRequests(s.hpas, targets...)
	}
	in.Node, err = g.node(ctx, pod.Spec.NodeName)
	return in, err
}

func (g *gatherer) space(ctx context.Context, namespace string) (*space, error) {
	if s := g.spaces[namespace]; s != nil {
		return s, nil
	}
	var ranges corev1.LimitRangeList
	var quotas corev1.ResourceQuotaList
	var hpas autoscalingv2.HorizontalPodAutoscalerList
	for _, list := range []client.ObjectList{&ranges, &quotas, &hpas} {
		if err := g.c.Client.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("reading what bounds namespace %s: %w", namespace, err)
		}
	}
	s := &space{bounds: plan.Bounds{LimitRanges: ranges.Items, Quotas: quotas.Items}, hpas: hpas.Items}
	g.spaces[namespace] = s
	return s, nil
}

// targets are the objects through which an autoscaler could scale the pod.
func (g *gatherer) targets(ctx context.Context, pod *corev1.Pod) ([]plan.Target, error) {
	var out []plan.Target
	if ref := metav1.GetControllerOf(pod); ref != nil {
		out = append(out, plan.Target{Kind: ref.Kind, Name: ref.Name})
	}
	if g.c.Owners == nil {
		return out, nil
	}
	kind, name, known, err := g.c.Owners.Top(ctx, pod, pod.Namespace)
	if err != nil || !known {
		return out, err
	}
	return append(out, plan.Target{Kind: kind, Name: name}), nil
}

// node returns a node as far as one read tells.
func (g *gatherer) node(ctx context.Context, name string) (plan.Node, error) {
	if n, ok := g.nodes[name]; ok || name == "" {
		return n, nil
	}
	n := plan.Node{StaticCPU: g.c.book.pinsCores(name)}
	node := &corev1.Node{}
	switch err := g.c.Client.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); {
	case err == nil:
		n.Node = node
	case client.IgnoreNotFound(err) != nil:
		return n, fmt.Errorf("reading node %s: %w", name, err)
	}
	g.nodes[name] = n
	return n, nil
}

// load adds to a node what the enrolled pods on it request. Pods that are not
// enrolled are not known here: the kubelet has the last word.
func (g *gatherer) load(ctx context.Context, name string) (plan.Node, error) {
	n, err := g.node(ctx, name)
	if err != nil || n.Node == nil || n.Requested != nil {
		return n, err
	}
	var pods corev1.PodList
	if err := g.c.Client.List(ctx, &pods, client.MatchingFields{indexNode: name}, client.UnsafeDisableDeepCopy); err != nil {
		return n, fmt.Errorf("reading the pods of node %s: %w", name, err)
	}
	cpu, memory := resource.Quantity{}, resource.Quantity{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			cpu.Add(plan.Requested(p, corev1.ResourceCPU))
			memory.Add(plan.Requested(p, corev1.ResourceMemory))
		}
	}
	n.Requested = corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
	g.nodes[name] = n
	return n, nil
}

// spend counts what a change that was sent takes from its node, for the pods
// that come after it in the cycle.
func (g *gatherer) spend(pod *corev1.Pod, changes []plan.Change) {
	n, ok := g.nodes[pod.Spec.NodeName]
	if !ok || n.Requested == nil {
		return
	}
	for _, c := range changes {
		if c.Field.Field == v1alpha1.FieldRequest && c.From != nil {
			q := n.Requested[c.Resource]
			q.Add(c.To)
			q.Sub(*c.From)
			n.Requested[c.Resource] = q
		}
	}
}
