package cgroup

// The parsers, for their tests and fuzzing.
var (
	ParseCPUAcctUsage      = parseCPUAcctUsage
	ParseCPUStatV1         = parseCPUStatV1
	ParseCPUStatV2         = parseCPUStatV2
	ParseMemoryUsage       = parseMemoryUsage
	ParseMemoryPeak        = parseMemoryPeak
	ParseMemoryStatV1      = parseMemoryStatV1
	ParseMemoryStatV2      = parseMemoryStatV2
	ParseOOMControl        = parseOOMControl
	ParseFailCount         = parseFailCount
	ParseMemoryEvents      = parseMemoryEvents
	ParseMemoryEventsLocal = parseMemoryEventsLocal
	ParsePressure          = parsePressure
	ParseCPUMax            = parseCPUMax
	ParseMax               = parseMax
	ParseQuota             = parseQuota
)
