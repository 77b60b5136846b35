package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
	"plimsoll.dev/test/env"
)

// The main job: a pod's real use reaches Redis under its measurement hash, within 5 % of what its cgroup says, through
// an agent that is killed in the middle (C86) and one that is told to stop.
func TestMeasurementsReachRedis(t *testing.T) {
	redis := env.StartRedis(t, env.RedisOptions{})
	url := "redis://" + redis.Addr()
	s := openStore(t, url)
	checkpoint := filepath.Join(t.TempDir(), "checkpoint")
	w := newWorkload(t, "steady", "node-main")
	first := startAgent(t, url, checkpoint, "node-main")
	eventually(t, 20*time.Second, func() string {
		if code, body := first.get("/readyz"); code != http.StatusOK {
			return "not ready: " + body
		}
		return ""
	})
	before := kernelCPU(t, w.container)
	eventually(t, 10*time.Second, measured(first, w))
	w.container.Start("eat", fmt.Sprint(100<<20)).Reached()
	w.container.Start("hog", "1s").Reached()
	// The first flush comes after the default time, whatever the policy says.
	eventually(t, 30*time.Second, func() string {
		if cpu, memory := used(t, s, w.hash); cpu < 0.9*(kernelCPU(t, w.container)-before) || memory < 100 {
			return fmt.Sprintf("Redis has %.2f CPU seconds and a peak of %.0f MiB", cpu, memory)
		}
		return ""
	})
	checkPages(t, first)

	_ = first.stop(syscall.SIGKILL)
	second := startAgent(t, url, checkpoint, "node-main")
	eventually(t, 20*time.Second, measured(second, w))
	w.container.Start("hog", "500ms").Reached()
	eventually(t, 5*time.Second, func() string {
		for _, v := range views(second) {
			if v.CPUSeconds > 0.99*kernelCPU(t, w.container) {
				return ""
			}
		}
		return "the last of the work was not sampled"
	})
	if err := second.stop(syscall.SIGTERM); err != nil {
		t.Errorf("stopping: %v", err)
	}
	cpu, memory := used(t, s, w.hash)
	kernel := kernelCPU(t, w.container) - before
	if ratio := cpu / kernel; ratio < 0.95 || ratio > 1.05 {
		t.Errorf("Redis has %.3f CPU seconds, the kernel counted %.3f", cpu, kernel)
	}
	if memory < 100 || memory > 130 {
		t.Errorf("Redis has a memory peak of %.1f MiB with 100 MiB held", memory)
	}
}

func checkPages(t *testing.T, a *agent) {
	t.Helper()
	if code, body := a.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	_, metrics := a.get("/metrics")
	for _, want := range []string{
		`plimsoll_container_cpu_request_cores{container="app",namespace="default",pod="steady"} 2`,
		`plimsoll_agent_containers{state="measured"} 1`, `plimsoll_agent_redis_up 1`, `plimsoll_agent_interval_stretch_ratio 1`,
		`plimsoll_agent_spool_blobs 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// Redis is nowhere: the agent runs, and says so in its log, its readiness and its metrics, once each.
func TestRedisAway(t *testing.T) {
	a := startAgent(t, fmt.Sprintf("redis://127.0.0.1:%d", freePort(t)), "", "node-away")
	eventually(t, 20*time.Second, func() string {
		code, body := a.get("/readyz")
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "check that the host and port of the Redis URL are reachable") || strings.Contains(body, "api server") {
			return fmt.Sprintf("/readyz: %d %s", code, body)
		}
		return ""
	})
	if code, _ := a.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	eventually(t, 30*time.Second, func() string {
		if _, body := a.get("/metrics"); !regexp.MustCompile(`(?m)^plimsoll_agent_flush_failures_total [1-9]`).MatchString(body) || !strings.Contains(body, "plimsoll_agent_redis_up 0") {
			return "no failed flushes in the metrics"
		}
		return ""
	})
	if n := strings.Count(a.logged(), "redis is away"); n != 1 {
		t.Errorf("told %d times that Redis is away", n)
	}
	if err := a.stop(syscall.SIGTERM); err != nil {
		t.Errorf("stopping without Redis: %v", err)
	}
}

// What makes a workload follows the configuration, while the agent runs.
func TestIdentityLabelsOfTheConfig(t *testing.T) {
	redis := env.StartRedis(t, env.RedisOptions{})
	w := newWorkload(t, "renamed", "node-config")
	a := startAgent(t, "redis://"+redis.Addr(), "", "node-config")
	eventually(t, 20*time.Second, measured(a, w))

	config := &v1alpha1.PlimsollConfig{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ConfigName}}
	config.Spec.IdentityLabels = []string{v1alpha1.LabelMode}
	c := kube(t)
	if err := c.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	byDefault := w.hash
	ref := v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "renamed"}
	w.hash = profile.KeyOf(w.pod.Labels, config.Spec.IdentityLabels, ref).MeasurementHash()
	eventually(t, 20*time.Second, measured(a, w))

	if err := c.Delete(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	w.hash = byDefault
	eventually(t, 20*time.Second, measured(a, w))

	// A pod that is no longer enrolled is no longer measured, though its container runs.
	w.pod.Labels[v1alpha1.LabelMode] = string(v1alpha1.ModeOff)
	if err := c.Update(t.Context(), w.pod); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string {
		if all := views(a); len(all) > 0 {
			return fmt.Sprintf("still measured: %+v", all)
		}
		return ""
	})
}

// The API server is away at the start, and comes.
func TestAPIServerAway(t *testing.T) {
	redis := env.StartRedis(t, env.RedisOptions{})
	away := filepath.Join(t.TempDir(), "kubeconfig")
	text, err := os.ReadFile(api.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`server: .*`).ReplaceAll(text, []byte(fmt.Sprintf("server: https://127.0.0.1:%d", freePort(t))))
	if err := os.WriteFile(away, text, 0o600); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, "redis://"+redis.Addr(), "", "node-away", "--kubeconfig", away)
	eventually(t, 20*time.Second, func() string {
		code, body := a.get("/readyz")
		if code != http.StatusServiceUnavailable || !strings.Contains(body, "api server: ") || strings.Contains(body, "redis") {
			return fmt.Sprintf("/readyz: %d %s", code, body)
		}
		return ""
	})
	if err := a.stop(syscall.SIGTERM); err != nil {
		t.Errorf("stopping without an API server: %v", err)
	}
}
