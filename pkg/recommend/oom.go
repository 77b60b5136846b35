package recommend

import (
	"math"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/sample"
)

// afterKills returns the memory that the container's OOM kills call for, and the kill that calls for the most, with the
// limit it is taken to have hit.
//
// Each kill calls for the larger of limit × bump and limit + minBump at once; what that is above the limit fades with
// the half-life, the limit itself counts for as long as the kill is remembered. The most demanding kill decides, so
// their order and number do not matter, and many kills at one limit call for no more than one.
func afterKills(in *Input, c *Container) (sample.Amount, Kill, bool) {
	var most sample.Amount
	var by Kill
	oom := in.Settings.OOM
	for _, k := range c.Kills {
		if k.Limit = limitHit(k, c); k.Node || !(k.Limit > 0) {
			continue
		}
		age := max(0, in.Now.Sub(k.Time))
		if in.Settings.Retention.Window > 0 && age > in.Settings.Retention.Window {
			continue
		}
		raise := max(k.Limit*sample.Amount(oom.Bump)-k.Limit, oom.MinBump)
		if oom.HalfLife > 0 {
			raise *= sample.Amount(math.Exp2(-age.Hours() / oom.HalfLife.Hours()))
		}
		need := k.Limit + raise
		// Equal needs: the newer kill is named, whatever the order.
		if need > most || need == most && k.Time.After(by.Time) {
			most, by = need, k
		}
	}
	return most, by, most > 0
}

// limitHit is the limit at the kill; where the kernel's report lacks it, the use then or the limit now stand in.
func limitHit(k Kill, c *Container) sample.Amount {
	switch {
	case k.Limit > 0:
		return k.Limit
	case k.Usage > 0:
		return k.Usage
	default:
		return c.Limits[corev1.ResourceMemory]
	}
}

func limitKills(kills []Kill) int {
	n := 0
	for _, k := range kills {
		if !k.Node {
			n++
		}
	}
	return n
}
