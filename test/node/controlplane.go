package node

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"time"
)

// user is a program's client certificate: its file name, user and group.
type user struct {
	file, name string
	groups     []string
}

var (
	admin      = user{"admin", "admin", []string{"system:masters"}}
	manager    = user{"kube-controller-manager", "system:kube-controller-manager", nil}
	scheduler  = user{"kube-scheduler", "system:kube-scheduler", nil}
	nodeClient = user{"kubelet", "system:node:" + NodeName, []string{"system:nodes"}}
)

// credentials makes the cluster's certificates and kubeconfigs.
func (c *Cluster) credentials() error {
	ca, err := newAuthority(c.path("pki"))
	if err != nil {
		return err
	}
	c.pki = ca
	servers := []string{"127.0.0.1", "localhost", nodeIP, apiServerIP, "kubernetes.default.svc", "kubernetes.default"}
	for name, subject := range map[string]pkix.Name{
		"apiserver":                {CommonName: "kube-apiserver"},
		"apiserver-kubelet-client": {CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}},
		"kubelet-server":           {CommonName: NodeName},
		"service-accounts":         {CommonName: "service-accounts"},
	} {
		if err := ca.issue(name, subject, servers...); err != nil {
			return err
		}
	}
	for _, u := range []user{admin, manager, scheduler, nodeClient} {
		subject := pkix.Name{CommonName: u.name, Organization: u.groups}
		if _, err := ca.kubeconfig(u.file, apiServerURL, subject); err != nil {
			return err
		}
	}
	return nil
}

// startAPIServer starts etcd and the API server and waits until it is ready.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	if err := c.daemon("etcd",
		"--data-dir="+c.path("etcd"), "--unsafe-no-fsync", // the data need not outlive the machine
		"--listen-client-urls="+etcdClients, "--advertise-client-urls="+etcdClients,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers,
		"--initial-cluster=default="+etcdPeers, "--log-level=warn",
	); err != nil {
		return err
	}
	err := c.daemon("kube-apiserver",
		"--etcd-servers="+etcdClients,
		"--secure-port="+apiServerPort, "--bind-address=0.0.0.0", "--advertise-address="+nodeIP,
		"--tls-cert-file="+c.pki.crt("apiserver"), "--tls-private-key-file="+c.pki.pem("apiserver"),
		"--client-ca-file="+c.pki.crt("ca"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
		"--kubelet-client-certificate="+c.pki.crt("apiserver-kubelet-client"),
		"--kubelet-client-key="+c.pki.pem("apiserver-kubelet-client"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc."+clusterDomain,
		"--service-account-signing-key-file="+c.pki.pem("service-accounts"),
		"--service-account-key-file="+c.pki.crt("service-accounts"),
		"--service-cluster-ip-range="+serviceRange,
	)
	if err != nil {
		return err
	}
	return c.poll(ctx, "the API server", time.Minute, func() error {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
}

// startControllers starts the controller manager and the scheduler.
func (c *Cluster) startControllers() error {
	if err := c.daemon("kube-controller-manager",
		"--kubeconfig="+c.kubeconfig(manager), "--leader-elect=false", "--secure-port=0",
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.pki.pem("service-accounts"),
		"--root-ca-file="+c.pki.crt("ca"),
		"--cluster-signing-cert-file="+c.pki.crt("ca"), "--cluster-signing-key-file="+c.pki.pem("ca"),
	); err != nil {
		return err
	}
	err := c.daemon("kube-scheduler",
		"--kubeconfig="+c.kubeconfig(scheduler), "--leader-elect=false", "--secure-port=0")
	return err
}

func (c *Cluster) kubeconfig(u user) string { return c.path("pki", u.file+".kubeconfig") }

// daemon starts one of the cluster's own programs.
func (c *Cluster) daemon(program string, args ...string) error {
	path, err := c.program(program)
	if err != nil {
		return err
	}
	p, err := c.sandbox.run(c.logs, program, nil, append([]string{path}, args...)...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemons = append(c.daemons, p)
	return nil
}

// poll waits for something of the cluster's own, and gives up as soon as one
// of the daemons ends.
func (c *Cluster) poll(ctx context.Context, what string, timeout time.Duration, f func() error) error {
	err := Poll(ctx, timeout*c.patience, func() error {
		if err := c.Check(); err != nil {
			return Final(err)
		}
		return f()
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}
