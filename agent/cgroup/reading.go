package cgroup

import "time"

// Fields says which parts of a Reading the kernel gave.
type Fields uint16

const (
	// HasThrottling marks Periods, ThrottledPeriods and Throttled.
	HasThrottling Fields = 1 << iota
	// HasStat marks Anon, File, InactiveFile, ActiveFile, MappedFile.
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
	ActiveFile      uint64
	MappedFile      uint64
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

// WorkingSet is the memory in use: usage less what the kernel takes back before it would kill anything, which is the page
// cache that no process has mapped, and the reclaimable slab (v2; v1 does not say how much that is).
//
// Kubernetes' figure subtracts the inactive page cache only. A file read twice is active, so that figure grows to
// whatever the limit is in a program that reads more files than fit, and a limit made from it would grow with it.
// This one is never above Kubernetes'.
func (r *Reading) WorkingSet() uint64 {
	idle := r.InactiveFile + r.SlabReclaimable
	if r.ActiveFile > r.MappedFile {
		idle += r.ActiveFile - r.MappedFile
	}
	if idle >= r.MemoryUsage {
		return 0
	}
	return r.MemoryUsage - idle
}
