package backtest

import (
	"time"

	"plimsoll.dev/pkg/sample"
)

// Sizes are a container's requests and limits in cores and bytes; 0 where none is set.
type Sizes struct {
	CPURequest, CPULimit       sample.Amount
	MemoryRequest, MemoryLimit sample.Amount
}

// Rule sizes one container from what it sees of its use.
type Rule interface {
	// Name of the rule, for the report.
	Name() string
	// Observe takes in the use over a step that ends at a moment; a limit in force cuts it off. NaN is no measurement.
	Observe(at time.Time, covers time.Duration, cpu, memory float64)
	// OOM takes in an OOM kill at a memory limit.
	OOM(at time.Time, limit sample.Amount)
	// Sizes returns what the rule would set now; false if it does not act yet.
	Sizes(now time.Time) (Sizes, bool)
}
