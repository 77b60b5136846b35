package env_test

import (
	"fmt"
	"strings"
	"testing"

	"plimsoll.dev/test/env"
)

func do(t *testing.T, r *env.Redis, args ...string) string {
	t.Helper()
	got, err := r.Do(args...)
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return got
}

func TestRedisLife(t *testing.T) {
	tests := map[string]struct {
		opts env.RedisOptions
		act  func(*env.Redis)
		want string
	}{
		"stop and start, nothing saved":  {act: func(r *env.Redis) { r.Stop(); r.Start() }},
		"restart keeps what is saved":    {opts: env.RedisOptions{Persist: true}, act: (*env.Redis).Restart, want: "v"},
		"a crash keeps what is saved":    {opts: env.RedisOptions{Persist: true}, act: func(r *env.Redis) { r.Kill(); r.Start() }, want: "v"},
		"an empty restart keeps nothing": {opts: env.RedisOptions{Persist: true}, act: (*env.Redis).RestartEmpty},
		"with a password":                {opts: env.RedisOptions{Password: "secret", Persist: true}, act: (*env.Redis).Restart, want: "v"},
		"pause and resume":               {act: func(r *env.Redis) { r.Pause(); r.Resume() }, want: "v"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := env.StartRedis(t, tt.opts)
			addr := r.Addr()
			do(t, r, "SET", "k", "v")
			tt.act(r)
			if got := do(t, r, "GET", "k"); got != tt.want {
				t.Errorf("k = %q, want %q", got, tt.want)
			}
			if r.Addr() != addr {
				t.Errorf("address changed from %s to %s", addr, r.Addr())
			}
		})
	}
}

func TestRedisFullRefusesWrites(t *testing.T) {
	r := env.StartRedis(t, env.RedisOptions{MaxMemory: "3mb"})
	value := strings.Repeat("x", 64<<10)
	for i := range 200 {
		if _, err := r.Do("SET", fmt.Sprint(i), value); err != nil {
			if !strings.HasPrefix(err.Error(), "OOM ") {
				t.Fatalf("a full Redis answers %v, want OOM", err)
			}
			if got := do(t, r, "EXISTS", "0"); got != "1" {
				t.Error("a full Redis evicted the first key")
			}
			return
		}
	}
	t.Fatal("12 MiB fit into a Redis of 3 MiB")
}

func TestRedisReplicaTakesOver(t *testing.T) {
	primary := env.StartRedis(t, env.RedisOptions{Password: "secret"})
	do(t, primary, "SET", "k", "v")
	replica := env.StartRedisReplica(t, primary)
	primary.Kill()
	replica.Promote()
	if got := do(t, replica, "GET", "k"); got != "v" {
		t.Errorf("k = %q on the promoted replica, want v", got)
	}
	do(t, replica, "SET", "k", "w")
}

func TestRedisCluster(t *testing.T) {
	tests := map[string]env.RedisClusterOptions{
		"three shards":                 {},
		"with replicas and a password": {RedisOptions: env.RedisOptions{Password: "secret"}, Replicas: 1},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			c := env.StartRedisCluster(t, o)
			if got, want := len(c.Addrs()), 3*(1+o.Replicas); got != want {
				t.Fatalf("%d nodes, want %d", got, want)
			}
			used := map[string]bool{}
			for i := range 50 {
				key := fmt.Sprintf("{%d}:k", i)
				owner := c.PrimaryOf(key)
				used[owner.Addr()] = true
				do(t, owner, "SET", key, "v")
			}
			if len(used) != 3 {
				t.Errorf("50 keys went to %d shards, want 3", len(used))
			}
		})
	}
}

func TestSentinelFailsOver(t *testing.T) {
	primary := env.StartRedis(t, env.RedisOptions{Password: "secret"})
	replica := env.StartRedisReplica(t, primary)
	sentinel := env.StartSentinel(t, primary, 1)
	do(t, primary, "SET", "k", "v")
	do(t, primary, "WAIT", "1", "5000")
	primary.Kill()
	eventually(t, "the failover", func() error {
		got, err := sentinel.Primary()
		if err == nil && got != replica.Addr() {
			err = fmt.Errorf("the primary is %s", got)
		}
		return err
	})
	if got := do(t, replica, "GET", "k"); got != "v" {
		t.Errorf("k = %q after the failover, want v", got)
	}
}

func TestClusterFailsOver(t *testing.T) {
	c := env.StartRedisCluster(t, env.RedisClusterOptions{Replicas: 1})
	owner := c.PrimaryOf("k")
	do(t, owner, "SET", "k", "v")
	do(t, owner, "WAIT", "1", "5000")
	owner.Kill()
	var heir *env.Redis
	for i, p := range c.Primaries {
		if p == owner {
			heir = c.Replicas[i][0]
		}
	}
	eventually(t, "the failover", func() error {
		got, err := heir.Do("GET", "k") // redirected to the owner until it is the owner
		if err == nil && got != "v" {
			err = fmt.Errorf("k = %q", got)
		}
		return err
	})
	do(t, heir, "SET", "k", "w")
}
