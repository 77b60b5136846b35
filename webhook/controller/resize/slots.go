package resize

import (
	"strconv"
)

// slots are a profile's budget: maxConcurrent numbered places, each held by
// the replica that owns it. A replica resizes only within the places it holds,
// so that all together keep the budget without a word between them.
type slots struct {
	total  int
	mine   int
	holder map[string]bool // replicas that hold any
	first  string          // the profile's owner; it holds the first place
	all    bool            // every replica has as many places as it has pods
}

func (c *Controller) slotsOf(profile string, total, pods int) slots {
	s := slots{total: total, holder: map[string]bool{}, first: c.owner(profile)}
	if total >= pods { // the budget bounds nothing: every pod has its place
		s.mine, s.all = total, true
		return s
	}
	for i := range total {
		owner := s.first
		if i > 0 {
			owner = c.owner(profile + "/" + strconv.Itoa(i))
		}
		s.holder[owner] = true
		if owner == c.Replica {
			s.mine++
		}
	}
	return s
}

// server returns the replica that resizes a pod: its owner, or the profile's
// when the pod's owner holds no place.
func (c *Controller) server(key string, s slots) string {
	if o := c.owner(key); s.all || s.holder[o] {
		return o
	}
	return s.first
}
