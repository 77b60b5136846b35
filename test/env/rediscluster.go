package env

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// RedisClusterOptions says how a Redis Cluster is built.
type RedisClusterOptions struct {
	// RedisOptions hold for every node.
	RedisOptions
	// Shards is the number of primaries; 0 means 3.
	Shards int
	// Replicas is the number of replicas of each primary.
	Replicas int
}

// RedisCluster is a running Redis Cluster whose nodes share the 16384 slots
// evenly.
type RedisCluster struct {
	// Primaries holds the node of each shard, in slot order.
	Primaries []*Redis
	// Replicas holds the replicas of each shard, in the order of Primaries.
	Replicas [][]*Redis
}

// StartRedisCluster starts a cluster and waits until every node sees all slots
// served; it is stopped at the end of the test.
func StartRedisCluster(t TB, o RedisClusterOptions) *RedisCluster {
	t.Helper()
	if o.Shards == 0 {
		o.Shards = 3
	}
	c := &RedisCluster{}
	for range o.Shards {
		c.Primaries = append(c.Primaries, startClusterNode(t, o.RedisOptions))
		var replicas []*Redis
		for range o.Replicas {
			replicas = append(replicas, startClusterNode(t, o.RedisOptions))
		}
		c.Replicas = append(c.Replicas, replicas)
	}
	if err := c.join(); err != nil {
		t.Fatalf("building the Redis Cluster: %v", err)
	}
	for _, n := range c.Nodes() {
		n.waitFor("the cluster to be whole", "cluster_state:ok", "CLUSTER", "INFO")
	}
	for i, replicas := range c.Replicas {
		for _, r := range replicas {
			r.waitFor("the copy of shard "+strconv.Itoa(i), "master_link_status:up", "INFO", "replication")
		}
	}
	return c
}

func startClusterNode(t TB, o RedisOptions) *Redis {
	t.Helper()
	args := []string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		// The default bus port, 10000 above, may be anybody's.
		"--cluster-port", strconv.Itoa(freePort()),
		"--cluster-node-timeout", "2000",
		"--cluster-require-full-coverage", "yes",
	}
	if o.Password != "" {
		args = append(args, "--masterauth", o.Password)
	}
	return startRedis(t, o, args...)
}

// join gives every primary its slots, introduces the nodes to the first one
// and attaches the replicas.
func (c *RedisCluster) join() error {
	const slots = 16384
	n := len(c.Primaries)
	for i, p := range c.Primaries {
		first, last := slots*i/n, slots*(i+1)/n-1
		if _, err := p.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)); err != nil {
			return fmt.Errorf("giving slots %d to %d to %s: %w", first, last, p.Addr(), err)
		}
		if _, err := p.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return fmt.Errorf("setting the epoch of %s: %w", p.Addr(), err)
		}
	}
	first := c.Primaries[0]
	for _, node := range c.Nodes()[1:] {
		if _, err := node.Do("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(first.port), busPort(first)); err != nil {
			return fmt.Errorf("introducing %s: %w", node.Addr(), err)
		}
	}
	for i, replicas := range c.Replicas {
		id, err := c.Primaries[i].Do("CLUSTER", "MYID")
		if err != nil {
			return fmt.Errorf("asking %s for its id: %w", c.Primaries[i].Addr(), err)
		}
		for _, r := range replicas {
			// A node can follow another only once gossip has told it of it.
			err := poll(20*time.Second, func() error {
				_, err := r.Do("CLUSTER", "REPLICATE", id)
				return err
			})
			if err != nil {
				return fmt.Errorf("making %s a replica of %s: %w", r.Addr(), c.Primaries[i].Addr(), err)
			}
			// One that is promoted before its first copy would come up empty.
			r.waitFor("the first copy from "+c.Primaries[i].Addr(), "master_link_status:up", "INFO", "replication")
		}
	}
	return nil
}

func busPort(r *Redis) string {
	for i, a := range r.args {
		if a == "--cluster-port" {
			return r.args[i+1]
		}
	}
	return ""
}

// Addrs returns the addresses of all nodes, primaries first.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes() {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Nodes returns all nodes, primaries first.
func (c *RedisCluster) Nodes() []*Redis {
	nodes := append([]*Redis(nil), c.Primaries...)
	for _, replicas := range c.Replicas {
		nodes = append(nodes, replicas...)
	}
	return nodes
}

// PrimaryOf returns the server that holds a key's slot, as the cluster was
// built; a failover is not followed. It fails the test if no node answers.
func (c *RedisCluster) PrimaryOf(key string) *Redis {
	t := c.Primaries[0].t
	t.Helper()
	for _, p := range c.Primaries {
		text, err := p.Do("CLUSTER", "KEYSLOT", key)
		if err != nil {
			continue
		}
		slot, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			t.Fatalf("reading the slot of %q: %v", key, err)
		}
		for i, owner := range c.Primaries {
			if slot < 16384*(i+1)/len(c.Primaries) {
				return owner
			}
		}
	}
	t.Fatalf("no node of the Redis Cluster answers")
	return nil
}
