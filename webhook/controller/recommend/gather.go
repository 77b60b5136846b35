package recommend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	decide "plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

var (
	// errUnreadable wraps a failure to read measurements.
	errUnreadable = errors.New("reading measurements")
	// errPolicyBehind says that the policy was edited and the index does not have the edit yet.
	errPolicyBehind = errors.New("the policy's newest version is not compiled yet")
)

// evaluation is what was read and computed about one profile.
type evaluation struct {
	result     decide.Result
	settings   policy.Settings
	generation int64     // of the policy, 0 without one
	noPolicy   bool      // the profile names a policy that is gone or does not compile
	runPods    int       // pods that run, and so should be measured
	lastSample time.Time // zero if there is none
	created    time.Time // of the profile
	now        time.Time
	retention  store.Retention
	foldable   bool
}

// evaluate gathers everything a recommendation follows from, and computes it.
func (c *Controller) evaluate(ctx context.Context, profile *v1alpha1.WorkloadProfile) (evaluation, error) {
	v := evaluation{now: c.Now(), created: profile.CreationTimestamp.Time}
	if err := c.policyOf(ctx, profile, &v); err != nil {
		return v, err
	}
	v.retention = store.Retention{Window: v.settings.Retention.Window, HalfLife: v.settings.Retention.HalfLife}
	pods, err := c.Pods.OfProfile(ctx, profile.Name)
	if err != nil {
		return v, fmt.Errorf("listing the pods of profile %s: %w", profile.Name, err)
	}
	allocatable, err := c.nodes.largest(ctx, c.Client, v.now)
	if err != nil {
		return v, err
	}
	window, err := c.Measurements.Window(ctx, profile.Spec.Identity.MeasurementHash, v.now, v.retention)
	if err != nil {
		return v, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	started := time.Now()
	v.foldable = window.Foldable
	containers := measured(window, &v)
	v.runPods = running(containers, pods)
	in := decide.Input{
		Settings: v.settings, Containers: fitting(containers, window), Allocatable: allocatable, Now: v.now,
		WasSufficient: meta.IsStatusConditionTrue(profile.Status.Conditions, v1alpha1.ConditionSufficient),
	}
	v.result = decide.Compute(in)
	c.Metrics.computeSeconds.Observe(time.Since(started).Seconds())
	return v, nil
}

// policyOf loads the policy recorded in the profile. One that is gone or broken leaves the defaults, under which nothing
// is recommended.
func (c *Controller) policyOf(ctx context.Context, profile *v1alpha1.WorkloadProfile, v *evaluation) error {
	ref := profile.Spec.Identity.PolicyRef
	if ref == nil {
		v.settings = policy.DefaultSettings()
		return nil
	}
	index := c.Policies.Get()
	if index == nil {
		return errPolicyBehind
	}
	stored, err := c.storedPolicy(ctx, *ref)
	if err != nil {
		return err
	}
	if p, ok := index.Load(*ref); ok {
		if stored > p.Generation {
			return errPolicyBehind
		}
		v.settings, v.generation = p.Settings, p.Generation
		return nil
	}
	v.settings, v.noPolicy = policy.DefaultSettings(), true
	for _, b := range index.Broken() {
		if b.Ref == *ref && b.Generation >= stored {
			return nil
		}
	}
	if stored > 0 {
		return errPolicyBehind
	}
	return nil
}

// storedPolicy returns the generation of the policy in the API, 0 if it is gone.
func (c *Controller) storedPolicy(ctx context.Context, ref v1alpha1.PolicyReference) (int64, error) {
	var o client.Object = &v1alpha1.ClusterResourcePolicy{}
	if ref.Kind == v1alpha1.KindResourcePolicy {
		o = &v1alpha1.ResourcePolicy{}
	}
	err := c.Client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading policy %s: %w", ref.Name, err)
	}
	return o.GetGeneration(), nil
}

// measured returns the containers of a window by name, those known by an OOM kill alone included. A name no container can
// have, which only a damaged Redis holds, is left out: the API server would refuse the whole status for it.
func measured(w *store.Window, v *evaluation) map[string]*decide.Container {
	out := make(map[string]*decide.Container, len(w.Containers))
	for name, m := range w.Containers {
		if len(validation.IsDNS1123Label(name)) > 0 {
			continue
		}
		out[name] = &decide.Container{
			Name: name, Series: decide.Series(m.Usage), Startup: decide.Series(m.Startup),
			CoveredHours: m.CoveredHours(), CoveredMinutes: m.CoveredMinutes(),
		}
		if t := m.LastSample(); t.After(v.lastSample) {
			v.lastSample = t
		}
	}
	for _, k := range w.Kills {
		if len(validation.IsDNS1123Label(k.Container)) > 0 {
			continue
		}
		c := named(out, k.Container)
		kill := decide.Kill{Time: k.At, Limit: k.Limit, Usage: k.Usage, Node: k.Scope == store.ScopeNode}
		if k.Scope == store.ScopePod {
			// The limit is the pod's; of this container only the use is known.
			kill.Limit = 0
		}
		c.Kills = append(c.Kills, kill)
	}
	return out
}

// mostContainers is what a status can hold.
const mostContainers = 64

// fitting returns the containers a status has room for: those that run come first, then those measured last. A workload
// that names its containers anew with every run leaves many behind.
func fitting(containers map[string]*decide.Container, w *store.Window) []decide.Container {
	out := make([]decide.Container, 0, len(containers))
	last := map[string]time.Time{}
	for name, c := range containers {
		out = append(out, *c)
		if m := w.Containers[name]; m != nil && len(containers) > mostContainers {
			last[name] = m.LastSample()
		}
	}
	if len(out) <= mostContainers {
		return out
	}
	slices.SortFunc(out, func(a, b decide.Container) int {
		if a.Running != b.Running {
			if a.Running {
				return -1
			}
			return 1
		}
		return cmp.Or(last[b.Name].Compare(last[a.Name]), cmp.Compare(a.Name, b.Name))
	})
	return out[:mostContainers]
}

func named(containers map[string]*decide.Container, name string) *decide.Container {
	c := containers[name]
	if c == nil {
		c = &decide.Container{Name: name}
		containers[name] = c
	}
	return c
}

// running marks the containers that live pods have, with the smallest limits they have, and counts the pods that run.
func running(containers map[string]*decide.Container, pods []corev1.Pod) int {
	started := 0
	unlimited := map[string]map[corev1.ResourceName]bool{}
	for i := range pods {
		if !alive(&pods[i]) {
			continue
		}
		if pods[i].Status.Phase == corev1.PodRunning {
			started++
		}
		for _, spec := range lasting(&pods[i]) {
			c := named(containers, spec.Name)
			if !c.Running {
				c.Running, c.Limits = true, map[corev1.ResourceName]sample.Amount{}
				unlimited[spec.Name] = map[corev1.ResourceName]bool{}
			}
			for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				q, ok := spec.Resources.Limits[r]
				a := sample.FromQuantity(q)
				switch {
				case !ok || a <= 0 || unlimited[spec.Name][r]:
					unlimited[spec.Name][r] = true
					delete(c.Limits, r)
				case c.Limits[r] == 0 || a < c.Limits[r]:
					c.Limits[r] = a
				}
			}
		}
	}
	return started
}

func alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// lasting returns the containers that run as long as the pod: its own and the init containers that restart.
func lasting(pod *corev1.Pod) []corev1.Container {
	out := pod.Spec.Containers[:len(pod.Spec.Containers):len(pod.Spec.Containers)]
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	return out
}
