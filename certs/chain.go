package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secret. ca.crt is what the API servers must trust: every
// authority of the overlap, concatenated.
const (
	keyBundle       = "ca.crt"
	keyActive       = "active-ca.crt"
	keyActiveKey    = "active-ca.key"
	keyNext         = "next-ca.crt"
	keyNextKey      = "next-ca.key"
	keyPrevious     = "previous-ca.crt"
	annotationSince = "plimsoll.dev/step-since"
	// AnnotationRotate, set to any value on the Secret, starts a rotation.
	AnnotationRotate = "plimsoll.dev/rotate"
)

// chain is what the Secret holds. A rotation goes through three states:
//
//	active                    rest
//	active + next             next is being published; active still signs
//	active + previous         all replicas change to the new leaf
//
// Between any two states the API servers trust both authorities, so whichever
// leaf a replica serves is trusted.
type chain struct {
	active   *Authority
	next     *Authority
	previous []byte // PEM of the authority that signed before
	leaf     Pair
	leafCert tls.Certificate
	// since is from when on next was in every webhook configuration, or when
	// active was promoted; zero while publishing is not confirmed.
	since  time.Time
	rotate bool
}

// newChain makes an authority and a leaf from nothing.
func newChain(o Options, now time.Time) (*chain, error) {
	ca, err := NewAuthority(now.Add(-backdate), now.Add(o.AuthorityValidity))
	if err != nil {
		return nil, err
	}
	c := &chain{active: ca}
	return c, c.issue(o, now)
}

// issue signs a new leaf with the active authority.
func (c *chain) issue(o Options, now time.Time) error {
	leaf, err := c.active.Issue(o.Hosts, now.Add(-backdate), now.Add(o.LeafValidity))
	if err != nil {
		return err
	}
	return c.setLeaf(leaf)
}

func (c *chain) setLeaf(p Pair) error {
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return fmt.Errorf("reading the serving certificate: %w", err)
	}
	c.leaf, c.leafCert = p, cert
	return nil
}

// bundle returns every trusted authority, PEM, in a stable order.
func (c *chain) bundle() []byte {
	b := encodeCert(c.active.Cert.Raw)
	if c.next != nil {
		b = append(b, encodeCert(c.next.Cert.Raw)...)
	}
	return append(b, c.previous...)
}

// covers reports whether the leaf is signed by the active authority for all hosts.
func (c *chain) covers(hosts []string) error {
	leaf := c.leafCert.Leaf
	if err := leaf.CheckSignatureFrom(c.active.Cert); err != nil {
		return fmt.Errorf("checking who signed the serving certificate: %w", err)
	}
	for _, h := range hosts {
		if err := leaf.VerifyHostname(h); err != nil {
			return err
		}
	}
	return nil
}

// parseChain reads the Secret's data; the error names the part that is damaged.
func parseChain(s *corev1.Secret) (*chain, error) {
	c := &chain{previous: slices.Clone(s.Data[keyPrevious])}
	var err error
	if c.active, err = ParseAuthority(Pair{Cert: s.Data[keyActive], Key: s.Data[keyActiveKey]}); err != nil {
		return nil, fmt.Errorf("%s: %w", keyActive, err)
	}
	if len(s.Data[keyNext]) > 0 {
		if c.next, err = ParseAuthority(Pair{Cert: s.Data[keyNext], Key: s.Data[keyNextKey]}); err != nil {
			return nil, fmt.Errorf("%s: %w", keyNext, err)
		}
	}
	if len(c.previous) > 0 && !x509.NewCertPool().AppendCertsFromPEM(c.previous) {
		return nil, fmt.Errorf("%s: %w", keyPrevious, errors.New("it holds no certificate"))
	}
	if err := c.setLeaf(Pair{Cert: slices.Clone(s.Data[CertFile]), Key: slices.Clone(s.Data[KeyFile])}); err != nil {
		return nil, fmt.Errorf("%s: %w", CertFile, err)
	}
	if v := s.Annotations[annotationSince]; v != "" {
		if c.since, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", annotationSince, err)
		}
	}
	_, c.rotate = s.Annotations[AnnotationRotate]
	return c, nil
}

// store writes the chain into the Secret and reports whether that changed it.
func (c *chain) store(s *corev1.Secret) (bool, error) {
	active, err := c.active.PEM()
	if err != nil {
		return false, err
	}
	data := map[string][]byte{
		keyBundle: c.bundle(), keyActive: active.Cert, keyActiveKey: active.Key,
		CertFile: c.leaf.Cert, KeyFile: c.leaf.Key,
	}
	if c.next != nil {
		next, err := c.next.PEM()
		if err != nil {
			return false, err
		}
		data[keyNext], data[keyNextKey] = next.Cert, next.Key
	}
	if len(c.previous) > 0 {
		data[keyPrevious] = c.previous
	}
	changed := len(data) != len(s.Data)
	for k, v := range data {
		changed = changed || !bytes.Equal(v, s.Data[k])
	}
	s.Data = data
	since := ""
	if !c.since.IsZero() {
		since = c.since.UTC().Format(time.RFC3339Nano)
	}
	changed = setAnnotation(s, annotationSince, since) || changed
	if !c.rotate {
		changed = setAnnotation(s, AnnotationRotate, "") || changed
	}
	return changed, nil
}

// setAnnotation sets an annotation, or removes it if the value is empty.
func setAnnotation(s *corev1.Secret, key, value string) bool {
	old, ok := s.Annotations[key]
	switch {
	case value == "" && ok:
		delete(s.Annotations, key)
		return true
	case value == "" || old == value:
		return false
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
	return true
}
