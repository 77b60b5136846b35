package main

import (
	"bytes"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/status"
	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/version"
)

// newReporter returns what keeps the agent's AgentStatus; nil when there is to be none.
func newReporter(config *rest.Config, o *options, a *agent, mode cgroup.Mode) (*status.Reporter, error) {
	if o.namespace == "" {
		return nil, nil
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme, Mapper: newMapper()})
	if err != nil {
		return nil, fmt.Errorf("preparing to report the agent's status: %w", err)
	}
	facts := v1alpha1.AgentStatusStatus{Version: version.Version, KernelVersion: kernelVersion(), CgroupMode: v1alpha1.CgroupMode(mode)}
	h := a.health()
	return status.New(status.Options{
		Client: c, Namespace: o.namespace, Node: o.node, Log: a.log,
		Observe: func() status.Observation { return a.observe(facts, h) },
	}), nil
}

// observe adds to the facts what changes, and says how the agent is.
func (a *agent) observe(facts v1alpha1.AgentStatusStatus, h health) status.Observation {
	for _, v := range a.loop.View() {
		if v.Measured() {
			facts.Containers++
		}
	}
	facts.UnflushedBytes = int64(a.accumulator.Stats().Bytes)
	if t := a.store.lastFlush(); !t.IsZero() {
		facts.LastFlush = &metav1.Time{Time: t}
	}
	for _, c := range []struct {
		reason string
		check  func() error
	}{
		{status.ReasonNotSampling, h.alive},
		{status.ReasonAPIServerAway, h.ready[readyAPI]},
		{status.ReasonRedisAway, h.ready[readyRedis]},
	} {
		if err := c.check(); err != nil {
			return status.Observation{Facts: facts, Reason: c.reason, Err: err}
		}
	}
	return status.Observation{Facts: facts, Reason: status.ReasonWorking}
}

// kernelVersion is that of uname(2), empty where it cannot be read.
func kernelVersion() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return string(bytes.TrimSpace(b))
}
