package collect

import "time"

// View is what the loop believes about one container, and why: the entries of /debug/containers.
type View struct {
	Namespace  string    `json:"namespace"`
	Pod        string    `json:"pod"`
	PodUID     string    `json:"podUID"`
	Container  string    `json:"container,omitempty"`
	ID         string    `json:"id"`
	Cgroup     string    `json:"cgroup"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	PolicyRef  string    `json:"policyRef,omitempty"`
	ProfileRef string    `json:"profileRef,omitempty"`
	Hash       string    `json:"measurementHash,omitempty"`
	Interval   string    `json:"interval"`
	StartedAt  time.Time `json:"startedAt"`
	SampledAt  time.Time `json:"sampledAt,omitzero"`
	Held       int       `json:"held"`

	CPUSeconds    float64 `json:"cpuSeconds"`
	CPU           float64 `json:"cpuCores"`
	Throttled     float64 `json:"throttledRatio"`
	WorkingSet    float64 `json:"workingSetBytes"`
	Anon          float64 `json:"anonBytes"`
	MemoryUsage   float64 `json:"memoryUsageBytes"`
	MemoryPeak    float64 `json:"memoryPeakBytes"`
	OOMKills      uint64  `json:"oomKills"`
	CPUStalled    float64 `json:"cpuStalledSeconds"`
	MemoryStalled float64 `json:"memoryStalledSeconds"`
	CPURequest    float64 `json:"cpuRequestCores,omitempty"`
	CPULimit      float64 `json:"cpuLimitCores,omitempty"`
	MemoryRequest float64 `json:"memoryRequestBytes,omitempty"`
	MemoryLimit   float64 `json:"memoryLimitBytes,omitempty"`
}

// Measured reports whether the container is being sampled for its profile.
func (v View) Measured() bool { return v.State == stateMeasured }

// View returns what the loop believes about each container, sorted by cgroup.
func (l *Loop) View() []View {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.options.Clock()
	views := make([]View, 0, len(l.order))
	for _, t := range l.order {
		peak, throttled := t.recent.read(now)
		v := View{
			Namespace: t.Pod.Namespace, Pod: t.Pod.Name, PodUID: string(t.Pod.UID), Container: t.Name,
			ID: t.ID, Cgroup: t.Path, PolicyRef: t.Pod.PolicyRef, ProfileRef: t.Pod.ProfileRef, Hash: t.hash,
			Interval:  l.interval(t.sampling.Interval).String(),
			StartedAt: t.startedAt, SampledAt: t.last.at, Held: len(t.held),
			CPUSeconds: t.reading[t.current].CPU.Seconds(), CPU: t.last.cpu, Throttled: throttled,
			WorkingSet: float64(t.usage.WorkingSet), Anon: float64(t.usage.Anon),
			MemoryUsage: float64(t.usage.MemoryUsage), MemoryPeak: peak, OOMKills: t.kills,
			CPUStalled: t.pressure.CPUSome.Seconds(), MemoryStalled: t.pressure.MemorySome.Seconds(),
			CPURequest:    t.Resources.Requests.Cpu().AsApproximateFloat64(),
			CPULimit:      t.Resources.Limits.Cpu().AsApproximateFloat64(),
			MemoryRequest: t.Resources.Requests.Memory().AsApproximateFloat64(),
			MemoryLimit:   t.Resources.Limits.Memory().AsApproximateFloat64(),
		}
		v.State, v.Reason = t.state()
		views = append(views, v)
	}
	return views
}

func (t *target) state() (state, reason string) {
	switch {
	case t.problem != "":
		return stateUnreadable, t.problem
	case t.Name == "":
		return stateWaiting, "the pod's status does not name this container yet"
	case t.hash == "":
		return stateWaiting, "the pod has no policy-ref stamp yet"
	}
	return stateMeasured, ""
}
