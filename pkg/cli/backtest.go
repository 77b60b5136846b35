package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/cli/backtest"
	"plimsoll.dev/pkg/policy"
)

func newBacktest() *cobra.Command {
	var policies, traces []string
	var output string
	c := &cobra.Command{
		Use:   "backtest --policy FILE --trace FILE",
		Short: "Replay a usage trace under a policy, and under other tools' rules beside it",
		Long: `Replay a usage trace through sketch, decay and recommendation as a policy says, and report what would have come of it:
slack (requested and not used), the share of samples over the request, over the memory limit (OOM-severe) and over the
CPU limit (throttled), and changes a day. The same for the rules of VPA, KRR and Kubecost, whose memory limit is their
request. Each rule sees use cut off at the limits it set itself, as it would in a cluster. No cluster is needed.

The trace is a CSV file with a header: timestamp, cpu (cores) and memory (bytes), and series if there are several.`,
		Example: `  kubectl plimsoll backtest --policy balanced.yaml --trace usage.csv
  kubectl plimsoll backtest --policy balanced.yaml --policy cost.yaml --trace usage.csv --output markdown`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return runBacktest(c.InOrStdin(), c.OutOrStdout(), policies, traces, backtest.Format(output))
		},
	}
	c.Flags().StringArrayVar(&policies, "policy", nil, "file with a ResourcePolicy or ClusterResourcePolicy; may be repeated")
	c.Flags().StringArrayVar(&traces, "trace", nil, "CSV file with usage, - for standard input; may be repeated")
	c.Flags().StringVarP(&output, "output", "o", string(backtest.Table), "table, markdown or json")
	return c
}

func runBacktest(in io.Reader, out io.Writer, files, traces []string, format backtest.Format) error {
	if len(files) == 0 || len(traces) == 0 {
		return errors.New("give --policy and --trace; see kubectl plimsoll backtest --help")
	}
	var policies []backtest.NamedPolicy
	for _, file := range files {
		p, err := readPolicy(file)
		if err != nil {
			return err
		}
		policies = append(policies, p)
	}
	var series []backtest.Series
	for _, trace := range traces {
		more, err := readTrace(in, trace)
		if err != nil {
			return err
		}
		series = append(series, more...)
	}
	return backtest.Write(out, backtest.Run(series, policies...), format)
}

func readTrace(in io.Reader, file string) ([]backtest.Series, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("opening the trace: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		in = f
	}
	series, err := backtest.ReadTrace(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return series, nil
}

// readPolicy reads a policy of either kind; its name is the object's, or else the file's.
func readPolicy(file string) (backtest.NamedPolicy, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return backtest.NamedPolicy{}, fmt.Errorf("reading the policy: %w", err)
	}
	var p v1alpha1.ClusterResourcePolicy // both kinds have one form
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return backtest.NamedPolicy{}, fmt.Errorf("reading the policy %s: %w", file, err)
	}
	if p.Kind != v1alpha1.KindClusterResourcePolicy && p.Kind != v1alpha1.KindResourcePolicy {
		return backtest.NamedPolicy{}, fmt.Errorf("reading the policy %s: kind %q is not ResourcePolicy or ClusterResourcePolicy", file, p.Kind)
	}
	settings, err := policy.SettingsOf(p.Spec)
	if err != nil {
		return backtest.NamedPolicy{}, fmt.Errorf("reading the policy %s: %w", file, err)
	}
	if p.Name == "" {
		p.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	return backtest.NamedPolicy{Name: p.Name, Settings: settings}, nil
}
