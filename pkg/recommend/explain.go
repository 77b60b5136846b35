package recommend

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

// Operation is what a step of a derivation does.
type Operation string

// The operations, in the order in which they apply.
const (
	OpAggregate Operation = "aggregate"
	OpHeadroom  Operation = "headroom"
	OpStartup   Operation = "startup"
	OpOOM       Operation = "oom"
	OpFloor     Operation = "floor"
	OpCap       Operation = "cap"
	OpNode      Operation = "node"
	OpRound     Operation = "round"
	OpLimit     Operation = "limit"
)

// Step is one step of a derivation: an operation, what it used, and the value after it. The text is made only when asked
// for.
type Step struct {
	Operation   Operation
	Aggregation policy.Aggregation // of aggregate and startup
	// Operand is the quantile, the factor, the bound or the limit that was hit, in the unit of the value.
	Operand float64
	Factor  float64 // headroom within startup
	Samples uint64
	Hours   int
	Minutes int
	Kills   int
	Age     time.Duration // of the OOM kill
	Value   sample.Amount
}

// Input says in words what the step used, such as "p95 of 8640 samples covering 24 h".
func (s Step) Input(r corev1.ResourceName) string {
	operand := Format(sample.Amount(s.Operand), r)
	switch s.Operation {
	case OpAggregate:
		return fmt.Sprintf("%s of %d samples covering %s", s.aggregation(), s.Samples, covered(s.Hours, s.Minutes))
	case OpHeadroom:
		return "× headroom " + number(s.Operand)
	case OpStartup:
		return fmt.Sprintf("at least start-up's %s of %d samples × %s", s.aggregation(), s.Samples, number(s.Factor))
	case OpOOM:
		return fmt.Sprintf("at least what the OOM kill %s ago at limit %s asks for (%d remembered)", ago(s.Age), operand, s.Kills)
	case OpFloor:
		return "policy's min " + operand
	case OpCap:
		return "policy's max " + operand
	case OpNode:
		return "largest node's allocatable " + operand
	case OpRound:
		return "rounded to " + operand
	default:
		return "not above the limit " + operand
	}
}

// Short derives the value in one line of at most 512 bytes.
func (r Recommendation) Short() string {
	var b strings.Builder
	before := ""
	for _, s := range r.Steps {
		value := Format(s.Value, r.Resource)
		if value == before && s.idle() {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(separator)
		}
		b.WriteString(s.Input(r.Resource))
		b.WriteString(equals)
		b.WriteString(value)
		before = value
	}
	if r.Share.Censored {
		b.WriteString(separator + "use above the present limit does not show")
	}
	return truncate(b.String(), 512)
}

// idle operations say nothing when they leave the value as it was.
func (s Step) idle() bool {
	return s.Operation == OpStartup || s.Operation == OpOOM || s.Operation == OpRound
}

// truncate cuts at a rune's boundary.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const dots = "…"
	cut := n - len(dots)
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + dots
}

func (s Step) aggregation() string {
	if s.Aggregation == policy.Percentile {
		return "p" + number(math.Round(s.Operand*1e4)/100)
	}
	return string(s.Aggregation)
}

func covered(hours, minutes int) string {
	if hours < 2 {
		return strconv.Itoa(minutes) + " min"
	}
	return strconv.Itoa(hours) + " h"
}

func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	default:
		return strconv.Itoa(int(d.Hours())) + " h"
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// Format writes an amount for people: millicores below ten cores, mebibytes below ten gibibytes, at most two decimals.
func Format(a sample.Amount, r corev1.ResourceName) string {
	v := float64(a)
	if r == corev1.ResourceCPU {
		if v < 10 {
			return decimals(v*1000, 1) + "m"
		}
		return decimals(v, 2)
	}
	switch {
	case v < 1<<20:
		return decimals(v/(1<<10), 1) + "Ki"
	case v < 10<<30:
		return decimals(v/(1<<20), 1) + "Mi"
	default:
		return decimals(v/(1<<30), 2) + "Gi"
	}
}

func decimals(v float64, n int) string {
	s := strconv.FormatFloat(v, 'f', n, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
