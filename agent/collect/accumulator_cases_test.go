package collect_test

import (
	"testing"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/test/env"
)

func TestC84RedisAwayForTenMinutesAndForFiveHours(t *testing.T) {
	for name, away := range map[string]time.Duration{"ten minutes": 10 * time.Minute, "five hours": 5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, env.RedisOptions{Persist: true})
			r.add(100)
			r.flush()
			r.redis.Stop()
			total := 100
			for end := r.clock.Wall.Add(away); r.clock.Wall.Before(end); {
				r.add(60)
				total += 60
				r.clock.advance(away / 12)
				r.flushFails()
			}
			r.redis.Start()
			r.add(1)
			r.flush()
			r.flush()
			r.want(total + 1)
			r.fold()
			r.want(total + 1)
			// An hour and a half later everything has been folded and the agent knows.
			r.clock.advance(time.Hour)
			r.flush()
			r.fold()
			for range 5 {
				r.clock.advance(time.Minute)
				r.flush()
			}
			r.want(total + 1)
			if s := r.acc.Stats(); s.Kept != 0 || s.Bytes != 0 || s.Dropped != 0 {
				t.Errorf("the agent still has %+v", s)
			}
		})
	}
}

func TestC84FailoverToAReplicaThatMissedTheLastMinute(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	replica := env.StartRedisReplica(t, r.redis)
	r.add(60)
	r.clock.advance(time.Hour) // the hour closes
	r.add(60)
	r.flush()
	waitForCopy(t, r.redis, replica)
	replica.Promote() // it copies no more
	// What now happens reaches the primary only: another flush, the hour's fold, and the agent learns of the fold.
	r.add(30)
	r.flush()
	r.fold()
	r.add(30)
	r.flush()
	r.want(180)
	r.redis.Kill()
	r.proxy.Retarget(replica.Addr())
	r.add(1)
	r.clock.advance(time.Minute)
	flushUntil(t, r)
	r.flush()
	r.want(181)
	r.fold()
	r.want(181)
}

func waitForCopy(t *testing.T, primary, replica *env.Redis) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		a, errA := primary.Do("DEBUG", "DIGEST")
		b, errB := replica.Do("DEBUG", "DIGEST")
		if errA != nil || errB != nil {
			a, errA = primary.Do("DBSIZE")
			b, errB = replica.Do("DBSIZE")
		}
		if errA == nil && errB == nil && a == b {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica has %s (%v), the primary %s (%v)", b, errB, a, errA)
		}
	}
}

// flushUntil flushes until it succeeds: the first attempts find connections broken.
func flushUntil(t *testing.T, r *storeRig) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		err := r.acc.Flush(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestC85RedisRestartsEmpty(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(60)
	r.clock.advance(time.Hour)
	r.add(60)
	r.flush()
	r.fold()
	r.want(120)
	r.redis.RestartEmpty()
	r.add(1)
	flushUntil(t, r)
	// The agent still has the hour that closed: it was folded so lately that the fold could have been lost.
	r.clock.advance(time.Minute)
	r.flush()
	r.want(121)
	r.redis.RestartEmpty()
	r.want(0) // nothing of what the owner remembers is taken for what Redis has
}

func TestC86KilledAndRestarted(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(100)
	r.flush()
	r.add(10) // lost: not flushed
	r.start()
	r.add(5)
	r.flush()
	r.want(105)
	r.fold()
	r.want(105)
	// While Redis is away, what a flush tried to write survives too.
	r.proxy.Down()
	r.add(50)
	r.flushFails()
	r.start()
	r.proxy.Up()
	r.flush()
	r.flush()
	r.want(155)
	r.fold()
	r.want(155)
}

func TestC88ProfileDeletedWithLivePods(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	r.add(60)
	r.clock.advance(time.Hour)
	r.add(60)
	r.flush()
	r.fold()
	r.add(7)
	// The webhook's clock is three seconds ahead of the node's.
	if err := r.owner.Reset(t.Context(), hash, r.clock.Wall.Add(3*time.Second)); err != nil {
		t.Fatal(err)
	}
	r.want(0)
	r.clock.advance(time.Second)
	if err := r.acc.Flush(t.Context()); err != nil { // the agent learns of the reset after it wrote the old blobs again
		t.Fatal(err)
	}
	r.want(0)
	r.acc.Add(hash, "app", sample.CPU, 0.5, time.Second, false)
	r.flush()
	r.want(1)
	r.fold()
	r.want(1)
	r.clock.advance(2 * time.Hour)
	r.flush()
	r.fold()
	r.want(1)
}

func TestC27TheSameValueTenThousandTimes(t *testing.T) {
	r := newStoreRig(t, env.RedisOptions{})
	for range 100 {
		r.add(100)
		r.flush()
	}
	r.want(10000)
	for range 3 {
		r.clock.advance(time.Hour)
		r.flush()
		r.fold()
	}
	r.want(10000)
}

func TestC28ClockJumps(t *testing.T) {
	for name, jump := range map[string]time.Duration{
		"back an hour": -time.Hour, "ahead an hour": time.Hour, "ahead three days": 72 * time.Hour, "back three seconds": -3 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			r := newStoreRig(t, env.RedisOptions{})
			truth := *r.clock
			r.add(60)
			r.flush()
			r.add(40) // not flushed when the clock jumps
			r.clock.Wall = r.clock.Wall.Add(jump)
			r.add(50)
			r.flush()
			// The clock is put right again.
			r.clock.Wall = truth.Wall.Add(r.clock.Mono - truth.Mono)
			r.add(50)
			r.flush()
			r.clock.advance(90 * time.Minute)
			r.flush()
			r.fold()
			visible := 200
			if jump == 72*time.Hour {
				visible = 150 // three days early; it will count when its time comes
			}
			r.want(visible)
			if s := r.acc.Stats(); s.Dropped != 0 {
				t.Errorf("%d samples dropped", s.Dropped)
			}
		})
	}
}
