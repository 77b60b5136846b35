package admission

import (
	"context"
	"fmt"
	"maps"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	profilecontroller "plimsoll.dev/webhook/controller/profile"
)

// Pods stamps and sizes pods that are created.
type Pods struct {
	// Resolver answers who governs a pod, as it does for the controllers.
	Resolver *profilecontroller.Resolver
	// Cache answers every other read.
	Cache client.Reader
	// Synced reports whether the caches hold everything; until then pods pass untouched.
	Synced func() bool
	// Nodes know the largest node.
	Nodes *Nodes
}

// Admit answers the creation of a pod.
func (p *Pods) Admit(ctx context.Context, r Request) (Response, error) {
	if r.Operation != admissionv1.Create || r.Kind.Kind != "Pod" {
		return Response{Outcome: OutcomeNotEnrolled}, nil
	}
	pod := &corev1.Pod{}
	if err := utiljson.Unmarshal(r.Object, pod); err != nil {
		return Response{Denied: fmt.Sprintf("parsing the pod: %v", err), Outcome: OutcomeDenied}, nil
	}
	// Refusing a mode that does not exist needs no cache.
	if mode, ok := pod.Labels[v1alpha1.LabelMode]; ok && !profile.Copied(pod) {
		if _, valid := v1alpha1.ParseMode(mode); !valid {
			return Response{Denied: invalidMode(mode), Outcome: OutcomeDenied}, nil
		}
	}
	if !p.Synced() {
		return Response{Outcome: OutcomeUndecided}, nil
	}
	config, err := p.Resolver.Config(ctx)
	if err != nil {
		return Response{}, err
	}
	if config.Suspended != nil && *config.Suspended {
		return Response{Outcome: OutcomeSuspended}, nil
	}
	before := snapshot(pod)
	outcome, err := p.decide(ctx, pod, r.Namespace)
	if err != nil {
		return Response{}, err
	}
	patch, err := before.patchTo(pod)
	if err != nil {
		return Response{}, err
	}
	return Response{Patch: patch, Outcome: outcome}, nil
}

func invalidMode(value string) string {
	return fmt.Sprintf("label %s=%q: use one of %s, %s, %s or %s", v1alpha1.LabelMode, clip(value),
		v1alpha1.ModeOff, v1alpha1.ModeMeasure, v1alpha1.ModeApply, v1alpha1.ModeResize)
}

// decide makes the pod what it should be created as. The namespace is the
// request's: the pod's own may still be empty.
func (p *Pods) decide(ctx context.Context, pod *corev1.Pod, namespace string) (Outcome, error) {
	answer, err := p.Resolver.Resolve(ctx, pod, namespace)
	if err != nil && answer.Mode == v1alpha1.ModeOff {
		return OutcomeFailed, err
	}
	if err != nil && ctx.Err() == nil {
		logr.FromContextOrDiscard(ctx).Error(err, "a pod is left for the controllers to resolve", "namespace", namespace)
	}
	copyMode(pod, answer.Labels)
	switch {
	case answer.Mode == v1alpha1.ModeOff:
		unstamp(pod)
		return OutcomeNotEnrolled, nil
	case !answer.Known:
		unstamp(pod)
		return OutcomeUndecided, nil
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, answer.Stamps())
	if answer.Policy == nil || !answer.Mode.Applies() {
		delete(pod.Annotations, v1alpha1.AnnotationApplied)
		return OutcomeStamped, nil
	}
	return p.size(ctx, pod, namespace, answer)
}

// copyMode writes the namespace's mode onto a pod without one of its own.
func copyMode(pod *corev1.Pod, change map[string]*string) {
	for k, v := range change {
		if v == nil {
			delete(pod.Labels, k)
			continue
		}
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels[k] = *v
	}
}

// unstamp removes what only Plimsoll may say, whoever said it.
func unstamp(pod *corev1.Pod) {
	for _, k := range []string{v1alpha1.AnnotationPolicyRef, v1alpha1.AnnotationProfileRef, v1alpha1.AnnotationApplied} {
		delete(pod.Annotations, k)
	}
}

// was is what a pod had of everything that admission may change.
type was struct {
	labels, annotations map[string]string
	containers, inits   []corev1.ResourceRequirements
}

func snapshot(pod *corev1.Pod) was {
	return was{
		labels: maps.Clone(pod.Labels), annotations: maps.Clone(pod.Annotations),
		containers: resourcesOf(pod.Spec.Containers), inits: resourcesOf(pod.Spec.InitContainers),
	}
}

// patchTo returns the JSON patch that makes the pod what it has become.
func (w was) patchTo(pod *corev1.Pod) ([]byte, error) {
	var p patch
	p.texts("/metadata/labels", w.labels, pod.Labels)
	p.texts("/metadata/annotations", w.annotations, pod.Annotations)
	p.containers("/spec/initContainers", w.inits, pod.Spec.InitContainers)
	p.containers("/spec/containers", w.containers, pod.Spec.Containers)
	return p.bytes()
}
