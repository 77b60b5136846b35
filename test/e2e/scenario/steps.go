package scenario

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/test/node"
)

//go:embed manifests/*.yaml
var manifests embed.FS

// Need is what a workload is known to use, by its arguments.
type Need struct {
	Pods   int
	CPU    float64 // cores
	Memory float64 // bytes at the most, without the few of the program itself
}

// Needs are those of manifests/workloads.yaml.
var Needs = map[string]Need{
	"steady":  {Pods: 2, CPU: 0.1, Memory: 100 << 20},
	"bursty":  {Pods: 1, CPU: 0.1, Memory: 60 << 20},
	"growing": {Pods: 1, CPU: 0.03, Memory: 160 << 20},
}

// Patience is how long the issue gives the profiles, and then the pods.
const Patience = 3 * time.Minute

// interval is the time between two looks at the workloads.
const interval = 2 * time.Second

// See is called with each look at the workloads.
type See func([]Workload)

// Deploy creates the policies and the workloads and waits until all pods run.
func (s *Scenario) Deploy(ctx context.Context, see See) ([]Workload, error) {
	if _, err := s.Cluster.Kubectl(ctx, "create", "namespace", Namespace); err != nil {
		return nil, err
	}
	for _, name := range []string{"policies", "workloads"} {
		documents, err := manifests.ReadFile("manifests/" + name + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("reading the manifests: %w", err)
		}
		if err := s.Apply(ctx, name, string(documents)); err != nil {
			return nil, err
		}
	}
	return s.watch(ctx, "the pods to run", see, func(all []Workload) error {
		if n := len(all); n != len(Needs) {
			return fmt.Errorf("pods of %d workloads run, want %d", n, len(Needs))
		}
		for _, w := range all {
			if want := Needs[w.Name].Pods; len(w.Pods) != want {
				return fmt.Errorf("%d pods of %s run, want %d", len(w.Pods), w.Name, want)
			}
		}
		return nil
	})
}

// Learn waits until every profile is Sufficient.
func (s *Scenario) Learn(ctx context.Context, see See) ([]Workload, error) {
	return s.watch(ctx, "every profile to be Sufficient", see, func(all []Workload) error {
		for _, w := range all {
			if ok, why := w.Sufficient(); !ok {
				return fmt.Errorf("%s: %s", w.Name, why)
			}
		}
		return nil
	})
}

// Resize waits until every pod of before is resized: other requests than it
// was created with, the kernel's limits those of its spec.
func (s *Scenario) Resize(ctx context.Context, before []Workload, see See) ([]Workload, error) {
	old := map[string]Pod{}
	for _, w := range before {
		for _, p := range w.Pods {
			old[p.Object.Name] = p
		}
	}
	return s.watch(ctx, "every pod to be resized in place", see, func(all []Workload) error {
		for _, w := range all {
			for _, p := range w.Pods {
				was, ok := old[p.Object.Name]
				switch {
				case !ok:
					return node.Final(fmt.Errorf("the pod %s was not there before: pods are to be resized, not replaced", p.Object.Name))
				case p.Requested == was.Requested:
					return fmt.Errorf("the pod %s still requests %v cores", p.Object.Name, p.Requested.CPU)
				case !p.InPlace():
					return fmt.Errorf("the cgroup of the pod %s is %+v, its limits are %+v", p.Object.Name, p.Cgroup, p.Limits)
				}
			}
		}
		return nil
	})
}

// Scale adds a pod to a workload and returns it once it runs.
func (s *Scenario) Scale(ctx context.Context, workload string, see See) (added Pod, all []Workload, err error) {
	before, err := s.Observe(ctx)
	if err != nil {
		return Pod{}, nil, err
	}
	var names []string
	for _, w := range before {
		for _, p := range w.Pods {
			names = append(names, p.Object.Name)
		}
	}
	d := &appsv1.Deployment{}
	if err := s.Client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: workload}, d); err != nil {
		return Pod{}, nil, fmt.Errorf("reading the Deployment %s: %w", workload, err)
	}
	replicas := *d.Spec.Replicas + 1
	d.Spec.Replicas = &replicas
	if err := s.Client.Update(ctx, d); err != nil {
		return Pod{}, nil, fmt.Errorf("scaling the Deployment %s: %w", workload, err)
	}
	all, err = s.watch(ctx, "the new pod to run", see, func(all []Workload) error {
		for _, w := range all {
			for _, p := range w.Pods {
				if w.Name == workload && !slices.Contains(names, p.Object.Name) {
					added = p
					return nil
				}
			}
		}
		return errors.New("it does not run")
	})
	return added, all, err
}

// watch looks at the workloads again and again until done says nil, or for as
// long as Patience; an error tells what done last said.
func (s *Scenario) watch(ctx context.Context, what string, see See, done func([]Workload) error) ([]Workload, error) {
	deadline := time.Now().Add(Patience)
	for {
		if err := s.check(); err != nil {
			return nil, err
		}
		all, err := s.Observe(ctx)
		if err == nil {
			see(all)
			if err = done(all); err == nil {
				return all, nil
			}
		}
		if err != nil && node.IsFinal(err) {
			return all, fmt.Errorf("waiting for %s: %w", what, err)
		}
		if time.Now().After(deadline) {
			return all, fmt.Errorf("waiting %s for %s: %w\n%s", Patience, what, err, s.Webhook.Tail())
		}
		select {
		case <-ctx.Done():
			return all, ctx.Err()
		case <-time.After(interval):
		}
	}
}

// check says which program has ended.
func (s *Scenario) check() error {
	return errors.Join(s.Cluster.Check(), s.Webhook.Check(), s.Agent.Check())
}
