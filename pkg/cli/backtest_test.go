package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	preset = "../../charts/plimsoll/files/presets/balanced.yaml"
	trace  = "../../test/testdata/traces/bitbrains.csv"
)

func TestBacktest(t *testing.T) {
	out, err := run(t, "backtest", "--policy", preset, "--trace", trace)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CPU SLACK", "OOM-SEVERE", "\nbalanced ", "\nVPA ", "\nKRR ", "\nKubecost "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

func TestBacktestMistakes(t *testing.T) {
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := map[string]struct {
		args []string
		want string
	}{
		"nothing given":     {nil, "give --policy and --trace"},
		"no such policy":    {[]string{"--policy", "nowhere.yaml", "--trace", trace}, "reading the policy: open nowhere.yaml"},
		"no such trace":     {[]string{"--policy", preset, "--trace", "nowhere.csv"}, "opening the trace: open nowhere.csv"},
		"another kind":      {[]string{"--policy", file("a.yaml", "kind: Pod\n"), "--trace", trace}, `kind "Pod" is not ResourcePolicy or ClusterResourcePolicy`},
		"a misspelt field":  {[]string{"--policy", file("b.yaml", "kind: ResourcePolicy\nspec: {resource: []}\n"), "--trace", trace}, `unknown field "resource"`},
		"a wrong value":     {[]string{"--policy", file("c.yaml", "kind: ResourcePolicy\nspec: {resources: [{resource: cpu, field: request, aggregation: p10}]}\n"), "--trace", trace}, "spec.resources[0].aggregation"},
		"not a trace":       {[]string{"--policy", preset, "--trace", file("d.csv", "a,b\n1,2\n")}, "name the columns timestamp and cpu or memory"},
		"an unknown output": {[]string{"--policy", preset, "--trace", trace, "-o", "xml"}, `output "xml" is not known`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := run(t, append([]string{"backtest"}, tt.args...)...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
