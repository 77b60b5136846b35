package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Authority is a certificate authority: a self-signed certificate and its key.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, both PEM.
type Pair struct {
	Cert, Key []byte
}

// NewAuthority makes an authority that is valid in the given time.
func NewAuthority(notBefore, notAfter time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key for the certificate authority: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		// The serial in the name keeps two authorities of one bundle apart:
		// verifiers look issuers up by name first.
		Subject:               pkix.Name{CommonName: "plimsoll-webhook-ca", SerialNumber: serial.Text(16)},
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back the certificate authority: %w", err)
	}
	return &Authority{Cert: cert, key: key}, nil
}

// ParseAuthority reads an authority back from its PEM pair.
func ParseAuthority(p Pair) (*Authority, error) {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate authority: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("reading the certificate authority: it is not an authority with an ECDSA key")
	}
	return &Authority{Cert: pair.Leaf, key: key}, nil
}

// PEM returns the authority's certificate and key.
func (a *Authority) PEM() (Pair, error) {
	key, err := encodeKey(a.key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encodeCert(a.Cert.Raw), Key: key}, nil
}

// Issue signs a serving certificate for the given host names and IP addresses.
// It never outlives the authority.
func (a *Authority) Issue(hosts []string, notBefore, notAfter time.Time) (Pair, error) {
	if len(hosts) == 0 {
		return Pair{}, errors.New("issuing a serving certificate: no host names given")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("making a key for the serving certificate: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, err
	}
	if notAfter.After(a.Cert.NotAfter) {
		notAfter = a.Cert.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "plimsoll-webhook"},
		NotBefore:    notBefore,
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.Cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing the serving certificate: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
