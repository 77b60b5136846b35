package cgroup

import "time"

// Fields says which parts of a Reading the kernel gave.
type Fields uint16

const (
	// HasThrottling marks Periods, ThrottledPeriods and Throttled.
	HasThrottling Fields = 1 << iota
	// HasStat marks Anon, File, InactiveFile.
	HasStat
	// HasSlab marks SlabReclaimable; v1 does not account it per cgroup.
	HasSlab
	// HasPeak marks Peak; memory.peak exists since Linux 5.19 on v2.
	HasPeak
	// HasOOM marks OOMKills and LimitHits.
	HasOOM
	// HasOwnOOM marks OwnOOMKills.
	HasOwnOOM
)

// Reading is what a cgroup's files said at one moment. Counters are since the cgroup was made, amounts in bytes.
type Reading struct {
	At  time.Time
	Has Fields

	// CPU is the CPU time used by the cgroup and its descendants.
	CPU time.Duration
	// Periods, ThrottledPeriods and Throttled are the CFS bandwidth counters of the cgroup itself.
	Periods          uint64
	ThrottledPeriods uint64
	Throttled        time.Duration

	// MemoryUsage is everything charged: anonymous, page cache, kernel.
	MemoryUsage     uint64
	Anon            uint64
	File            uint64
	InactiveFile    uint64
	SlabReclaimable uint64
	// Peak is the kernel's watermark of MemoryUsage; it is never reset.
	Peak uint64

	// OOMKills counts processes killed by any OOM killer: of the cgroup and its descendants on v2, of the cgroup
	// itself on v1, where the kernel does not add up.
	OOMKills uint64
	// OwnOOMKills counts only those of the cgroup itself.
	OwnOOMKills uint64
	// LimitHits rises when the cgroup's own memory limit refused a charge (v1: also one that reclaim then
	// satisfied; v2: only one that reclaim could not).
	LimitHits uint64
}

// WorkingSet is the memory that would be missed: usage less what the kernel gives back first, which is the inactive
// page cache and the reclaimable slab. Kubernetes' own figure keeps the slab; here a process which walks many files
// does not look larger for the dentries and inodes it leaves behind.
func (r *Reading) WorkingSet() uint64 {
	idle := r.InactiveFile + r.SlabReclaimable
	if idle >= r.MemoryUsage {
		return 0
	}
	return r.MemoryUsage - idle
}
