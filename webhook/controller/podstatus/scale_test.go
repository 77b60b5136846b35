package podstatus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	names "plimsoll.dev/pkg/podstatus"
)

// Scaled from five to two: the reports of three go with their pods.
func TestScaledDown(t *testing.T) {
	w := newWorld(t)
	var replicas []*replica
	var pods []string
	for i := range 5 {
		pods = append(pods, fmt.Sprintf("web-%d", i))
		replicas = append(replicas, w.startReplica(pods[i]))
	}
	p := w.policy("scaled")
	w.says(p, names.ReasonCompiled, "5/5 replicas work by generation 1", pods...)
	for _, r := range replicas[2:] {
		r.kill()
		w.leave(r.pod.Name)
	}
	w.says(p, names.ReasonCompiled, "2/2 replicas work by generation 1", pods[:2]...)
	w.eventually("the reports to be collected", func() error {
		if n := len(w.reports()); n != 2 {
			return fmt.Errorf("%d reports", n)
		}
		return nil
	})
}

// Five replicas, a hundred policies: how long until an edit stands in every
// report and in the status, and how many writes that takes.
func BenchmarkEdit(b *testing.B) {
	w := newWorld(b)
	const replicas, policies = 5, 100
	for i := range replicas {
		w.startReplica(fmt.Sprintf("web-%d", i))
	}
	begin := time.Now()
	for i := range policies {
		w.policy(fmt.Sprintf("p%d", i))
	}
	right := func(generation int64, which ...string) {
		b.Helper()
		w.eventually("all statuses", func() error {
			var list v1alpha1.ClusterResourcePolicyList
			if err := w.c.List(context.Background(), &list); err != nil {
				return err
			}
			for _, p := range list.Items {
				if len(which) > 0 && !slices.Contains(which, p.Name) {
					continue
				}
				if len(p.Status.ByPod) != replicas || slices.ContainsFunc(p.Status.ByPod, func(s v1alpha1.PolicyStatusByPod) bool { return s.ParentGeneration != generation }) {
					return errors.New(p.Name)
				}
			}
			return nil
		})
	}
	right(1)
	cold := time.Since(begin)
	w.quiet()
	before := writes()
	var took, worst time.Duration
	n := 0
	for b.Loop() {
		name := fmt.Sprintf("p%d", n%policies)
		p := &v1alpha1.ClusterResourcePolicy{}
		if err := w.c.Get(context.Background(), client.ObjectKey{Name: name}, p); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		w.edit(p, int(p.Generation))
		right(p.Generation, name)
		took += time.Since(began)
		worst = max(worst, time.Since(began))
		n++
	}
	w.quiet()
	perEdit := float64(writes()-before) / float64(n)
	if worst > 5*time.Second || perEdit != replicas+1 {
		b.Errorf("an edit took up to %s and %.2f writes", worst, perEdit)
	}
	b.Logf("RESULT replicas=%d policies=%d all_created_s=%.1f edit_ms=%d edit_worst_ms=%d writes_per_edit=%.2f",
		replicas, policies, cold.Seconds(), took.Milliseconds()/int64(n), worst.Milliseconds(), perEdit)
}
