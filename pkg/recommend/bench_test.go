package recommend_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
)

// perProfile is BenchmarkCompute's figure, in nanoseconds, from its longest run.
var perProfile float64

func TestMain(m *testing.M) {
	code := m.Run()
	if perProfile > 0 {
		fmt.Printf("RESULT recommend_profile_us %.1f us\n", perProfile/1000)
	}
	os.Exit(code)
}

// BenchmarkCompute is one profile of two containers with five resources each, as merged over eight days: a use that varies
// by a third, over a hundred buckets or so, with a tail.
func BenchmarkCompute(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	busy := func(name string) recommend.Container {
		c := container(name, 0.1, 100*mi)
		for _, r := range sample.Resources {
			c.Series[r] = flat(1, 1)
			for range 5000 {
				c.Series[r].Add(0.3*scale(r.KubeName())*math.Exp(0.33*rng.NormFloat64()), 1000)
			}
		}
		return c
	}
	in := input(defaults(), busy("app"), busy("sidecar"))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		recommend.Compute(in)
	}
	perProfile = float64(b.Elapsed().Nanoseconds()) / float64(b.N)
}
