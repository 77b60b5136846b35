package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const pauseImage = "localhost/plimsoll/pause:v1"

// containerdConfig configures containerd 2: everything below the state folder,
// the native snapshotter, which works on any file system and costs one copy of
// a small program, and cgroups driven directly.
const containerdConfig = `version = 3
root = %[1]q
state = %[2]q
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = %[3]q
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = %[4]q
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE the score cannot go below our own.
  restrict_oom_score_adj = true
  # A profile loaded into the machine's kernel would stay there.
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = [%[5]q]
    conf_dir = %[6]q
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = %[7]q
      SystemdCgroup = false
`

// startContainerd starts containerd and imports the images.
func (c *Cluster) startContainerd(ctx context.Context, images []Image) error {
	socket := c.path("containerd.sock")
	runc, err := c.program("runc")
	if err != nil {
		return err
	}
	config := fmt.Sprintf(containerdConfig, c.path("containerd"), c.path("containerd-state"), socket,
		pauseImage, c.bin.CNI, c.path("cni", "conf"), runc)
	if err := os.WriteFile(c.path("containerd.toml"), []byte(config), 0o644); err != nil {
		return fmt.Errorf("writing containerd's configuration: %w", err)
	}
	if err := c.daemon("containerd", "--config", c.path("containerd.toml")); err != nil {
		return err
	}
	ctr, err := c.program("ctr")
	if err != nil {
		return err
	}
	err = c.poll(ctx, "containerd", 30*time.Second, func() error {
		_, err := c.output(ctx, ctr, "--address", socket, "version")
		return err
	})
	if err != nil {
		return err
	}
	images = append(images, Image{Name: pauseImage, Program: c.bin.Workload, Args: []string{"pause"}})
	for i, image := range images {
		if err := c.importImage(ctx, ctr, socket, image, fmt.Sprintf("image-%d.tar", i)); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) importImage(ctx context.Context, ctr, socket string, image Image, name string) error {
	path := c.path(name)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("writing an image: %w", err)
	}
	defer os.Remove(path)
	defer f.Close()
	if err := image.Write(f); err != nil {
		return err
	}
	_, err = c.output(ctx, ctr, "--address", socket, "--namespace", "k8s.io", "image", "import", "--local",
		"--snapshotter", "native", path)
	return err
}

// startKubelet starts the kubelet and waits until its node can take pods.
func (c *Cluster) startKubelet(ctx context.Context) error {
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": nodeIP, "healthzBindAddress": "127.0.0.1",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": c.pki.crt("ca")},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"tlsCertFile":   c.pki.crt("kubelet-server"), "tlsPrivateKeyFile": c.pki.pem("kubelet-server"),
		"containerRuntimeEndpoint": "unix://" + c.path("containerd.sock"),
		"cgroupDriver":             "cgroupfs", "cgroupRoot": "/" + c.cgroup, "failCgroupV1": false,
		"failSwapOn": false, "makeIPTablesUtilChains": false,
		"clusterDomain": clusterDomain, "resolvConf": "",
		"podLogsDir": c.path("pod-logs"), "staticPodPath": c.path("manifests"), "volumePluginDir": c.path("volume-plugins"),
		"fileCheckFrequency": "2s", "syncFrequency": "10s",
		// The machine's disk is not this node's to watch.
		"evictionHard": map[string]any{"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "50Mi"},
	}
	b, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the kubelet's configuration: %w", err)
	}
	for _, dir := range []string{"manifests", "volume-plugins", "pod-logs"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return fmt.Errorf("making a kubelet folder: %w", err)
		}
	}
	if err := os.WriteFile(c.path("kubelet.json"), b, 0o644); err != nil {
		return fmt.Errorf("writing the kubelet's configuration: %w", err)
	}
	if err := c.daemon("kubelet", "--config="+c.path("kubelet.json"), "--kubeconfig="+c.kubeconfig(nodeClient),
		"--root-dir="+c.path("kubelet"), "--cert-dir="+c.path("pki"), "--hostname-override="+NodeName, "--node-ip="+nodeIP,
	); err != nil {
		return err
	}
	return c.poll(ctx, "the node to take pods", time.Minute, func() error { return c.takesPods(ctx) })
}

// takesPods says why the node does not take pods, or nil: it is ready and
// untainted, and the default service account exists.
func (c *Cluster) takesPods(ctx context.Context) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status != corev1.ConditionTrue {
			return fmt.Errorf("the node is not ready: %s", cond.Message)
		}
	}
	if len(node.Status.Conditions) == 0 || len(node.Spec.Taints) > 0 {
		return fmt.Errorf("the node has the taints %v", node.Spec.Taints)
	}
	_, err = c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// program returns the path of one of the cluster's programs.
func (c *Cluster) program(name string) (string, error) {
	for _, dir := range []string{c.bin.ControlPlane, c.bin.Runtime} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("the program %s is in none of the built folders", name)
}
