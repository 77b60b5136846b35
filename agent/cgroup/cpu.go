package cgroup

import "time"

// cpuacct.usage (v1; Documentation/admin-guide/cgroup-v1/cpuacct.rst): one number, the CPU time in nanoseconds used by
// the group and its descendants.
//
//	152066853312
func parseCPUAcctUsage(b []byte, r *Reading) error {
	n, err := singleValue(b)
	if err != nil {
		return err
	}
	r.CPU = nanos(n, time.Nanosecond)
	return nil
}

// cpu.stat (v1; Documentation/scheduler/sched-bwc.rst, "Statistics"): the bandwidth counters of the group itself.
// throttled_time is in nanoseconds, summed over its run queues. nr_bursts and burst_time follow since 5.14.
//
//	nr_periods 1290
//	nr_throttled 611
//	throttled_time 30912554611
func parseCPUStatV1(b []byte, r *Reading) error {
	var v [3]uint64
	if _, err := flatKeyed(b, cpuStatV1[:], v[:], len(v)); err != nil {
		return err
	}
	r.Periods, r.ThrottledPeriods, r.Throttled = v[0], v[1], nanos(v[2], time.Nanosecond)
	r.Has |= HasThrottling
	return nil
}

var cpuStatV1 = [...]string{"nr_periods", "nr_throttled", "throttled_time"}

// cpu.stat (v2; Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files"): usage_usec is of the group and its
// descendants; the bandwidth lines are there only with the cpu controller enabled, and are of the group itself.
//
//	usage_usec 152066853
//	user_usec 141002313
//	system_usec 11064540
//	nr_periods 1290
//	nr_throttled 611
//	throttled_usec 30912554
func parseCPUStatV2(b []byte, r *Reading) error {
	var v [4]uint64
	found, err := flatKeyed(b, cpuStatV2[:], v[:], 1)
	if err != nil {
		return err
	}
	r.CPU = nanos(v[0], time.Microsecond)
	if found == 1<<len(v)-1 {
		r.Periods, r.ThrottledPeriods, r.Throttled = v[1], v[2], nanos(v[3], time.Microsecond)
		r.Has |= HasThrottling
	}
	return nil
}

var cpuStatV2 = [...]string{"usage_usec", "nr_periods", "nr_throttled", "throttled_usec"}
