package env

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
)

// change is what test/controlplane's fakekubelet takes at /change of its
// control socket.
type change struct {
	Namespace, Pod, Container string

	Exit         *exit   `json:",omitempty"`
	MemoryBytes  *uint64 `json:",omitempty"`
	RefuseResize *string `json:",omitempty"`
}

type exit struct {
	Code   int32
	Reason string
}

// ExitContainer ends a running container of a node started by StartKubelets,
// as with code 137 and reason "OOMKilled"; the kubelet sees it within a second
// and restarts it as the pod's restart policy says.
func (a *API) ExitContainer(namespace, pod, container string, code int32, reason string) {
	a.t.Helper()
	a.change(change{Namespace: namespace, Pod: pod, Container: container, Exit: &exit{Code: code, Reason: reason}})
}

// SetContainerMemory says how many bytes a running container uses, 1 MiB if
// never said. The kubelet lowers no memory limit to less.
func (a *API) SetContainerMemory(namespace, pod, container string, bytes uint64) {
	a.t.Helper()
	a.change(change{Namespace: namespace, Pod: pod, Container: container, MemoryBytes: &bytes})
}

// RefuseResize makes the runtime answer changes of a running container's
// resources with an error; an empty message accepts them again.
func (a *API) RefuseResize(namespace, pod, container, message string) {
	a.t.Helper()
	a.change(change{Namespace: namespace, Pod: pod, Container: container, RefuseResize: &message})
}

// change asks each fakekubelet process until one has the container.
func (a *API) change(c change) {
	a.t.Helper()
	sockets, err := filepath.Glob(filepath.Join(a.dir, "*.sock"))
	if err != nil {
		a.t.Fatalf("finding the kubelets: %v", err)
	}
	err = fmt.Errorf("no kubelets were started")
	for _, socket := range sockets {
		if err = post(a.t.Context(), socket, c); err == nil {
			return
		}
		if !errors.Is(err, errNoContainer) {
			break
		}
	}
	a.t.Fatalf("changing container %s of %s/%s: %v", c.Container, c.Namespace, c.Pod, err)
}

var errNoContainer = errors.New("it runs on no node")

func post(ctx context.Context, socket string, c change) error {
	body, err := json.Marshal(c)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kubelet/change", bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return errNoContainer
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
