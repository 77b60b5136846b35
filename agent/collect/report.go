package collect

import (
	"slices"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/store"
)

// Report is what goes to the store beside the sketches.
type Report struct {
	Live     []store.Live
	Gone     []store.Gone
	OOMKills []store.OOMKill
}

// Report returns the live values, the containers gone since the last Reported, and the OOM kills not stored yet.
func (l *Loop) Report(now time.Time) Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Report{Gone: slices.Clone(l.gone), OOMKills: l.takeKills(now)}
	for _, t := range l.order {
		if t.hash == "" || t.last.at.IsZero() {
			continue
		}
		peak, throttled := t.recent.read(now)
		r.Live = append(r.Live, store.Live{
			Hash: t.hash, PodUID: string(t.Pod.UID), Container: t.Name, At: t.last.at,
			Memory: sample.Amount(t.usage.WorkingSet), MemoryMax: sample.Amount(peak),
			Throttled: throttled, OOMKills: t.kills,
		})
	}
	return r
}

// Reported forgets what of a Report has reached the store; written tells it for each of its OOM kills.
func (l *Loop) Reported(r Report, written []bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := map[store.OOMKill]bool{}
	for i, k := range r.OOMKills {
		done[k] = i < len(written) && written[i]
	}
	l.kills.stored = slices.DeleteFunc(l.kills.stored, func(k store.OOMKill) bool { return done[k] })
	l.gone = l.gone[min(len(r.Gone), len(l.gone)):]
}
