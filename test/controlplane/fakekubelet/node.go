package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	cadvisor "github.com/google/cadvisor/lib/model"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	apitest "k8s.io/cri-api/pkg/apis/testing"
	"k8s.io/klog/v2"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/metrics/collectors"
	"k8s.io/kubernetes/pkg/kubemark"
)

// Size is what a node offers.
type Size struct {
	CPUs      int
	MemoryGiB int
	MaxPods   int
}

// startNode starts a kubelet and returns once it is initialised.
func startNode(ctx context.Context, kubeconfig, dir, name string, size Size, r *runtime) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading --kubeconfig: %w", err)
	}
	client, err := newClient(cfg)
	if err != nil {
		return err
	}
	flags, config, err := settings(dir, name, size)
	if err != nil {
		return err
	}
	machine := &machine{Fake: &cadvisortest.Fake{NodeName: name}, size: size}
	k := kubemark.NewHollowKubelet(flags, config, client, client, machine, apitest.NewFakeImageService(), r, newContainerManager())
	// The kubelet's own prober instead of kubemark's, which calls everything
	// ready. Pods have no network: a probe that names the host 127.0.0.1
	// reaches the test.
	k.KubeletDeps.ProbeManager = nil
	err = kubeletapp.RunKubelet(ctx, &options.KubeletServer{KubeletFlags: *k.KubeletFlags, KubeletConfiguration: *k.KubeletConfiguration}, k.KubeletDeps)
	if err != nil {
		return err
	}
	return unregisterCollectors(ctx)
}

// gates are the feature gates that differ from the defaults.
var gates = map[string]bool{
	// Only stats from the runtime tell the kubelet how much memory a pod uses,
	// and it lowers no memory limit without knowing.
	string(features.PodAndContainerStatsFromCRI): true,
	// Its metrics cannot be registered by two kubelets of one process.
	string(features.PodCertificateRequest): false,
}

// settings returns kubemark's, changed to keep all state below dir, to serve
// nothing and to pull images without a limit.
func settings(dir, name string, size Size) (*options.KubeletFlags, *kubeletconfig.KubeletConfiguration, error) {
	flags, config := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName: name, MaxPods: size.MaxPods, RegisterWithTaints: []corev1.Taint{},
	})
	// Kubemark has made a folder in /tmp, whatever TMPDIR says.
	if err := os.RemoveAll(flags.RootDirectory); err != nil {
		return nil, nil, fmt.Errorf("removing kubemark's folder: %w", err)
	}
	flags.RootDirectory = filepath.Join(dir, name)
	config.PodLogsDir = filepath.Join(flags.RootDirectory, "pod-logs")
	if err := os.MkdirAll(config.PodLogsDir, 0o755); err != nil {
		return nil, nil, fmt.Errorf("making the node's folder: %w", err)
	}
	config.StaticPodPath = ""
	config.EnableServer = false
	config.SerializeImagePulls = false
	config.RegistryPullQPS = 0
	return flags, config, nil
}

// newClient returns a client with connections of its own, without a rate
// limit: many kubelets' watches would fill the streams of one connection.
func newClient(cfg *rest.Config) (*clientset.Clientset, error) {
	cfg.QPS = -1
	cfg.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := clientset.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client, nil
}

// unregisterCollectors waits until the kubelet that was just started has put
// its metric collectors into the process's two registries, and takes them out.
// The next kubelet would find them there and panic; nobody reads them.
func unregisterCollectors(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, c := range []metrics.StableCollector{
		collectors.NewVolumeStatsCollector(nil),
		collectors.NewLogMetricsCollector(nil),
	} {
		// A collector is known by its descriptions, which Create makes.
		c.Create(nil, c)
		for _, registry := range []prometheus.Registerer{legacyregistry.Registerer(), prometheus.DefaultRegisterer} {
			for !registry.Unregister(c) {
				select {
				case <-ctx.Done():
					return errors.New("the kubelet has not registered its metrics after 30 s")
				case <-time.After(5 * time.Millisecond):
				}
			}
		}
	}
	return nil
}

// machine is cadvisor's view of a node of the given size.
type machine struct {
	*cadvisortest.Fake
	size Size
}

// MachineInfo implements the kubelet's cadvisor.Interface.
func (m *machine) MachineInfo(logger klog.Logger) (*cadvisor.MachineInfo, error) {
	info, err := m.Fake.MachineInfo(logger)
	if err != nil {
		return nil, err
	}
	info.NumCores = m.size.CPUs
	info.MemoryCapacity = uint64(m.size.MemoryGiB) << 30
	return info, nil
}
