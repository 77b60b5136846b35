package resize

import (
	"context"
	"fmt"
	"sync"
	"time"

	plan "plimsoll.dev/pkg/resize"
)

// liveCache keeps a profile's live values for a moment, so that looking at its
// pods one by one costs one read.
type liveCache struct {
	from   Measurements
	ttl    time.Duration
	mu     sync.Mutex
	byHash map[string]liveValues
}

type liveValues struct {
	at   time.Time
	pods map[string]map[string]plan.Live // by pod UID, then container
	err  error
}

// of returns the live values of a profile's containers by pod UID.
func (l *liveCache) of(ctx context.Context, hash string, now time.Time) (map[string]map[string]plan.Live, error) {
	if l.from == nil || hash == "" {
		return nil, nil
	}
	l.mu.Lock()
	v, ok := l.byHash[hash]
	l.mu.Unlock()
	if ok && now.Sub(v.at) < l.ttl {
		return v.pods, v.err
	}
	v = liveValues{at: now, pods: map[string]map[string]plan.Live{}}
	values, err := l.from.Live(ctx, hash, now)
	if err != nil {
		v.err = fmt.Errorf("reading live use: %w", err)
	}
	for _, x := range values {
		if v.pods[x.PodUID] == nil {
			v.pods[x.PodUID] = map[string]plan.Live{}
		}
		v.pods[x.PodUID][x.Container] = plan.Live{
			WorkingSet: int64(x.Memory), PeakWorkingSet: int64(x.MemoryMax), ThrottledShare: x.Throttled, OOMKills: int64(x.OOMKills),
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, old := range l.byHash {
		if now.Sub(old.at) > 10*l.ttl {
			delete(l.byHash, h)
		}
	}
	l.byHash[hash] = v
	return v.pods, v.err
}
