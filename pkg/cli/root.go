// Package cli is kubectl-plimsoll: a thin shell over the packages that do the work.
package cli

import (
	"github.com/spf13/cobra"

	"plimsoll.dev/pkg/version"
)

// New returns the command with all its subcommands. Its exit error is printed by the caller.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-plimsoll",
		Short:         "See why Plimsoll recommends what it does, and try policies on recorded use",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl plimsoll"},
	}
	root.AddCommand(newBacktest())
	return root
}
