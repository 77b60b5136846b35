// Package hashring says which of several members owns a key. Every member
// weighs every key by a hash of both, and the heaviest owns it (rendezvous
// hashing): all who know the same members agree, and a member that comes or
// goes moves only the keys it gains or had.
package hashring

import (
	"slices"
	"strings"
)

// Ring is an immutable set of members. The zero Ring has none.
type Ring struct {
	members []string // sorted
	seeds   []uint64
}

// New returns the ring of the given members; order and repetition do not matter.
func New(members ...string) Ring {
	sorted := slices.Clone(members)
	slices.Sort(sorted)
	r := Ring{members: slices.Compact(sorted)}
	for _, m := range r.members {
		r.seeds = append(r.seeds, mix(hash(m)))
	}
	return r
}

// Members returns the members, sorted.
func (r Ring) Members() []string { return slices.Clone(r.members) }

// Len returns the number of members.
func (r Ring) Len() int { return len(r.members) }

// Has reports whether a member is in the ring.
func (r Ring) Has(member string) bool {
	_, ok := slices.BinarySearch(r.members, member)
	return ok
}

// Equal reports whether two rings have the same members.
func (r Ring) Equal(o Ring) bool { return slices.Equal(r.members, o.members) }

// String returns the members, separated by commas.
func (r Ring) String() string { return strings.Join(r.members, ",") }

// Owner returns the member that owns a key, "" when the ring is empty.
func (r Ring) Owner(key string) string {
	k := hash(key)
	owner, best := "", uint64(0)
	for i, seed := range r.seeds {
		// Members are sorted, so that equal weights fall to the same one everywhere.
		if w := mix(seed ^ k); owner == "" || w > best {
			owner, best = r.members[i], w
		}
	}
	return owner
}

// hash is 64-bit FNV-1a, the same in every process and release.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h ^= uint64(s[i])
		h *= 1099511628211
	}
	return h
}

// mix spreads a hash over all its bits: FNV alone differs too little between
// keys that differ in their last characters. (The finaliser of MurmurHash3.)
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
