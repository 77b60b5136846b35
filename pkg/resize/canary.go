package resize

import (
	"math"
	"time"
)

// Canary says how many more of n pods may be resized now when a share of them
// goes first: records are those of the profile's pods, wave is when the
// recommendations last changed. A negative count means as many as wanted.
func Canary(records []Record, n int, fraction float64, watch time.Duration, wave, now time.Time) (int, Reason) {
	if fraction <= 0 {
		return -1, ""
	}
	first := max(1, int(math.Ceil(fraction*float64(n))))
	begun, watched := 0, 0
	for _, r := range records {
		if r.At.Before(wave) {
			continue
		}
		switch r.State {
		case StateRolledBack, StateReverted:
			return 0, ReasonCanaryFailed
		case StateRequested:
			begun++
		case StateResized:
			begun++
			if !now.Before(r.Since.Add(watch)) {
				watched++
			}
		}
	}
	switch {
	case watched >= first:
		return -1, ""
	case begun < first:
		return first - begun, ""
	}
	return 0, ReasonCanary
}
