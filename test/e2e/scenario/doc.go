// Package scenario is the story that the demo shows and the end-to-end test
// checks, one step a method: a real cluster with Plimsoll installed from its
// chart, two policies, three workloads that ask for far too much; they are
// learned, resized in place, and a new pod starts with what was learned.
package scenario
