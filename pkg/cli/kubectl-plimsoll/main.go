// Command kubectl-plimsoll is Plimsoll's kubectl plugin.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"plimsoll.dev/pkg/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := cli.New().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
