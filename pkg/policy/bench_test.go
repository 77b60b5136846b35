package policy_test

import (
	"fmt"
	"runtime"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

// fleet is n cluster policies, each with a namespace expression, a label
// selector and an annotation expression, of which only the last in rank matches.
// similar ones ask about the same label and annotation and differ in what they
// expect of the annotation alone: nothing but the last question tells them apart.
func fleet(n int, similar bool) ([]v1alpha1.ClusterResourcePolicy, policy.Input) {
	var crps []v1alpha1.ClusterResourcePolicy
	for i := range n {
		ns, team := v1alpha1.Pattern(fmt.Sprintf("/team-%04d-.*/", i)), fmt.Sprintf("team-%04d", i)
		if similar {
			ns, team = "/team-.*-prod/", "web"
		}
		crps = append(crps, crp(fmt.Sprintf("policy-%04d", i), int32(n-i), v1alpha1.Selector{
			Namespaces:    &v1alpha1.NamespaceSelector{Include: []v1alpha1.Pattern{ns}},
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"acme.org/team": team}},
			Annotations:   map[string]v1alpha1.Pattern{"acme.org/unit": v1alpha1.Pattern(fmt.Sprintf("/unit-%04d-.+/", i))},
		}))
	}
	team := fmt.Sprintf("team-%04d", n-1)
	if similar {
		team = "web"
	}
	labels := map[string]string{"acme.org/team": team, "app.kubernetes.io/name": "shop", "app.kubernetes.io/component": "web",
		"app.kubernetes.io/version": "1.2.3", "pod-template-hash": "abcdef1234", "plimsoll.dev/mode": "resize"}
	annotations := map[string]string{"acme.org/unit": fmt.Sprintf("unit-%04d-b", n-1), "prometheus.io/scrape": "true"}
	return crps, policy.NewInput(pod(labels, annotations), fmt.Sprintf("team-%04d-prod", n-1), "Deployment")
}

func BenchmarkResolve(b *testing.B) {
	for _, similar := range []bool{false, true} {
		for _, n := range []int{10, 100, 1000} {
			name := fmt.Sprintf("policy_resolve_%d", n)
			if similar {
				name += "_similar"
			}
			var perOp float64 // of the longest run, which is the last
			b.Run(name, func(b *testing.B) {
				crps, in := fleet(n, similar)
				x := policy.NewIndex(nil, crps)
				if p, ok := x.Resolve(in); !ok || p.Ref.Name != crps[n-1].Name {
					b.Fatal("the last policy does not govern")
				}
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					x.Resolve(in)
				}
				perOp = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			})
			fmt.Printf("RESULT %s %.0f ns/op\n", name, perOp)
		}
	}
}

// The first pod with a value nobody has seen yet pays for every expression once.
func BenchmarkResolveNewValue(b *testing.B) {
	crps, _ := fleet(1000, true)
	x := policy.NewIndex(nil, crps)
	inputs := make([]policy.Input, 4096)
	for i := range inputs {
		p := pod(map[string]string{"acme.org/team": "web"}, map[string]string{"acme.org/unit": fmt.Sprintf("unit-0999-%d", i)})
		inputs[i] = policy.NewInput(p, "team-0999-prod", "Deployment")
	}
	b.ResetTimer()
	for i := range b.N {
		x.Resolve(inputs[i%len(inputs)])
	}
}

func BenchmarkNewIndex(b *testing.B) {
	crps, _ := fleet(1000, false)
	b.ReportAllocs()
	for range b.N {
		runtime.KeepAlive(policy.NewIndex(nil, crps))
	}
}

func TestResolveAllocatesNothing(t *testing.T) {
	crps, in := fleet(1000, true)
	x := policy.NewIndex(nil, crps)
	if n := testing.AllocsPerRun(100, func() { x.Resolve(in) }); n != 0 {
		t.Errorf("Resolve makes %v allocations", n)
	}
}
