package fakekubelet

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
)

// Main runs the program: it starts one kubelet for each node named by an
// argument and does not return.
func Main(args []string) {
	var (
		flags      = flag.NewFlagSet(args[0], flag.ExitOnError)
		kubeconfig = flags.String("kubeconfig", "", "file that says how to reach the API server")
		dir        = flags.String("dir", os.TempDir(), "folder for the kubelets' state and, as FIRST_NODE.sock, the control socket")
		size       Size
	)
	flags.IntVar(&size.CPUs, "cpus", 8, "cores of each node")
	flags.IntVar(&size.MemoryGiB, "memory-gib", 16, "memory of each node in GiB")
	flags.IntVar(&size.MaxPods, "max-pods", 110, "pods each node takes")
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "usage: %s [flags] NODE...\n", args[0])
		flags.PrintDefaults()
	}
	_ = flags.Parse(args[1:]) // exits on an error
	nodes := flags.Args()
	if len(nodes) == 0 {
		flags.Usage()
		os.Exit(2)
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gates); err != nil {
		klog.Fatalf("setting feature gates: %v", err)
	}
	listener, err := net.Listen("unix", filepath.Join(*dir, nodes[0]+".sock"))
	if err != nil {
		klog.Fatalf("listening on the control socket: %v", err)
	}
	runtimes := make([]*runtime, 0, len(nodes))
	for range nodes {
		runtimes = append(runtimes, newRuntime())
	}
	go func() { klog.Fatal(serveControl(listener, runtimes)) }()
	for i, name := range nodes {
		if err := startNode(context.Background(), *kubeconfig, *dir, name, size, runtimes[i]); err != nil {
			klog.Fatalf("starting node %s: %v", name, err)
		}
	}
	select {}
}
