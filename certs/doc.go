// Package certs keeps the webhook's serving certificate: read from files that
// somebody else provides (cert-manager, an operator), or signed by an
// authority of Plimsoll's own that is kept in a Secret and rotated.
//
// Both sources are safe for concurrent use, load a changed certificate without
// a restart, and say through Loaded whether there is one to serve.
package certs
