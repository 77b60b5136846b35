package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/node"
)

// startPrograms starts Redis, the webhook and the agent, the latter two with
// the rights of their service accounts and no more.
func (s *Scenario) startPrograms(ctx context.Context) error {
	fmt.Fprintln(s.progress, "plimsoll: starting Redis, the webhook and the agent")
	redis, err := s.Cluster.Run("redis", "redis-server", "--port", "6379", "--bind", "127.0.0.1", "--save", "", "--dir", s.Cluster.Dir())
	if err != nil {
		return err
	}
	address, err := s.Cluster.Forward(redisAddress)
	if err != nil {
		return err
	}
	s.RedisURL = "redis://" + address
	measurements, err := store.Open(store.Config{URL: s.RedisURL})
	if err != nil {
		return err
	}
	defer measurements.Close()
	if err := node.Poll(ctx, 10*time.Second, func() error {
		if err := redis.Check(); err != nil {
			return node.Final(err)
		}
		return measurements.Ping(ctx)
	}); err != nil {
		return err
	}
	if err := s.StartWebhook(ctx); err != nil {
		return err
	}
	return s.StartAgent(ctx)
}

// StartWebhook starts the webhook and waits until it is ready.
func (s *Scenario) StartWebhook(ctx context.Context) (err error) {
	s.Webhook, err = s.RunWebhook("webhook", "redis://"+redisAddress)
	if err != nil {
		return err
	}
	return s.ready(ctx, s.Webhook, "http://"+webhookHealth+"/readyz")
}

// RunWebhook starts the webhook with a Redis and further flags; later flags win.
func (s *Scenario) RunWebhook(name, redis string, flags ...string) (*node.Process, error) {
	kubeconfig, err := s.Cluster.KubeconfigFor(system, release+"-webhook")
	if err != nil {
		return nil, err
	}
	return s.Cluster.Run(name, append([]string{
		filepath.Join(s.bin, "webhook"),
		"--kubeconfig=" + kubeconfig, "--namespace=" + system, "--redis=" + redis,
		"--bind-address=127.0.0.1", "--port=" + webhookPort,
		"--metrics-addr=127.0.0.1:8080", "--health-addr=" + webhookHealth,
		"--cert-mode=self-signed", "--cert-host=127.0.0.1",
		"--service=" + release + "-webhook", "--webhook-configuration=" + release,
		"--recommend-interval=5s", "--resize-interval=5s", "--log-format=text",
	}, flags...)...)
}

// StartAgent starts the agent and waits until it is ready.
func (s *Scenario) StartAgent(ctx context.Context) (err error) {
	s.Agent, err = s.RunAgent("agent", "redis://"+redisAddress)
	if err != nil {
		return err
	}
	return s.ready(ctx, s.Agent, "http://"+agentAddress+"/readyz")
}

// RunAgent starts the agent with a Redis and further flags; later flags win.
func (s *Scenario) RunAgent(name, redis string, flags ...string) (*node.Process, error) {
	kubeconfig, err := s.Cluster.KubeconfigFor(system, release+"-agent")
	if err != nil {
		return nil, err
	}
	return s.Cluster.Run(name, append([]string{
		filepath.Join(s.bin, "agent"),
		"--kubeconfig=" + kubeconfig, "--node-name=" + node.NodeName, "--redis=" + redis,
		"--cgroup-root=" + node.CgroupRoot, "--checkpoint=" + filepath.Join(s.Cluster.Dir(), "checkpoint"),
		"--listen=" + agentAddress, "--flush=5s", "--log-format=text",
	}, flags...)...)
}
