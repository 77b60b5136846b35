// Package version names the release a program was built from.
package version

// Version is set when linking; "dev" in a plain go build.
var Version = "dev"
