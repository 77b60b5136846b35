package recommend

import "strings"

// separator stands between the steps of a short form, equals before a step's value.
const (
	separator = "; "
	equals    = " = "
)

// ParseShort splits a short form, as Recommendation.Short writes it, into its steps; what is not a step has no value.
func ParseShort(s string) []StepExplanation {
	if s == "" {
		return nil
	}
	var out []StepExplanation
	for _, part := range strings.Split(s, separator) {
		input, value := part, ""
		if i := strings.LastIndex(part, equals); i >= 0 {
			input, value = part[:i], part[i+len(equals):]
		}
		out = append(out, StepExplanation{Input: input, Value: value})
	}
	return out
}
