package collect

import (
	"slices"
	"time"

	"plimsoll.dev/agent/cgroup"
	"plimsoll.dev/agent/discovery"
	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

// maxKills bounds the OOM kills that wait for the store or for their container's name.
const maxKills = 1024

// kill is an OOM kill seen in a container.
type kill struct {
	target       *target
	at, since    time.Time // when it happened, and when it was noticed
	limit, usage uint64
	scope        store.Scope
}

// killLog holds OOM kills until the store has them, and what is already counted so that a kill told by the counter and
// by the pod's status counts once.
type killLog struct {
	waiting []kill
	stored  []store.OOMKill
	counted map[string]time.Time // container id → when last counted
	dropped int
}

func newKillLog() killLog { return killLog{counted: map[string]time.Time{}} }

func (k *killLog) add(one kill) {
	k.counted[one.target.ID] = one.at
	if len(k.waiting) >= maxKills {
		k.waiting = k.waiting[1:]
		k.dropped++
	}
	k.waiting = append(k.waiting, one)
}

// killOf describes a kill that happened between two readings. Without a limit of its own being hit the kill came from
// above: the pod's limit or, as far as files tell, the node, which says nothing about the container's limit.
func (l *Loop) killOf(t *target, prev, cur *cgroup.Reading, s cgroup.Sample) kill {
	k := kill{target: t, at: cur.At, since: cur.At, scope: store.ScopeNode, usage: max(prev.MemoryUsage, cur.MemoryUsage)}
	limits, err := l.files.Limits(t.Path)
	if err != nil {
		limits.Memory = specLimit(t.Container)
	}
	k.limit = limits.Memory
	if s.LimitHit && k.limit > 0 {
		k.scope = store.ScopeContainer
		k.usage = k.limit
	}
	return k
}

func specLimit(c discovery.Container) uint64 {
	return uint64(max(0, c.Resources.Limits.Memory().Value()))
}

// sameKill is how far the times may lie apart of a kill as the counter and as the pod's status tell it: the status has
// whole seconds, the counter is read at the sampling interval.
const sameKill = 10 * time.Second

// killsByStatus counts the kills that only the pod's status tells: the container's cgroup went with them before the
// counter could be read.
func (l *Loop) killsByStatus(now time.Time) {
	listed := map[string]bool{}
	for _, end := range l.containers.OOMKilled() {
		listed[end.ID] = true
		if at, ok := l.kills.counted[end.ID]; ok && at.After(end.At.Add(-sameKill)) {
			continue
		}
		t := &target{}
		l.describe(t, end.Container)
		k := kill{target: t, at: end.At, since: now, scope: store.ScopeContainer, limit: specLimit(end.Container)}
		k.usage = k.limit
		if k.limit == 0 {
			k.scope = store.ScopeNode
		}
		l.kills.add(k)
	}
	for id, at := range l.kills.counted {
		if !listed[id] && l.targets[id] == nil && now.Sub(at) > holdFor {
			delete(l.kills.counted, id)
		}
	}
}

// takeKills returns the kills to store: those whose container is known by now. The others wait, for a time.
func (l *Loop) takeKills(now time.Time) []store.OOMKill {
	kept := l.kills.waiting[:0]
	for _, k := range l.kills.waiting {
		if t := k.target; t.hash == "" {
			if c, ok := l.containers.Lookup(t.Pod.UID, t.ID); ok {
				l.describe(t, c)
			}
		}
		switch {
		case k.target.hash != "":
			l.kills.stored = append(l.kills.stored, store.OOMKill{
				Hash: k.target.hash, Container: k.target.Name, PodUID: string(k.target.Pod.UID),
				KernelTime: uint64(max(0, k.at.UnixNano())), At: k.at,
				Limit: sample.Amount(k.limit), Usage: sample.Amount(k.usage), Scope: k.scope,
			})
		case now.Sub(k.since) <= holdFor:
			kept = append(kept, k)
		default:
			l.kills.dropped++
		}
	}
	clear(l.kills.waiting[len(kept):])
	l.kills.waiting = kept
	if over := len(l.kills.stored) - maxKills; over > 0 {
		l.kills.stored = l.kills.stored[over:]
		l.kills.dropped += over
	}
	return slices.Clone(l.kills.stored)
}
