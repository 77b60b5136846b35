// Command hyperkube is all the Kubernetes programs the tests run, in one
// binary, because they share most of their code and linking takes long. It is
// the program it is called as, through a link of that name, or the one its
// first argument names.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics, as the programs' own mains have them
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"plimsoll.dev/test/controlplane/fakekubelet"
)

// programs run with os.Args set as if they had been called by their own name.
var programs = map[string]func(args []string){
	"etcd":                    etcdmain.Main,
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
	"fakekubelet":             fakekubelet.Main,
}

func run(command func() *cobra.Command) func([]string) {
	return func([]string) { os.Exit(cli.Run(command())) }
}

func main() {
	args := os.Args
	name := filepath.Base(args[0])
	if programs[name] == nil && len(args) > 1 {
		args = args[1:]
		name = args[0]
	}
	program := programs[name]
	if program == nil {
		var names []string
		for n := range programs {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "usage: hyperkube %s [flags]\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	if name != "kubectl" { // which ends by itself
		endWithParent()
	}
	os.Args = args
	program(args)
}
