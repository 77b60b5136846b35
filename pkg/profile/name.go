package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"plimsoll.dev/pkg/api/v1alpha1"
)

const (
	longestName = validation.DNS1123SubdomainMaxLength
	separator   = "--"
	marker      = "h" // begins the part that holds a tuple's hash
	markerHex   = 12
)

// Name returns the profile's object name: the tuple's values joined by "--",
// then "--" and the policy's Discriminator. Where the values alone would not name
// the tuple (a value is cut, not a lower-case DNS label, empty, or not of the
// default identity labels), "h" and 12 hexadecimal digits of the tuple's SHA-256
// stand between, so that different keys have different names. At most 253 characters.
func (k Key) Name() string {
	end := separator + Discriminator(k.ref)
	var parts []string
	for _, value := range k.pairs {
		if p := sanitise(value); p != "" {
			parts = append(parts, p)
		}
	}
	readable := strings.Join(parts, separator)
	if k.plain() && len(readable)+len(end) <= longestName {
		return readable + end
	}
	sum := sha256.Sum256([]byte(tupleText(k.Tuple())))
	end = marker + hex.EncodeToString(sum[:])[:markerHex] + end
	if most := longestName - len(separator) - len(end); len(readable) > most {
		readable = strings.TrimRight(readable[:most], "-")
	}
	if readable == "" {
		return end
	}
	return readable + separator + end
}

// plain reports whether the tuple can be read back from its joined values: they
// are those of the default identity labels, the first alone or both, each kept as
// it is and none that looks like a hash or holds the separator.
func (k Key) plain() bool {
	defaults := v1alpha1.DefaultIdentityLabels()
	n := 0
	for key, value := range k.pairs {
		if n == len(defaults) || key != defaults[n] || value == "" || sanitise(value) != value || looksHashed(value) {
			return false
		}
		n++
	}
	return n > 0
}

func looksHashed(value string) bool {
	return strings.HasPrefix(value, marker) && len(value) == len(marker)+markerHex
}
