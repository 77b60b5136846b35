package env

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// User returns the config of a user with these groups; what it may do is what
// RBAC grants the user, the groups and system:authenticated.
func (a *API) User(name string, groups ...string) *rest.Config {
	a.t.Helper()
	u, err := a.env.AddUser(envtest.User{Name: name, Groups: groups}, &rest.Config{QPS: -1})
	if err != nil {
		a.t.Fatalf("making user %s: %v", name, err)
	}
	return rest.CopyConfig(u.Config())
}

// ServiceAccount returns the config of a service account, made first if it is
// missing, with a bound token for the given audiences (default: the API
// server's) that is valid for an hour.
func (a *API) ServiceAccount(namespace, name string, audiences ...string) *rest.Config {
	a.t.Helper()
	cs, err := a.client()
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	accounts := cs.CoreV1().ServiceAccounts(namespace)
	_, err = accounts.Create(a.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		a.t.Fatalf("making service account %s/%s: %v", namespace, name, err)
	}
	token, err := accounts.CreateToken(a.t.Context(), name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		a.t.Fatalf("asking for a token of %s/%s: %v", namespace, name, err)
	}
	cfg := rest.AnonymousClientConfig(a.Config)
	cfg.QPS = -1
	cfg.BearerToken = token.Status.Token
	return cfg
}

// KubeconfigFor writes a kubeconfig file for a config and returns its path;
// the file is removed with the control plane.
func (a *API) KubeconfigFor(cfg *rest.Config) string {
	a.t.Helper()
	kc := clientcmdapi.NewConfig()
	kc.Clusters["test"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	kc.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
	}
	kc.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	kc.CurrentContext = "test"
	b, err := clientcmd.Write(*kc)
	if err != nil {
		a.t.Fatalf("encoding a kubeconfig: %v", err)
	}
	path, err := a.writeKubeconfig("user-*", b)
	if err != nil {
		a.t.Fatalf("%v", err)
	}
	return path
}

func (a *API) writeKubeconfig(pattern string, b []byte) (string, error) {
	f, err := os.CreateTemp(a.dir, pattern+".kubeconfig")
	if err != nil {
		return "", fmt.Errorf("making a kubeconfig: %w", err)
	}
	if _, err := f.Write(b); err != nil {
		f.Close()
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return f.Name(), nil
}

// Kubectl runs kubectl as the cluster administrator, with input on its
// standard input, and returns its output; the error holds what it complained
// about.
func (a *API) Kubectl(input string, args ...string) (string, error) {
	cmd := exec.CommandContext(a.t.Context(), filepath.Join(a.Assets, "kubectl"),
		append([]string{"--kubeconfig=" + a.Kubeconfig, "--cache-dir=" + filepath.Join(a.dir, "kubectl")}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
