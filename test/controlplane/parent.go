package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// endWithParent ends this process soon after the one that started it, if that
// put its process id into CONTROLPLANE_PARENT. A test's process may die in ways
// that leave it no time to stop a server, and a death signal is tied to one of
// its threads.
func endWithParent() {
	text := os.Getenv("CONTROLPLANE_PARENT")
	if text == "" {
		return
	}
	parent, err := strconv.Atoi(text)
	if err != nil {
		fmt.Fprintf(os.Stderr, "CONTROLPLANE_PARENT is %q, want a process id\n", text)
		os.Exit(2)
	}
	go func() {
		for os.Getppid() == parent {
			time.Sleep(200 * time.Millisecond)
		}
		fmt.Fprintf(os.Stderr, "process %d, which started this one, is gone\n", parent)
		os.Exit(1)
	}()
}
