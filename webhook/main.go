// Command webhook stamps and sizes pods at admission and runs Plimsoll's
// controllers. Any number of replicas work side by side; none leads.
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
		fmt.Fprintln(os.Stderr, "webhook:", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

func command() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "webhook",
		Short: "Size pods from what their containers really use",
		Long: `Plimsoll's webhook stamps enrolled pods with the policy that governs them, sets
recommended requests and limits on new pods, computes the recommendations from
the measurements in Redis, and resizes running pods in place.

It fails open: when it is down or cannot decide in time, pods are created as
they are. Redis may come and go; admission never waits for it.`,
		Example: `  webhook --kubeconfig ~/.kube/config --redis redis://127.0.0.1:6379 --cert-dir ./certs`,
		Args:    cobra.NoArgs,
		Version: version.Version,
		// The errors say what to do; the list of flags would bury that.
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			log := logr.FromSlogHandler(o.logger().Handler())
			ctrl.SetLogger(log)
			klog.SetLogger(log)
			return run(c.Context(), o)
		},
	}
	o.addFlags(c.Flags())
	return c
}
