package cgroup

import (
	"bytes"
	"fmt"
	"time"
)

// Pressure is the stall time of a cgroup since it was made: Some while at least one task waited, Full while all did.
// The zero value is that of a kernel without PSI.
type Pressure struct {
	CPUSome, CPUFull       time.Duration
	MemorySome, MemoryFull time.Duration
}

// cpu.pressure and memory.pressure (Documentation/accounting/psi.rst): averages in percent over 10, 60 and 300 s, and
// the total in microseconds. The full line of cpu.pressure exists since 5.13. PSI disabled on the command line makes
// opening fail, or reading with EOPNOTSUPP.
//
//	some avg10=0.00 avg60=0.12 avg300=0.05 total=182913
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=1202
func parsePressure(b []byte) (some, full time.Duration, err error) {
	seen := false
	for len(b) > 0 {
		key, value, rest := nextLine(b)
		b = rest
		to := &full
		switch string(key) {
		case "some":
			to, seen = &some, true
		case "full":
		default:
			continue
		}
		i := bytes.LastIndex(value, totalField)
		if i < 0 {
			return 0, 0, fmt.Errorf("%s: no total=", key)
		}
		n, err := uintOf(value[i+len(totalField):])
		if err != nil {
			return 0, 0, fmt.Errorf("%s: total: %w", key, err)
		}
		*to = nanos(n, time.Microsecond)
	}
	if !seen {
		return 0, 0, missingKeyError{"some"}
	}
	return some, full, nil
}

var totalField = []byte(" total=")
