package profile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Key is a workload's identity: the identity labels a pod carries, with their
// values, and the policy that governs it. Everything a profile is called follows
// from it alone, not from the order or number of the labels configured. Keys are
// comparable.
type Key struct {
	tuple string // pairs in the order of less, each written as key NUL value NUL
	ref   v1alpha1.PolicyReference
}

// KeyOf returns the key of a pod with these labels. A configured label the pod
// lacks is left out; one with an empty value is not.
func KeyOf(labels map[string]string, identityLabels []string, ref v1alpha1.PolicyReference) Key {
	tuple := make(map[string]string, len(identityLabels))
	for _, k := range identityLabels {
		if v, ok := labels[k]; ok {
			tuple[k] = v
		}
	}
	return keyOf(tuple, ref)
}

// KeyOfIdentity returns the key a recorded identity was made from.
func KeyOfIdentity(id v1alpha1.Identity) Key {
	var ref v1alpha1.PolicyReference
	if id.PolicyRef != nil {
		ref = *id.PolicyRef
	}
	return keyOf(id.Tuple, ref)
}

func keyOf(tuple map[string]string, ref v1alpha1.PolicyReference) Key {
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(tuple), byRole) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(tuple[k])
		b.WriteByte(0)
	}
	return Key{tuple: b.String(), ref: ref}
}

// byRole orders label keys so that a profile's name starts with what a person
// calls the workload: labels called "name" first, then by key.
func byRole(a, b string) int {
	rank := func(k string) int {
		if k[strings.LastIndexByte(k, '/')+1:] == "name" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// pairs yields the tuple in the order of byRole.
func (k Key) pairs(yield func(key, value string) bool) {
	for rest := k.tuple; rest != ""; {
		var key, value string
		key, rest, _ = strings.Cut(rest, "\x00")
		value, rest, _ = strings.Cut(rest, "\x00")
		if !yield(key, value) {
			return
		}
	}
}

// Ref returns the governing policy, zero for none.
func (k Key) Ref() v1alpha1.PolicyReference { return k.ref }

// Tuple returns the identity labels and their values; it never holds the policy.
func (k Key) Tuple() map[string]string { return maps.Collect(k.pairs) }

// Identified reports whether the pod carries any identity label at all.
func (k Key) Identified() bool { return k.tuple != "" }

// Identity returns the key as it is recorded on a profile.
func (k Key) Identity() v1alpha1.Identity {
	id := v1alpha1.Identity{Tuple: k.Tuple(), MeasurementHash: k.MeasurementHash()}
	if k.ref != (v1alpha1.PolicyReference{}) {
		ref := k.ref
		id.PolicyRef = &ref
	}
	return id
}

// Selector returns the label query, in kubectl's syntax and sorted, that finds
// pods with the tuple's labels. It finds pods of other policies too.
func (k Key) Selector() string {
	var terms []string
	for key, value := range k.pairs {
		terms = append(terms, key+"="+value)
	}
	slices.Sort(terms)
	return strings.Join(terms, ",")
}

// MeasurementHash returns the 16 hexadecimal digits that key the workload's
// measurements in Redis.
func (k Key) MeasurementHash() string {
	// The NUL cannot stand in a label, so no label can pose as a policy.
	return hash16(tupleText(k.Tuple()) + "\x00" + FormatRef(k.ref))
}

// PurgeHash returns the measurement hash of a recorded identity: the one
// written there, for a profile older than the hash that of its bare tuple, and
// false for one without identity, which has no measurements of its own.
func PurgeHash(id v1alpha1.Identity) (string, bool) {
	switch {
	case id.MeasurementHash != "":
		return id.MeasurementHash, true
	case len(id.Tuple) > 0:
		return hash16(tupleText(id.Tuple)), true
	default:
		return "", false
	}
}

// tupleText writes a tuple unambiguously: label keys hold no "=", values no newline.
func tupleText(tuple map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(tuple)) {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(tuple[k])
		b.WriteByte('\n')
	}
	return b.String()
}

func hash16(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
