package fakekubelet

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// Change is the body of a POST to /change on the control socket: the running
// container it is about and what happens to it.
type Change struct {
	Namespace, Pod, Container string

	// Exit ends the container.
	Exit *struct {
		Code   int32
		Reason string // such as OOMKilled; by default Completed or Error
	}
	// MemoryBytes is what the container uses from now on.
	MemoryBytes *uint64
	// RefuseResize is the error a change of its resources gets from now on;
	// empty accepts changes again.
	RefuseResize *string
}

// serveControl answers on the control socket for all of the process's nodes.
func serveControl(l net.Listener, nodes []*runtime) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /change", func(w http.ResponseWriter, req *http.Request) {
		var change Change
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<16)).Decode(&change); err != nil {
			http.Error(w, fmt.Sprintf("reading the change: %v", err), http.StatusBadRequest)
			return
		}
		for _, r := range nodes {
			if r.apply(change) {
				return
			}
		}
		http.Error(w, fmt.Sprintf("no container %s of pod %s/%s runs here", change.Container, change.Namespace, change.Pod), http.StatusNotFound)
	})
	return http.Serve(l, mux)
}

// apply reports whether the node runs the container that the change is about.
func (r *runtime) apply(change Change) bool {
	r.Lock()
	defer r.Unlock()
	c := r.running(change.Namespace, change.Pod, change.Container)
	if c == nil {
		return false
	}
	if change.MemoryBytes != nil {
		r.memory[c.Id] = *change.MemoryBytes
	}
	if change.RefuseResize != nil {
		r.refusals[c.Id] = *change.RefuseResize
	}
	if change.Exit != nil {
		r.exit(c.Id, end{code: change.Exit.Code, reason: change.Exit.Reason})
	}
	return true
}

func (r *runtime) running(namespace, pod, container string) *apitest.FakeContainer {
	for _, c := range r.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING &&
			c.Labels[kubelettypes.KubernetesPodNamespaceLabel] == namespace &&
			c.Labels[kubelettypes.KubernetesPodNameLabel] == pod &&
			c.Labels[kubelettypes.KubernetesContainerNameLabel] == container {
			return c
		}
	}
	return nil
}
