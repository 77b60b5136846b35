// Command demo shows Plimsoll's main job on a real one-node cluster, live in
// the terminal, and removes everything when it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"plimsoll.dev/test/e2e/scenario"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster running at the end and say how to look around")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	err := run(ctx, *keep)
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "interrupted; everything is removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep bool) (err error) {
	s, err := scenario.Start(ctx, os.Stderr)
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if kept {
			return
		}
		fmt.Println("\nremoving the cluster")
		err = errors.Join(err, s.Stop())
	}()
	if err := show(ctx, s, newScreen(os.Stdout)); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w\nthe logs of every program are in %s", err, s.Cluster.Logs())
	}
	if keep {
		if err := s.Cluster.Keep(); err != nil {
			return err
		}
		kept = true
		fmt.Printf(howTo, s.Cluster.KubectlScript(), s.Cluster.Logs(), s.Cluster.ID())
	}
	return nil
}

const howTo = `
The cluster is still running. To look around:

  alias k=%[1]s
  k get workloadprofiles
  k describe workloadprofiles     # says what each value follows from
  k -n shop scale deployment growing --replicas 2
  k -n shop describe pods
  ls %[2]s     # the logs of every program

To end it: go run ./test/node/cmd/node stop %[3]s
`

// show runs the story; what it prints at the end is read from the cluster.
func show(ctx context.Context, s *scenario.Scenario, out *screen) error {
	out.say("Creating two policies, which ask for 60 s of history, and three Deployments that request far too much.")
	before, err := s.Deploy(ctx, out.table)
	if err != nil {
		return err
	}
	out.say("Learning: the agent samples each container every second, the webhook recommends from what it finds,\n" +
		"and resizes the pods of a profile in place as soon as that is Sufficient.")
	if _, err := s.Learn(ctx, out.table); err != nil {
		return err
	}
	out.say("Every profile is Sufficient.")
	after, err := s.Resize(ctx, before, out.table)
	if err != nil {
		return err
	}
	out.say("What the kernel enforces now, and enforced before:")
	out.cgroups(before, after)
	out.say("One more pod of \"steady\", whose Deployment still asks for what it did:")
	added, all, err := s.Scale(ctx, "steady", out.table)
	if err != nil {
		return err
	}
	out.added(added, before)
	out.summary(before, after, all)
	return nil
}
