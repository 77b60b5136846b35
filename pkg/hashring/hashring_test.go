package hashring_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"plimsoll.dev/pkg/hashring"
)

func names(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("plimsoll-webhook-7d9c5b6f4-%05d", i))
	}
	return out
}

func keys(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("shop/web-%d", i))
	}
	return out
}

// The owner of a key must be the same in every release: replicas of two
// releases share the work while one replaces the other.
func TestStableHash(t *testing.T) {
	r := hashring.New("a", "b", "c")
	want := map[string]string{"": "b", "checkout-->web--nopolicy": "b", "shop/web-0": "c", "shop/web-1": "a"}
	for key, owner := range want {
		if got := r.Owner(key); got != owner {
			t.Errorf("%q owns %q, want %q", got, key, owner)
		}
	}
}

func TestEmptyRing(t *testing.T) {
	if got := (hashring.Ring{}).Owner("x"); got != "" {
		t.Errorf("an empty ring says %q owns x", got)
	}
	if got := hashring.New().Owner("x"); got != "" {
		t.Errorf("a ring of none says %q owns x", got)
	}
}

func TestDeterministicMapping(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.SliceOfN(rapid.StringMatching(`[a-z0-9-]{1,20}`), 1, 12).Draw(t, "members")
		key := rapid.String().Draw(t, "key")
		r := hashring.New(members...)
		shuffled := rapid.Permutation(members).Draw(t, "shuffled")
		if a, b := r.Owner(key), hashring.New(append(shuffled, members[0])...).Owner(key); a != b || !r.Has(a) {
			t.Fatalf("owners %q and %q", a, b)
		}
	})
}

func TestBalance(t *testing.T) {
	const n = 30000
	for members := 2; members <= 10; members++ {
		r := hashring.New(names(members)...)
		count := map[string]int{}
		for _, k := range keys(n) {
			count[r.Owner(k)]++
		}
		fair := float64(n) / float64(members)
		for m, c := range count {
			if math.Abs(float64(c)-fair) > 5*math.Sqrt(fair) {
				t.Errorf("%d members: %s owns %d of %d keys, a fair share is %.0f", members, m, c, n, fair)
			}
		}
	}
}

// Adding a replica moves at most 1/N + 10 % of ownership, and only to it;
// removing one moves only what it had.
func TestMinimalMovement(t *testing.T) {
	const n = 30000
	for members := 1; members <= 9; members++ {
		all := names(members + 1)
		small, large := hashring.New(all[:members]...), hashring.New(all...)
		moved := 0
		for _, k := range keys(n) {
			before, after := small.Owner(k), large.Owner(k)
			if before == after {
				continue
			}
			moved++
			if after != all[members] {
				t.Fatalf("%s moved from %s to %s, which is not the new member", k, before, after)
			}
		}
		share, most := float64(moved)/n, 1/float64(members+1)*1.1
		if share > most {
			t.Errorf("member %d moved %.3f of the keys, want at most %.3f", members+1, share, most)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	r := hashring.New(names(5)...)
	for i := 0; i < b.N; i++ {
		r.Owner("shop/web-7d9c5b6f4-abcde")
	}
}
