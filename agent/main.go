// Command agent measures what the containers of its node use and writes it to Redis. One runs on each node.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"plimsoll.dev/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

func command() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "agent",
		Short: "Measure what a node's containers really use",
		Long: `Plimsoll's agent finds the containers of its node's enrolled pods, samples their
cgroups, and writes what they use to Redis, pooled per workload.

It needs read access to the host's cgroup file system and to the pods, policies,
PlimsollConfig and its own Node of the API server, and write access to its own
AgentStatus, nothing more. While Redis or the API server is
away it measures on with what it knows, and tells so in its log, at /readyz and in
its metrics.`,
		Example: `  agent --kubeconfig ~/.kube/config --node-name node-1 --redis redis://127.0.0.1:6379 --checkpoint ""`,
		Args:    cobra.NoArgs,
		Version: version.Version,
		// The errors say what to do; the list of flags would bury that.
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			log := o.logger()
			ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
			klog.SetLogger(logr.FromSlogHandler(log.Handler()))
			return run(c.Context(), o, log)
		},
	}
	o.addFlags(c.Flags())
	return c
}
