package backtest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"plimsoll.dev/pkg/policy"
)

// Format is how a report is written.
type Format string

// The formats of a report.
const (
	Table    Format = "table"
	Markdown Format = "markdown"
	JSON     Format = "json"
)

// NamedPolicy is a policy under test.
type NamedPolicy struct {
	Name     string
	Settings policy.Settings
}

// Run replays every series under every policy and under the rules of other tools, and returns one score per rule: the mean
// over the series. All are scored from the moment on at which every policy may have learned enough. Policies are followed
// as their resize sections say, the other rules as a policy's defaults say.
func Run(series []Series, policies ...NamedPolicy) []Score {
	var warmup time.Duration
	for _, p := range policies {
		warmup = max(warmup, p.Settings.Readiness.MinTimeSpan)
	}
	defaults := policy.DefaultSettings().Resize
	var byRule [][]Score
	for _, s := range series {
		contenders := make([]Contender, 0, len(policies)+3)
		for _, p := range policies {
			resize := p.Settings.Resize
			contenders = append(contenders, Contender{Plimsoll(p.Name, p.Settings), resize.Interval, resize.Threshold})
		}
		for _, rule := range []Rule{VPA(), KRR(), Kubecost()} {
			contenders = append(contenders, Contender{rule, defaults.Interval, defaults.Threshold})
		}
		for i, score := range Replay(s, warmup, contenders...) {
			if i == len(byRule) {
				byRule = append(byRule, nil)
			}
			byRule[i] = append(byRule[i], score)
		}
	}
	out := make([]Score, len(byRule))
	for i, scores := range byRule {
		out[i] = Mean(scores)
	}
	return out
}

// figures are the numbers of a score, by their names in JSON.
var figures = []struct {
	name string
	of   func(*Score) *float64
}{
	{"cpuSlack", func(s *Score) *float64 { return &s.CPUSlack }},
	{"cpuOver", func(s *Score) *float64 { return &s.CPUOver }},
	{"throttled", func(s *Score) *float64 { return &s.Throttled }},
	{"memorySlack", func(s *Score) *float64 { return &s.MemorySlack }},
	{"memoryOver", func(s *Score) *float64 { return &s.MemoryOver }},
	{"oomSevere", func(s *Score) *float64 { return &s.OOMSevere }},
	{"changesPerDay", func(s *Score) *float64 { return &s.Changes }},
	{"unsized", func(s *Score) *float64 { return &s.Unsized }},
	{"cpuRequest", func(s *Score) *float64 { return &s.CPU }},
	{"memoryRequest", func(s *Score) *float64 { return &s.Memory }},
}

func exists(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Mean returns the mean of the scores of one rule, each figure over the scores that have it.
func Mean(scores []Score) Score {
	var out Score
	for _, figure := range figures {
		var sum, n float64
		for i := range scores {
			if v := *figure.of(&scores[i]); exists(v) {
				sum, n = sum+v, n+1
			}
		}
		*figure.of(&out) = sum / n
	}
	if len(scores) > 0 {
		out.Rule = scores[0].Rule
	}
	return out
}

var titles = []string{
	"rule", "cpu slack", "over cpu request", "throttled", "memory slack", "over memory request", "OOM-severe", "changes/day", "unsized",
}

func (s Score) cells() []string {
	return []string{
		s.Rule, share(s.CPUSlack), share(s.CPUOver), share(s.Throttled), share(s.MemorySlack), share(s.MemoryOver),
		share(s.OOMSevere), decimal(s.Changes), share(s.Unsized),
	}
}

// Write writes scores in a format.
func Write(w io.Writer, scores []Score, f Format) error {
	var err error
	switch f {
	case Table:
		rows := strings.ToUpper(strings.Join(titles, "\t")) + "\n"
		for _, s := range scores {
			rows += strings.Join(s.cells(), "\t") + "\n"
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		if _, err = io.WriteString(t, rows); err == nil {
			err = t.Flush()
		}
	case Markdown:
		var b strings.Builder
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
		for _, s := range scores {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(s.cells(), " | "))
		}
		_, err = io.WriteString(w, b.String())
	case JSON:
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		err = out.Encode(known(scores))
	default:
		return fmt.Errorf("output %q is not known: use %s, %s or %s", f, Table, Markdown, JSON)
	}
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// known leaves out figures that do not exist, which JSON cannot hold.
func known(scores []Score) []map[string]any {
	out := make([]map[string]any, 0, len(scores))
	for i := range scores {
		m := map[string]any{"rule": scores[i].Rule}
		for _, figure := range figures {
			if v := *figure.of(&scores[i]); exists(v) {
				m[figure.name] = v
			}
		}
		out = append(out, m)
	}
	return out
}

func share(v float64) string {
	if !exists(v) {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", v*100)
}

func decimal(v float64) string {
	if !exists(v) {
		return "–"
	}
	return fmt.Sprintf("%.2f", v)
}
