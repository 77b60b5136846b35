package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The addresses are the same in every cluster: each has its own network
// namespace, which no other network reaches.
const (
	bridge        = "plimsoll0"
	nodeIP        = "10.85.0.1"
	podRange      = "10.85.0.0/16"
	serviceRange  = "10.96.0.0/24"
	apiServerIP   = "10.96.0.1" // the "kubernetes" service: the first of the range
	apiServerPort = "443"
	etcdClients   = "http://127.0.0.1:2379"
	etcdPeers     = "http://127.0.0.1:2380"
	clusterDomain = "cluster.local"
	apiServerURL  = "https://127.0.0.1:" + apiServerPort
)

// network brings up the bridge that is the node's own interface and the pods'
// switch. The kubernetes service needs no proxy: its address is the node's
// too, and the API server listens on the service's port.
func (c *Cluster) network(ctx context.Context) error {
	for _, args := range []string{
		"link set lo up",
		"link add " + bridge + " type bridge",
		"addr add " + nodeIP + "/16 dev " + bridge,
		"addr add " + apiServerIP + "/32 dev " + bridge,
		"link set " + bridge + " up",
		"route add default dev " + bridge, // the kubelet looks for one to find its address
	} {
		if _, err := c.output(ctx, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{
  "type": "bridge", "bridge": %q, "isGateway": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": %q,
    "ranges": [[{"subnet": %q, "rangeStart": "10.85.1.1", "gateway": %q}]],
    "routes": [{"dst": "0.0.0.0/0"}]}}]}`, c.cgroup, bridge, c.path("cni", "addresses"), podRange, nodeIP)
	if err := os.MkdirAll(c.path("cni", "conf"), 0o755); err != nil {
		return fmt.Errorf("making the CNI folder: %w", err)
	}
	if err := os.WriteFile(c.path("cni", "conf", "plimsoll.conflist"), []byte(conf), 0o644); err != nil {
		return fmt.Errorf("writing the CNI configuration: %w", err)
	}
	return nil
}

// output runs a program inside the cluster's namespaces and returns its
// standard output; an error carries standard error.
func (c *Cluster) output(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, complaint strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := c.sandbox.start(cmd); err != nil {
		return "", fmt.Errorf("running %s: %w", filepath.Base(program), err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("running %s %s: %w: %s",
			filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
