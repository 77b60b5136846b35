// Package cli is kubectl-plimsoll: a thin shell over the packages that do the work.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/version"
)

// New returns the command with all its subcommands. Errors are returned, not printed.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-plimsoll",
		Short:         "See why Plimsoll recommends what it does, and try policies on recorded use",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl plimsoll"},
	}
	var cluster connection
	root.PersistentFlags().StringVar(&cluster.kubeconfig, "kubeconfig", "", "kubeconfig file; default as kubectl's")
	root.PersistentFlags().StringVar(&cluster.context, "context", "", "context of the kubeconfig; default the current one")
	root.PersistentFlags().StringVarP(&cluster.namespace, "namespace", "n", "", "namespace; default the context's")
	root.AddCommand(newExplain(cluster.connect), newBacktest(), newDiagnose(cluster.connect))
	return root
}

// connection says which cluster is meant, as kubectl's flags do.
type connection struct{ kubeconfig, context, namespace string }

// connect returns a client, and the namespace that is meant.
func (c *connection) connect() (client.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.context}
	overrides.Context.Namespace = c.namespace
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	namespace, _, err := config.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	rest, err := config.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, "", fmt.Errorf("registering kinds: %w", err)
		}
	}
	cl, err := client.New(rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the cluster: %w", err)
	}
	return cl, namespace, nil
}
