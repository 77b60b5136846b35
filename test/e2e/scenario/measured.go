package scenario

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

// CPUSeconds is what Redis holds of a workload's CPU use under a measurement
// hash, in core-seconds; 0 if it holds nothing.
func (s *Scenario) CPUSeconds(ctx context.Context, hash string) (float64, error) {
	measurements, err := store.Open(store.Config{URL: s.RedisURL})
	if err != nil {
		return 0, err
	}
	defer measurements.Close()
	// Without a half-life nothing fades, so weights are the milliseconds covered.
	w, err := measurements.Window(ctx, hash, time.Now(), store.Retention{Window: 24 * time.Hour})
	if err != nil {
		return 0, err
	}
	c := w.Containers[Container]
	if c == nil {
		return 0, nil
	}
	var sum float64
	for _, sketches := range []store.Sketches{c.Usage, c.Startup} {
		if cpu := sketches[sample.CPU]; cpu != nil {
			sum += cpu.Mean() * cpu.Weight() / 1000
		}
	}
	return sum, nil
}

// Admit sends a pod through admission without creating it and returns it as
// it would be stored.
func (s *Scenario) Admit(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pod = pod.DeepCopy()
	if err := s.Client.Create(ctx, pod, client.DryRunAll); err != nil {
		return nil, fmt.Errorf("admitting the pod %s: %w", pod.Name, err)
	}
	return pod, nil
}
