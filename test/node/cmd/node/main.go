// Command node starts a one-node Kubernetes on this machine, or stops one that
// was kept running.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"plimsoll.dev/test/node"
)

const usage = `usage: node start        start a cluster and stop it on Ctrl-C
       node stop [ID]   stop the clusters that were kept running, or the one with this id
`

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "start":
		err = start(ctx)
	case len(args) == 1 && args[0] == "stop":
		err = stop("")
	case len(args) == 2 && args[0] == "stop":
		err = stop(args[1])
	default:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	binaries, err := node.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	c, err := node.Start(ctx, node.Options{Binaries: binaries, Progress: os.Stderr})
	if err != nil {
		return err
	}
	fmt.Printf("kubectl: %s\nlogs:    %s\nnetwork: nsenter --net=%s\nCtrl-C stops it.\n", c.KubectlScript(), c.Logs(), c.NetNS())
	<-ctx.Done()
	return c.Stop()
}

func stop(id string) error {
	ended, err := node.StopKept(id)
	for _, id := range ended {
		fmt.Println("stopped", id)
	}
	if err == nil && len(ended) == 0 {
		fmt.Println("nothing to stop")
	}
	return err
}
