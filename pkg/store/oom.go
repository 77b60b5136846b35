package store

import (
	"context"
	"encoding/binary"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"plimsoll.dev/pkg/sample"
)

// Scope says whose limit an OOM kill enforced.
type Scope uint8

const (
	// ScopeContainer is a kill at the container's own memory limit.
	ScopeContainer Scope = 1
	// ScopePod is a kill at a limit above the container: its pod's.
	ScopePod Scope = 2
	// ScopeNode is a kill because the node was out of memory, which says nothing about the container's limit.
	ScopeNode Scope = 3
)

// OOMKill is one kill by the kernel for want of memory.
type OOMKill struct {
	Hash, Container, PodUID string
	// KernelTime is the kernel's clock at the kill in nanoseconds since boot: with the pod, it names the kill.
	KernelTime uint64
	// At is the same moment on the wall clock.
	At time.Time
	// Limit and Usage are the memory limit hit, 0 if there was none, and the usage at that moment, in bytes.
	Limit, Usage sample.Amount
	Scope        Scope
}

// An OOM kill's value is the version byte, then varints: Unix ms, limit, usage, scope.
const oomVersion = 1

// maxKills is how many kills of a profile are kept, the newest.
const maxKills = 256

func (k OOMKill) field() string {
	return k.Container + "|" + k.PodUID + "|" + strconv.FormatUint(k.KernelTime, 10)
}

func (k OOMKill) appendBinary(b []byte) []byte {
	b = append(b, oomVersion)
	b = binary.AppendUvarint(b, uint64(max(0, k.At.UnixMilli())))
	for _, v := range [...]sample.Amount{k.Limit, k.Usage, sample.Amount(k.Scope)} {
		b = binary.AppendUvarint(b, uint64(max(0, min(v, 1<<53))))
	}
	return b
}

func parseKill(hash, field, value string) (OOMKill, error) {
	parts := strings.Split(field, "|")
	if len(parts) != 3 || parts[0] == "" {
		return OOMKill{}, fmt.Errorf("OOM kill %q is not container|pod|time", field)
	}
	kernel, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return OOMKill{}, fmt.Errorf("OOM kill %q: time is not a number", field)
	}
	v, err := varints([]byte(value), oomVersion, 4)
	if err != nil {
		return OOMKill{}, fmt.Errorf("OOM kill %q: %w", field, err)
	}
	if v[3] < uint64(ScopeContainer) || v[3] > uint64(ScopeNode) {
		return OOMKill{}, fmt.Errorf("OOM kill %q: scope %d is not known", field, v[3])
	}
	return OOMKill{
		Hash: hash, Container: parts[0], PodUID: parts[1], KernelTime: kernel, At: time.UnixMilli(int64(v[0])),
		Limit: sample.Amount(v[1]), Usage: sample.Amount(v[2]), Scope: Scope(v[3]),
	}, nil
}

func (p *flushPipeline) putKills(ctx context.Context, kills []OOMKill) []*redis.IntCmd {
	cmds := make([]*redis.IntCmd, len(kills))
	hashes := map[string]bool{}
	for i, k := range kills {
		p.use(k.Hash)
		cmds[i] = p.HSet(ctx, oomKey(k.Hash), k.field(), k.appendBinary(nil))
		hashes[k.Hash] = true
	}
	for hash := range hashes {
		p.PExpire(ctx, oomKey(hash), oomTTL)
	}
	return cmds
}

// killsOf returns the kills after since, oldest first, and the fields to remove: unreadable, older, or too many.
func killsOf(hash string, values map[string]string, since time.Time) (kills []OOMKill, surplus []string) {
	for field, value := range values {
		k, err := parseKill(hash, field, value)
		if err != nil || k.At.Before(since) {
			surplus = append(surplus, field)
			continue
		}
		kills = append(kills, k)
	}
	sort.Slice(kills, func(i, j int) bool {
		if !kills[i].At.Equal(kills[j].At) {
			return kills[i].At.Before(kills[j].At)
		}
		return kills[i].field() < kills[j].field()
	})
	if n := len(kills) - maxKills; n > 0 {
		for _, k := range kills[:n] {
			surplus = append(surplus, k.field())
		}
		kills = kills[n:]
	}
	return kills, surplus
}
