package admission

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/resize"
	profilecontroller "plimsoll.dev/webhook/controller/profile"
)

// annotationLimitRanger is where LimitRanger says what it filled in.
const annotationLimitRanger = "kubernetes.io/limit-ranger"

// maxAnnotations is how many bytes all annotations of an object may have
// together, as the API server counts them.
const maxAnnotations = 256 << 10

// size sets the values that are recommended for the pod's workload, within
// everything that bounds them, and records what it did.
func (p *Pods) size(ctx context.Context, pod *corev1.Pod, namespace string, answer profilecontroller.Answer) (Outcome, error) {
	before := pod.Annotations[annotationLimitRanger]
	defaults := p.undo(ctx, pod)
	in, at, err := p.gather(ctx, pod, namespace, answer)
	if err != nil {
		return OutcomeFailed, err
	}
	decision := resize.PlanCreate(in)
	restore(pod, before)
	applied := record(answer.Key.Name(), at, in.Settings.Apply.DryRun, decision)
	if len(applied.Changes)+len(applied.Kept) == 0 {
		delete(pod.Annotations, v1alpha1.AnnotationApplied)
		return OutcomeStamped, nil
	}
	if len(applied.Changes) > 0 {
		applied.Defaults = defaults
	}
	pod.Annotations[v1alpha1.AnnotationApplied] = applied.String()
	if length(pod.Annotations) > maxAnnotations {
		delete(pod.Annotations, v1alpha1.AnnotationApplied)
	}
	if in.Settings.Apply.DryRun || len(decision.Changes) == 0 {
		return OutcomeStamped, nil
	}
	decision.Set(pod)
	return OutcomeSized, nil
}

// undo takes back what an earlier call set on the pod, and returns everything
// LimitRanger has said about it, for the decision and for a later call.
func (p *Pods) undo(ctx context.Context, pod *corev1.Pod) string {
	defaults := pod.Annotations[annotationLimitRanger]
	text, ok := pod.Annotations[v1alpha1.AnnotationApplied]
	if !ok {
		return defaults
	}
	earlier, err := ParseApplied(text)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("a pod came with an annotation that cannot be read", "reason", err.Error())
		return defaults
	}
	earlier.Undo(pod)
	if earlier.Defaults != "" && earlier.Defaults != defaults {
		_, more, _ := strings.Cut(defaults, ":")
		defaults = earlier.Defaults
		if more != "" {
			defaults += ";" + more
		}
		pod.Annotations[annotationLimitRanger] = defaults
	}
	return defaults
}

func restore(pod *corev1.Pod, limitRanger string) {
	if limitRanger == "" {
		delete(pod.Annotations, annotationLimitRanger)
		return
	}
	pod.Annotations[annotationLimitRanger] = limitRanger
}

func length(texts map[string]string) int {
	n := 0
	for k, v := range texts {
		n += len(k) + len(v)
	}
	return n
}

// gather reads, from caches, everything that bounds the pod. What it returns is
// shared with the caches and must not be changed. It returns too when
// the recommendations last changed.
func (p *Pods) gather(ctx context.Context, pod *corev1.Pod, namespace string, answer profilecontroller.Answer) (resize.CreateInput, string, error) {
	in := resize.CreateInput{Pod: pod, Settings: &answer.Policy.Settings}
	in.Bounds.Allocatable = p.Nodes.Largest()
	wp := &v1alpha1.WorkloadProfile{}
	err := p.Cache.Get(ctx, types.NamespacedName{Name: answer.Key.Name()}, wp, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return in, "", nil // nothing is recommended yet
	}
	if err != nil {
		return in, "", fmt.Errorf("reading the pod's profile: %w", err)
	}
	in.Profile = &wp.Status
	at := ""
	if wp.Status.UpdatedAt != nil {
		at = wp.Status.UpdatedAt.UTC().Format(time.RFC3339)
	}
	var ranges corev1.LimitRangeList
	if err := p.Cache.List(ctx, &ranges, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return in, at, fmt.Errorf("reading the namespace's LimitRanges: %w", err)
	}
	var quotas corev1.ResourceQuotaList
	if err := p.Cache.List(ctx, &quotas, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return in, at, fmt.Errorf("reading the namespace's ResourceQuotas: %w", err)
	}
	var hpas autoscalingv2.HorizontalPodAutoscalerList
	if err := p.Cache.List(ctx, &hpas, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return in, at, fmt.Errorf("reading the namespace's HorizontalPodAutoscalers: %w", err)
	}
	in.Bounds.LimitRanges, in.Bounds.Quotas = ranges.Items, quotas.Items
	targets := []resize.Target{{Kind: answer.Kind, Name: answer.Owner}}
	if ref := metav1.GetControllerOf(pod); ref != nil {
		targets = append(targets, resize.Target{Kind: ref.Kind, Name: ref.Name})
	}
	in.HPA = resize.AutoscaledRequests(hpas.Items, targets...)
	return in, at, nil
}
