package recommend_test

import (
	"math/rand/v2"
	"testing"

	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
)

// BenchmarkCompute is one profile of two containers with five resources each, read from memory.
func BenchmarkCompute(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	busy := func(name string) recommend.Container {
		c := container(name, 0.1, 100*mi)
		for _, r := range sample.Resources {
			c.Series[r] = flat(1, 1)
			for range 5000 {
				c.Series[r].Add(scale(r.KubeName())*rng.Float64(), 1000)
			}
		}
		return c
	}
	in := input(defaults(), busy("app"), busy("sidecar"))
	b.ReportAllocs()
	for range b.N {
		recommend.Compute(in)
	}
}
