package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/test/node"
)

// Container is the name of every workload's only container.
const Container = "main"

// Amounts are cores and bytes; 0 stands for nothing known.
type Amounts struct{ CPU, Memory float64 }

func (a Amounts) plus(b Amounts) Amounts { return Amounts{a.CPU + b.CPU, a.Memory + b.Memory} }

// Pod is one running pod of a workload.
type Pod struct {
	Object            corev1.Pod
	Requested, Limits Amounts
	// Used is the CPU used since a reading some time before and the memory
	// held now, from the kernel and not by way of the agent.
	Used Amounts
	// Cgroup is what the kubelet has set.
	Cgroup   node.Cgroup
	Restarts int32
}

// InPlace reports whether the kernel's limits are those of the pod's spec.
func (p Pod) InPlace() bool {
	return near(p.Cgroup.CPULimit, p.Limits.CPU) && near(float64(p.Cgroup.MemoryLimit), p.Limits.Memory)
}

// near allows for what the kernel rounds: quotas to 10 µs, memory to pages.
func near(a, b float64) bool { return a-b <= 0.001*b && b-a <= 0.001*b }

// Workload is one Deployment, its pods and its profile.
type Workload struct {
	Name string
	Pods []Pod
	// Profile is the workload's profile; its name is empty while there is none.
	Profile v1alpha1.WorkloadProfile
	// Recommended requests and limits of a pod.
	Recommended, RecommendedLimits Amounts
}

// Sufficient reports whether the profile is acted on, or why not yet.
func (w Workload) Sufficient() (bool, string) {
	c := meta.FindStatusCondition(w.Profile.Status.Conditions, v1alpha1.ConditionSufficient)
	if c == nil {
		return false, "no profile yet"
	}
	return c.Status == "True", c.Message
}

// use is a container's CPU clock at a moment, and the cores used up to it.
type use struct {
	at      time.Time
	seconds float64
	cores   float64
}

// leastSpan is the least time that a use in cores is taken over: below it a
// burst of 100 ms would look like steady use.
const leastSpan = 900 * time.Millisecond

// Observe reads the workloads as they are now, sorted by name.
func (s *Scenario) Observe(ctx context.Context) ([]Workload, error) {
	var pods corev1.PodList
	if err := s.Client.List(ctx, &pods, client.InNamespace(Namespace)); err != nil {
		return nil, fmt.Errorf("listing the workloads' pods: %w", err)
	}
	var profiles v1alpha1.WorkloadProfileList
	if err := s.Client.List(ctx, &profiles); err != nil {
		return nil, fmt.Errorf("listing the profiles: %w", err)
	}
	byName := map[string]*Workload{}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
			continue
		}
		p, err := s.observePod(pod)
		if err != nil {
			return nil, err
		}
		name := pod.Labels["app.kubernetes.io/name"]
		w := byName[name]
		if w == nil {
			w = &Workload{Name: name}
			byName[name] = w
		}
		w.Pods = append(w.Pods, p)
		for _, profile := range profiles.Items {
			if profile.Name == pod.Annotations[v1alpha1.AnnotationProfileRef] {
				w.Profile = profile
			}
		}
	}
	var all []Workload
	for _, w := range byName {
		w.recommend()
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b Workload) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (s *Scenario) observePod(pod corev1.Pod) (Pod, error) {
	p := Pod{Object: pod}
	for _, c := range pod.Spec.Containers {
		p.Requested = p.Requested.plus(amountsOf(c.Resources.Requests))
		p.Limits = p.Limits.plus(amountsOf(c.Resources.Limits))
	}
	for _, c := range pod.Status.ContainerStatuses {
		p.Restarts += c.RestartCount
	}
	var err error
	if p.Cgroup, err = s.Cluster.ReadCgroup(&pod, Container); err != nil {
		return p, err
	}
	now := use{at: time.Now(), seconds: p.Cgroup.CPUSeconds}
	last, ok := s.uses[string(pod.UID)]
	if span := now.at.Sub(last.at); ok && span >= leastSpan {
		now.cores = (now.seconds - last.seconds) / span.Seconds()
	} else if ok {
		now = last
	}
	s.uses[string(pod.UID)] = now
	p.Used = Amounts{now.cores, float64(p.Cgroup.Memory)}
	return p, nil
}

func amountsOf(list corev1.ResourceList) Amounts {
	return Amounts{list.Cpu().AsApproximateFloat64(), list.Memory().AsApproximateFloat64()}
}

// recommend reads the recommendations of the profile's container.
func (w *Workload) recommend() {
	for _, c := range w.Profile.Status.Containers {
		for _, r := range c.Recommendations {
			into := &w.Recommended
			if r.Field == v1alpha1.FieldLimit {
				into = &w.RecommendedLimits
			}
			switch r.Resource {
			case corev1.ResourceCPU:
				into.CPU += r.Value.AsApproximateFloat64()
			case corev1.ResourceMemory:
				into.Memory += r.Value.AsApproximateFloat64()
			}
		}
	}
}

// Reserved is what all running pods of the workloads request together.
func Reserved(all []Workload) (sum Amounts) {
	for _, w := range all {
		for _, p := range w.Pods {
			sum = sum.plus(p.Requested)
		}
	}
	return sum
}
