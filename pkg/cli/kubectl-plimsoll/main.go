// Command kubectl-plimsoll is Plimsoll's kubectl plugin.
package main

import (
	"fmt"
	"os"

	"plimsoll.dev/pkg/cli"
)

func main() {
	if err := cli.New().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
