package cgroup

// memory.usage_in_bytes (v1; Documentation/admin-guide/cgroup-v1/memory.rst, "usage_in_bytes") and memory.current (v2;
// Documentation/admin-guide/cgroup-v2.rst, "Memory Interface Files"): one number, the bytes charged to the group and its
// descendants. v1's document calls it fuzzy; since 3.19 it is the page counter itself in both.
func parseMemoryUsage(b []byte, r *Reading) error {
	n, err := singleValue(b)
	r.MemoryUsage = n
	return err
}

// memory.max_usage_in_bytes (v1) and memory.peak (v2, since 5.19): one number, the watermark of the usage in bytes.
func parseMemoryPeak(b []byte, r *Reading) error {
	n, err := singleValue(b)
	if err != nil {
		return err
	}
	r.Peak = n
	r.Has |= HasPeak
	return nil
}

// memory.stat (v1; Documentation/admin-guide/cgroup-v1/memory.rst, "stat file"): bytes of the group itself, then the
// same with the prefix total_ of the group and its descendants. cache holds shmem too. Slab is not accounted here.
//
//	cache 14192640
//	rss 7897088
//	…
//	total_cache 4225126400
//	total_rss 167677952
//	total_mapped_file 50991104
//	total_inactive_file 2199769088
//	total_active_file 2016276480
func parseMemoryStatV1(b []byte, r *Reading) error {
	var v [5]uint64
	if _, err := flatKeyed(b, memoryStatV1[:], v[:], len(v)); err != nil {
		return err
	}
	r.File, r.Anon, r.MappedFile, r.InactiveFile, r.ActiveFile = v[0], v[1], v[2], v[3], v[4]
	r.Has |= HasStat
	return nil
}

var memoryStatV1 = [...]string{
	"total_cache", "total_rss", "total_mapped_file", "total_inactive_file", "total_active_file",
}

// memory.stat (v2; Documentation/admin-guide/cgroup-v2.rst, "memory.stat"): bytes of the group and its descendants. file
// holds shmem too.
//
//	anon 7897088
//	file 14192640
//	…
//	file_mapped 1351680
//	inactive_file 1318912
//	active_file 3788800
//	slab_reclaimable 702136
func parseMemoryStatV2(b []byte, r *Reading) error {
	var v [6]uint64
	found, err := flatKeyed(b, memoryStatV2[:], v[:], 5)
	if err != nil {
		return err
	}
	r.Anon, r.File, r.MappedFile, r.InactiveFile, r.ActiveFile, r.SlabReclaimable = v[0], v[1], v[2], v[3], v[4], v[5]
	r.Has |= HasStat
	if found == 1<<len(v)-1 {
		r.Has |= HasSlab
	}
	return nil
}

var memoryStatV2 = [...]string{"anon", "file", "file_mapped", "inactive_file", "active_file", "slab_reclaimable"}

// memory.oom_control (v1; Documentation/admin-guide/cgroup-v1/memory.rst, "OOM Control"): oom_kill, since 4.13, counts the
// killed processes of the group itself, not those of its descendants.
//
//	oom_kill_disable 0
//	under_oom 0
//	oom_kill 3
func parseOOMControl(b []byte, r *Reading) error {
	var v [1]uint64
	if _, err := flatKeyed(b, oomControl[:], v[:], len(v)); err != nil {
		return err
	}
	r.OOMKills, r.OwnOOMKills = v[0], v[0]
	r.Has |= HasOOM | HasOwnOOM
	return nil
}

var oomControl = [...]string{"oom_kill"}

// memory.failcnt (v1; Documentation/admin-guide/cgroup-v1/memory.rst, "failcnt"): one number, how often the limit was hit.
func parseFailCount(b []byte, r *Reading) error {
	n, err := singleValue(b)
	r.LimitHits = n
	return err
}

// memory.events (v2; Documentation/admin-guide/cgroup-v2.rst, "memory.events"): oom_kill counts processes of the group and
// its descendants killed by any OOM killer, oom how often a limit among them was reached with nothing left to reclaim.
//
//	low 0
//	high 0
//	max 181
//	oom 3
//	oom_kill 3
//	oom_group_kill 0
func parseMemoryEvents(b []byte, r *Reading) error {
	var v [2]uint64
	if _, err := flatKeyed(b, memoryEvents[:], v[:], len(v)); err != nil {
		return err
	}
	r.LimitHits, r.OOMKills = v[0], v[1]
	r.Has |= HasOOM
	return nil
}

var memoryEvents = [...]string{"oom", "oom_kill"}

// memory.events.local (v2; since 5.2): the lines of memory.events, of the group itself. A kill is charged to the group
// of the process that died, and oom to the group whose limit was reached, which is why the container's own oom tells
// its limit from that of a cgroup inside it, of its pod, or of the node.
func parseMemoryEventsLocal(b []byte, r *Reading) error {
	var v [2]uint64
	if _, err := flatKeyed(b, memoryEvents[:], v[:], len(v)); err != nil {
		return err
	}
	r.LimitHits, r.OwnOOMKills = v[0], v[1]
	r.Has |= HasOwnOOM
	return nil
}
