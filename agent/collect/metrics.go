package collect

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"plimsoll.dev/agent/cgroup"
)

// Why a sample was not used: the label values of plimsoll_agent_samples_dropped_total.
const (
	reasonBackwards  = "counter_backwards"
	reasonAbsurd     = "counter_absurd"
	reasonNoTime     = "no_time_passed"
	reasonUnreadable = "unreadable"
	reasonUnstamped  = "pod_unstamped"
	reasonUnnamed    = "container_unnamed"
)

func reasonOf(err error) string {
	switch {
	case errors.Is(err, cgroup.ErrBackwards):
		return reasonBackwards
	case errors.Is(err, cgroup.ErrAbsurd):
		return reasonAbsurd
	default:
		return reasonNoTime
	}
}

// metrics are the loop's own, apart from those of containers, which are made when they are asked for.
type metrics struct {
	samples prometheus.Counter
	dropped *prometheus.CounterVec
	ticks   prometheus.Histogram
	stretch prometheus.Gauge
	cores   prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		samples: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "plimsoll_agent_samples_total",
			Help: "Samples taken of containers.",
		}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "plimsoll_agent_samples_dropped_total",
			Help: "Samples not used, by reason.",
		}, []string{"reason"}),
		ticks: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "plimsoll_agent_tick_duration_seconds",
			Help:    "Time to sample all containers that were due.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
		stretch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "plimsoll_agent_interval_stretch_ratio",
			Help: "Factor by which sampling intervals are stretched to keep the CPU budget; 1 when they are not.",
		}),
		cores: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "plimsoll_agent_cpu_usage_cores",
			Help: "CPU the agent itself used in its last budget window, in cores.",
		}),
	}
	for _, r := range []string{reasonBackwards, reasonAbsurd, reasonNoTime, reasonUnreadable, reasonUnstamped, reasonUnnamed} {
		m.dropped.WithLabelValues(r)
	}
	m.stretch.Set(1)
	return m
}

func (m *metrics) drop(reason string, n int) {
	if n > 0 {
		m.dropped.WithLabelValues(reason).Add(float64(n))
	}
}

func (m *metrics) tick(took time.Duration, b budget) {
	m.ticks.Observe(took.Seconds())
	m.stretch.Set(b.stretch)
	m.cores.Set(b.used)
}

func (m *metrics) each(yield func(prometheus.Collector)) {
	for _, c := range []prometheus.Collector{m.samples, m.dropped, m.ticks, m.stretch, m.cores} {
		yield(c)
	}
}

var containerLabels = []string{"namespace", "pod", "container"}

func containerDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("plimsoll_container_"+name, help, containerLabels, nil)
}

var (
	descCPUSeconds  = containerDesc("cpu_usage_seconds_total", "CPU time used by the container since it started.")
	descCPU         = containerDesc("cpu_usage_cores", "CPU used in the last sampling interval, in cores.")
	descThrottled   = containerDesc("cpu_throttled_periods_ratio", "Share of CFS periods throttled in the last five minutes.")
	descMemory      = containerDesc("memory_working_set_bytes", "Memory in use: usage less page cache nobody maps and reclaimable slab.")
	descMemoryUsage = containerDesc("memory_usage_bytes", "Memory charged to the container, page cache included.")
	descMemoryPeak  = containerDesc("memory_peak_bytes", "Largest memory of the last five minutes, spikes between samples included.")
	descOOMKills    = containerDesc("oom_kills_total", "Processes of the container killed by the OOM killer, as long as the agent has watched it.")
	descCPUStalled  = containerDesc("pressure_cpu_waiting_seconds_total", "Time in which a task of the container waited for CPU; 0 where the kernel has no PSI for it.")
	descMemStalled  = containerDesc("pressure_memory_waiting_seconds_total", "Time in which a task of the container waited for memory; 0 where the kernel has no PSI for it.")
	descCPURequest  = containerDesc("cpu_request_cores", "CPU request in the pod's spec.")
	descCPULimit    = containerDesc("cpu_limit_cores", "CPU limit in the pod's spec.")
	descMemRequest  = containerDesc("memory_request_bytes", "Memory request in the pod's spec.")
	descMemLimit    = containerDesc("memory_limit_bytes", "Memory limit in the pod's spec.")
	descHeld        = containerDesc("samples_held", "Samples kept back: of the start-up, or waiting for the pod's stamps.")
	descContainers  = prometheus.NewDesc("plimsoll_agent_containers", "Containers known, by state.", []string{"state"}, nil)
)

// States of a container: the label values of plimsoll_agent_containers.
const (
	stateMeasured   = "measured"
	stateWaiting    = "waiting"
	stateUnreadable = "unreadable"
)

// Describe implements prometheus.Collector.
func (l *Loop) Describe(ch chan<- *prometheus.Desc) {
	l.metrics.each(func(c prometheus.Collector) { c.Describe(ch) })
	for _, d := range []*prometheus.Desc{
		descCPUSeconds, descCPU, descThrottled, descMemory, descMemoryUsage, descMemoryPeak, descOOMKills,
		descCPUStalled, descMemStalled,
		descCPURequest, descCPULimit, descMemRequest, descMemLimit, descHeld, descContainers,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. The series of a container exist as long as it is sampled.
func (l *Loop) Collect(ch chan<- prometheus.Metric) {
	l.metrics.each(func(c prometheus.Collector) { c.Collect(ch) })
	states := map[string]int{stateMeasured: 0, stateWaiting: 0, stateUnreadable: 0}
	views := l.View()
	latest := latestRuns(views)
	for i, v := range views {
		states[v.State]++
		if latest[[2]string{v.PodUID, v.Container}] != i || v.Container == "" {
			continue
		}
		labels := []string{v.Namespace, v.Pod, v.Container}
		gauge := func(d *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
		counter := func(d *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
		}
		gauge(descHeld, float64(v.Held))
		for _, r := range []struct {
			d     *prometheus.Desc
			value float64
		}{
			{descCPURequest, v.CPURequest}, {descCPULimit, v.CPULimit},
			{descMemRequest, v.MemoryRequest}, {descMemLimit, v.MemoryLimit},
		} {
			if r.value > 0 {
				gauge(r.d, r.value)
			}
		}
		if v.SampledAt.IsZero() {
			continue
		}
		counter(descCPUSeconds, v.CPUSeconds)
		counter(descOOMKills, float64(v.OOMKills))
		counter(descCPUStalled, v.CPUStalled)
		counter(descMemStalled, v.MemoryStalled)
		gauge(descCPU, v.CPU)
		gauge(descThrottled, v.Throttled)
		gauge(descMemory, v.WorkingSet)
		gauge(descMemoryUsage, v.MemoryUsage)
		gauge(descMemoryPeak, v.MemoryPeak)
	}
	for state, n := range states {
		ch <- prometheus.MustNewConstMetric(descContainers, prometheus.GaugeValue, float64(n), state)
	}
}

// latestRuns returns the index of the last run of each container, by pod and name: for a moment the cgroups of two runs
// can exist, and a series must not be given twice.
func latestRuns(views []View) map[[2]string]int {
	latest := make(map[[2]string]int, len(views))
	for i, v := range views {
		key := [2]string{v.PodUID, v.Container}
		if j, ok := latest[key]; !ok || v.StartedAt.After(views[j].StartedAt) {
			latest[key] = i
		}
	}
	return latest
}
