// Package admission answers the API server's admission reviews: it stamps and
// sizes pods that are created, and refuses policies that do not compile.
//
// It is never in the way: everything it needs is in caches, except one read of
// an owner that is too new to be in one; it answers before the API server's
// patience ends; and a pod it cannot decide about passes untouched, for the
// controllers to resolve later.
package admission
