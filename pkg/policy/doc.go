// Package policy decides which policy governs a pod and what that policy says.
//
// Selectors are compiled once into an immutable Index; Resolve takes a whole
// pod's Input, so that two callers cannot ask the same question with different
// halves of a pod. Code that holds no pod loads the answer that was recorded.
package policy
