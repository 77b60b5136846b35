package env

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// startControllers starts the controller manager and the scheduler as asked.
func (a *API) startControllers() error {
	common := []string{"--kubeconfig=" + a.Kubeconfig, "--leader-elect=false", "--secure-port=0"}
	if a.opts.ControllerManager {
		key := filepath.Join(a.env.ControlPlane.GetAPIServer().CertDir, "sa-signer.key")
		err := a.run("kube-controller-manager", append(common,
			"--service-account-private-key-file="+key, "--kube-api-qps=1000", "--kube-api-burst=2000")...)
		if err != nil {
			return err
		}
		if err := a.waitForDefaultAccount(); err != nil {
			return err
		}
	}
	if a.opts.Scheduler {
		return a.run("kube-scheduler", append(common, "--kube-api-qps=1000", "--kube-api-burst=2000")...)
	}
	return nil
}

func (a *API) run(program string, args ...string) error {
	p, err := startProcess(a.dir, filepath.Join(a.Assets, program), args...)
	if err != nil {
		return err
	}
	a.procs = append(a.procs, p)
	return nil
}

// waitForDefaultAccount waits for the first thing that a running controller
// manager makes.
func (a *API) waitForDefaultAccount() error {
	cs, err := a.client()
	if err != nil {
		return err
	}
	return a.wait("the controller manager", func() error {
		_, err := cs.CoreV1().ServiceAccounts("default").Get(a.t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

func (a *API) wait(what string, f func() error) error {
	if err := poll(120*time.Second, f, a.procs...); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// StartKubelets adds n nodes in one process, waits until they are ready and
// returns their names, which count on from the nodes started before.
func (a *API) StartKubelets(n int) []string {
	a.t.Helper()
	var names []string
	args := []string{
		"--kubeconfig=" + a.Kubeconfig,
		"--dir=" + a.dir,
		"--cpus=" + strconv.Itoa(orDefault(a.opts.Node.CPUs, 8)),
		"--memory-gib=" + strconv.Itoa(orDefault(a.opts.Node.Memory, 16)),
		"--max-pods=" + strconv.Itoa(orDefault(a.opts.Node.MaxPods, 110)),
	}
	for range n {
		name := fmt.Sprintf("node-%d", a.nodes)
		a.nodes++
		names = append(names, name)
	}
	if err := a.run("fakekubelet", append(args, names...)...); err != nil {
		a.t.Fatalf("%v", err)
	}
	cs, err := a.client()
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	for _, name := range names {
		if err := a.wait("node "+name, func() error { return a.nodeReady(cs, name) }); err != nil {
			a.t.Fatalf("%v", err)
		}
	}
	return names
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}

// nodeReady returns nil once pods can run on a node. The API server taints new
// nodes and the controller manager takes the taint away; without one, this
// does.
func (a *API) nodeReady(cs *kubernetes.Clientset, name string) error {
	ctx := a.t.Context()
	node, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ready := false
	for _, c := range node.Status.Conditions {
		ready = ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	switch {
	case !ready:
		return fmt.Errorf("node %s is not ready: %v", name, node.Status.Conditions)
	case len(node.Spec.Taints) == 0:
		return nil
	case !a.opts.ControllerManager:
		_, err := cs.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{})
		return err
	}
	return fmt.Errorf("node %s is tainted: %v", name, node.Spec.Taints)
}
