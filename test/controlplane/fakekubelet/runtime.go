package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	apitest "k8s.io/cri-api/pkg/apis/testing"
)

// runtime is a node's container runtime: the CRI's fake, which runs nothing,
// with containers that remember their resources, end, use memory and refuse
// changes. The embedded lock guards everything.
type runtime struct {
	*apitest.FakeRuntimeService
	ends     map[string]*end   // by container id
	memory   map[string]uint64 // bytes in use, by container id
	refusals map[string]string // why updates are refused, by container id
}

// end is how and when a container's process exits.
type end struct {
	code   int32
	reason string
	after  time.Duration
}

// memoryInUse is what a container uses unless told otherwise, in bytes.
const memoryInUse = 1 << 20

func newRuntime() *runtime {
	r := &runtime{
		FakeRuntimeService: apitest.NewFakeRuntimeService(),
		ends:               map[string]*end{},
		memory:             map[string]uint64{},
		refusals:           map[string]string{},
	}
	r.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true}, {Type: cri.NetworkReady, Status: true},
	}}
	return r
}

// CreateContainer implements the CRI.
func (r *runtime) CreateContainer(ctx context.Context, sandbox string, config *cri.ContainerConfig, pod *cri.PodSandboxConfig) (string, error) {
	end, err := parseEnd(append(config.GetCommand(), config.GetArgs()...))
	if err != nil {
		return "", err
	}
	id, err := r.FakeRuntimeService.CreateContainer(ctx, sandbox, config, pod)
	if err != nil {
		return "", err
	}
	r.Lock()
	defer r.Unlock()
	r.ends[id] = end
	r.merge(id, config.GetLinux().GetResources())
	return id, nil
}

// parseEnd reads a container's command; nil means that it runs until stopped.
func parseEnd(command []string) (*end, error) {
	if len(command) < 2 || len(command) > 4 || command[0] != "exit" {
		return nil, nil
	}
	code, err := strconv.ParseUint(command[1], 10, 8)
	if err != nil {
		return nil, fmt.Errorf("reading the exit code in command %q: %w", command, err)
	}
	e := &end{code: int32(code)}
	if len(command) > 2 {
		if e.after, err = time.ParseDuration(command[2]); err != nil {
			return nil, fmt.Errorf("reading the duration in command %q: %w", command, err)
		}
	}
	if len(command) > 3 {
		e.reason = command[3]
	}
	return e, nil
}

// StartContainer implements the CRI.
func (r *runtime) StartContainer(ctx context.Context, id string) error {
	if err := r.FakeRuntimeService.StartContainer(ctx, id); err != nil {
		return err
	}
	r.Lock()
	defer r.Unlock()
	if e := r.ends[id]; e != nil {
		time.AfterFunc(e.after, func() {
			r.Lock()
			defer r.Unlock()
			r.exit(id, *e)
		})
	}
	return nil
}

// exit ends a running container; the lock must be held.
func (r *runtime) exit(id string, e end) {
	c := r.Containers[id]
	if c == nil || c.State != cri.ContainerState_CONTAINER_RUNNING {
		return
	}
	c.State = cri.ContainerState_CONTAINER_EXITED
	c.FinishedAt = time.Now().UnixNano()
	c.ExitCode = e.code
	c.Reason = e.reason
	if c.Reason == "" && e.code == 0 {
		c.Reason = "Completed"
	} else if c.Reason == "" {
		c.Reason = "Error"
	}
}

// RemoveContainer implements the CRI.
func (r *runtime) RemoveContainer(ctx context.Context, id string) error {
	r.Lock()
	delete(r.ends, id)
	delete(r.memory, id)
	delete(r.refusals, id)
	r.Unlock()
	return r.FakeRuntimeService.RemoveContainer(ctx, id)
}

// UpdateContainerResources implements the CRI.
func (r *runtime) UpdateContainerResources(ctx context.Context, id string, to *cri.ContainerResources) error {
	r.Lock()
	defer r.Unlock()
	if why := r.refusals[id]; why != "" {
		return errors.New(why)
	}
	if r.Containers[id] == nil {
		return fmt.Errorf("container %q not found", id)
	}
	r.merge(id, to.GetLinux())
	return nil
}

// merge changes the resources that are set, as runc does; the lock must be
// held.
func (r *runtime) merge(id string, to *cri.LinuxContainerResources) {
	if to == nil {
		return
	}
	c := r.Containers[id]
	if c.Resources.GetLinux() == nil {
		c.Resources = &cri.ContainerResources{Linux: &cri.LinuxContainerResources{}}
	}
	now := c.Resources.Linux
	set(&now.CpuShares, to.CpuShares)
	set(&now.CpuQuota, to.CpuQuota)
	set(&now.CpuPeriod, to.CpuPeriod)
	set(&now.MemoryLimitInBytes, to.MemoryLimitInBytes)
}

func set(field *int64, to int64) {
	if to != 0 {
		*field = to
	}
}
