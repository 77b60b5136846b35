// Package recommend turns a workload's measured use into requests and limits. It is pure: time is a parameter, and the
// same input always gives the same answer, with every step that led to it.
package recommend
