package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority is the cluster's certificate authority, kept in a folder of PEM
// files named NAME.crt and NAME.key.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a certificate authority, "ca", in dir.
func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	a := &authority{dir: dir, key: key}
	a.cert = template(pkix.Name{CommonName: "plimsoll test cluster"})
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage |= x509.KeyUsageCertSign
	if err := a.write("ca", a.cert, key); err != nil {
		return nil, err
	}
	return a, nil
}

func template(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(7 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// issue writes a certificate of the name, good for clients and for servers at
// the given addresses.
func (a *authority) issue(name string, subject pkix.Name, addresses ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	cert := template(subject)
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else {
			cert.DNSNames = append(cert.DNSNames, address)
		}
	}
	return a.write(name, cert, key)
}

// write signs cert and writes it and its key as PEM files.
func (a *authority) write(name string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key of %s: %w", name, err)
	}
	for file, block := range map[string]*pem.Block{
		a.crt(name): {Type: "CERTIFICATE", Bytes: der},
		a.pem(name): {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			return fmt.Errorf("writing the certificate of %s: %w", name, err)
		}
	}
	return nil
}

func (a *authority) crt(name string) string { return filepath.Join(a.dir, name+".crt") }
func (a *authority) pem(name string) string { return filepath.Join(a.dir, name+".key") }

// kubeconfig issues a client certificate for a user and writes a kubeconfig
// that carries it; it returns the file's path.
func (a *authority) kubeconfig(name, server string, subject pkix.Name) (string, error) {
	if err := a.issue(name, subject); err != nil {
		return "", err
	}
	files := map[string][]byte{a.crt("ca"): nil, a.crt(name): nil, a.pem(name): nil}
	for file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("reading the certificate of %s: %w", name, err)
		}
		files[file] = b
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["plimsoll"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: files[a.crt("ca")]}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: files[a.crt(name)], ClientKeyData: files[a.pem(name)],
	}
	config.Contexts["plimsoll"] = &clientcmdapi.Context{Cluster: "plimsoll", AuthInfo: name}
	config.CurrentContext = "plimsoll"
	path := filepath.Join(a.dir, name+".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
	}
	return path, nil
}
