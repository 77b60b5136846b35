package node

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// ID is the cluster's short random name.
func (c *Cluster) ID() string { return c.id }

// CgroupName is the cluster's top cgroup, below the root of every hierarchy;
// its pods are in the cgroup "kubepods" below it.
func (c *Cluster) CgroupName() string { return c.cgroup }

// Dir is a folder that goes with the cluster, for files of the caller's too.
func (c *Cluster) Dir() string { return c.dir }

// Logs is the folder of the processes' logs.
func (c *Cluster) Logs() string { return c.logs }

// Kubeconfig is the path of the administrator's kubeconfig. Its server's
// address is inside the cluster's network namespace.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig(admin) }

// KubeconfigFor writes a kubeconfig for the service account and returns its
// path: what a pod of that account could do, a process of Run can do with it.
func (c *Cluster) KubeconfigFor(namespace, serviceAccount string) (string, error) {
	return c.pki.kubeconfig(namespace+"."+serviceAccount, apiServerURL, pkix.Name{
		CommonName:   "system:serviceaccount:" + namespace + ":" + serviceAccount,
		Organization: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
	})
}

// NetNS is the path of the cluster's network namespace, for nsenter --net=.
func (c *Cluster) NetNS() string { return fmt.Sprintf("/proc/%d/ns/net", c.sandbox.pid()) }

// RESTConfig returns an administrator's client configuration that works from
// outside the network namespace.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns an administrator's client.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Pod reads a pod from the API server.
func (c *Cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

// Run starts a program inside the cluster's namespaces, where 127.0.0.1 and
// the pods' addresses are the node's; it ends with the cluster at the latest.
// The name is that of its log.
func (c *Cluster) Run(name string, argv ...string) (*Process, error) {
	return c.RunEnv(name, nil, argv...)
}

// RunEnv is Run with more environment variables, as "NAME=value".
func (c *Cluster) RunEnv(name string, env []string, argv ...string) (*Process, error) {
	p, err := c.sandbox.run(c.logs, name, env, argv...)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guests = append(c.guests, p)
	return p, nil
}

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	path, err := c.program("kubectl")
	if err != nil {
		return "", err
	}
	return c.output(ctx, path, append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// KubectlScript is the path of a script that people run as they would kubectl.
func (c *Cluster) KubectlScript() string { return c.path("kubectl") }

func (c *Cluster) writeKubectl() error {
	path, err := c.program("kubectl")
	if err != nil {
		return err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=%s %s --kubeconfig=%s \"$@\"\n", c.NetNS(), path, c.Kubeconfig())
	if err := os.WriteFile(c.KubectlScript(), []byte(script), 0o755); err != nil {
		return fmt.Errorf("writing the kubectl script: %w", err)
	}
	return nil
}
