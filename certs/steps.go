package certs

import "time"

// backdate allows for API servers whose clock is behind.
const backdate = 5 * time.Minute

// Steps of a certificate's upkeep, as they stand in metrics and logs.
const (
	stepCreated   = "created"   // an authority and a leaf, from nothing
	stepReissued  = "reissued"  // a new leaf of the same authority
	stepAnnounced = "announced" // a next authority is in the bundle
	stepPublished = "published" // every webhook configuration trusts it
	stepPromoted  = "promoted"  // it signs; the leaf is new
	stepRetired   = "retired"   // the one before is trusted no longer
)

// advance takes the chain one step further if one is due. It returns the step,
// or "" with the time to wait for the next. Call it only after every webhook
// configuration was seen to hold the chain's bundle.
func (c *chain) advance(o Options, now time.Time) (string, time.Duration, error) {
	switch {
	case c.next != nil:
		return c.advancePublishing(o, now)
	case len(c.previous) > 0:
		if wait := c.since.Add(o.Overlap).Sub(now); wait > 0 {
			return "", wait, nil
		}
		c.previous, c.since = nil, time.Time{}
		return stepRetired, 0, nil
	}
	due := renewal(c.active.Cert.NotBefore, c.active.Cert.NotAfter)
	if c.rotate || !now.Before(due) {
		next, err := NewAuthority(now.Add(-backdate), now.Add(o.AuthorityValidity))
		if err != nil {
			return "", 0, err
		}
		c.next, c.since, c.rotate = next, time.Time{}, false
		return stepAnnounced, 0, nil
	}
	leafDue := renewal(c.leafCert.Leaf.NotBefore, c.leafCert.Leaf.NotAfter)
	if err := c.covers(o.Hosts); err != nil || !now.Before(leafDue) {
		if err := c.issue(o, now); err != nil {
			return "", 0, err
		}
		return stepReissued, 0, nil
	}
	return "", min(due.Sub(now), leafDue.Sub(now)), nil
}

// advancePublishing waits until API servers have had time to see the bundle
// with the next authority in it, then lets that one sign.
func (c *chain) advancePublishing(o Options, now time.Time) (string, time.Duration, error) {
	if c.since.IsZero() {
		c.since = now
		return stepPublished, 0, nil
	}
	if wait := c.since.Add(o.Propagation).Sub(now); wait > 0 {
		return "", wait, nil
	}
	c.previous = encodeCert(c.active.Cert.Raw)
	c.active, c.next, c.since = c.next, nil, now
	if err := c.issue(o, now); err != nil {
		return "", 0, err
	}
	return stepPromoted, 0, nil
}

// renewal is two thirds into a validity.
func renewal(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) * 2 / 3)
}
