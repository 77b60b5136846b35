package store_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"plimsoll.dev/pkg/sample"
	"plimsoll.dev/pkg/sketch"
	"plimsoll.dev/pkg/store"
	"plimsoll.dev/test/env"
)

// results are the figures of the benchmarks that ran: name → value and unit.
var results = map[string]string{}

func result(name string, value float64, unit string) {
	format := "%.3g %s"
	if value >= 100 {
		format = "%.0f %s"
	}
	results[name] = fmt.Sprintf(format, value, unit)
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, name := range slices.Sorted(maps.Keys(results)) {
		fmt.Printf("RESULT %s %s\n", name, results[name])
	}
	os.Exit(code)
}

// usage is a service with a day's rhythm on one node: CPU noisy and bursty, memory creeping and released, disk growing.
type usage struct {
	rnd    *rand.Rand
	scale  float64
	memory float64
	carry  float64
}

func newUsage(seed uint64) *usage {
	rnd := rand.New(rand.NewPCG(seed, 7))
	return &usage{rnd: rnd, scale: 0.8 + 0.4*rnd.Float64(), memory: 200 << 20}
}

// hour returns the blob of one hour sampled each second, CPU also in windows of 100 ms.
func (u *usage) hour(hour int64) *store.Blob {
	blob := &store.Blob{Final: true, Started: time.Unix(hour*3600, 0), Minutes: 1<<60 - 1}
	for r := range blob.Usage {
		blob.Usage[r] = &sketch.Sketch{}
	}
	day := 0.5 - 0.5*math.Cos(2*math.Pi*float64(hour%24)/24)
	level := (0.05 + 0.55*day) * u.scale
	for second := range 3600 {
		// Real samples are never exactly a second apart; an agent counts whole ones and carries the rest.
		u.carry += float64(995 + u.rnd.IntN(11))
		weight := math.Round(u.carry/1000) * 1000
		u.carry -= weight
		cpu := level * math.Exp(0.4*u.rnd.NormFloat64())
		blob.Usage[sample.CPU].Add(cpu, weight)
		for range 10 {
			blob.Usage[sample.CPUBurst].Add(cpu*math.Exp(0.7*u.rnd.NormFloat64()-0.245), 100)
		}
		if u.memory += 20e3 * u.rnd.Float64(); u.memory > 420<<20 {
			u.memory = 200 << 20
		}
		memory := math.Round((u.memory+float64(cpu)*20e6)/4096) * 4096
		blob.Usage[sample.Memory].Add(memory, weight)
		blob.Usage[sample.MemoryPeak].Add(memory+4096*math.Round(100*u.rnd.ExpFloat64()), weight)
		if second%60 == 0 {
			blob.Usage[sample.EphemeralStorage].Add(float64(50<<20+(hour%24)*3600*1000+int64(second)*1000), 60000)
		}
	}
	for r := range blob.Usage {
		blob.Flush += blob.Usage[r].Count()
	}
	return blob
}

// writeHour writes an hour of every agent's two containers.
func writeHour(tb testing.TB, s *store.Store, hour int64, agents []*usage) {
	tb.Helper()
	var batch store.Batch
	for i, u := range agents {
		for _, container := range []string{"application", "sidecar-proxy"} {
			value, err := u.hour(hour).AppendBinary(nil)
			if err != nil {
				tb.Fatal(err)
			}
			batch.Writes = append(batch.Writes, store.Write{Value: value, Field: store.Field{
				Hash: hash, Hour: hour, Container: container, Agent: fmt.Sprintf("ip-10-20-%d-17.eu-central-1.compute.internal", i),
				Epoch: rand.Uint64(),
			}})
		}
	}
	flush(tb, s, batch)
}

func agents(n int) []*usage {
	all := make([]*usage, n)
	for i := range all {
		all[i] = newUsage(uint64(i))
	}
	return all
}

// fill writes eight days and the open hour, folding as an owner does.
func fill(tb testing.TB, s *store.Store, n int) {
	tb.Helper()
	all := agents(n)
	hour := store.HourOf(noon)
	for h := hour - 192; h <= hour; h++ {
		writeHour(tb, s, h, all)
		if h < hour {
			fold(tb, s, time.Unix((h+1)*3600+60, 0))
		}
	}
}

func memoryUsage(tb testing.TB, r *env.Redis, detail bool) float64 {
	tb.Helper()
	var total float64
	kinds := map[string]float64{}
	for _, key := range keys(tb, r) {
		text, err := r.Do("MEMORY", "USAGE", key, "SAMPLES", "0")
		if err != nil {
			tb.Fatal(err)
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			tb.Fatal(err)
		}
		total += n
		kinds[strings.Split(key, ":")[3]] += n
	}
	if detail {
		tb.Logf("bytes by kind of key: %v", kinds)
	}
	return total
}

// Containers × resources of the profile that is filled.
const series = 2 * sample.Count

func BenchmarkBytes8Days(b *testing.B) {
	for name, n := range map[string]int{"store_bytes_8d": 50, "store_bytes_8d_1": 1} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := env.StartRedis(b, env.RedisOptions{})
			fill(b, open(b, r.Addr()), n)
			result(name, memoryUsage(b, r, true)/series, "bytes")
		})
	}
	b.Run("list", func(b *testing.B) {
		r := env.StartRedis(b, env.RedisOptions{})
		u := newUsage(1)
		for _, kind := range []string{"cpu", "memory"} {
			args := []string{"RPUSH", "x:x:x:" + kind}
			for range 10000 {
				v := fmt.Sprintf("%.6f", math.Exp(0.4*u.rnd.NormFloat64()))
				if kind == "memory" {
					v = strconv.Itoa(200<<20 + 4096*u.rnd.IntN(10000))
				}
				args = append(args, v)
			}
			if _, err := r.Do(args...); err != nil {
				b.Fatal(err)
			}
		}
		result("list_10000_bytes", memoryUsage(b, r, true)/2, "bytes")
	})
}

// BenchmarkFlush writes 100 containers of 5 resources, each of a profile of its own, and reports what that costs Redis.
func BenchmarkFlush(b *testing.B) {
	r := env.StartRedis(b, env.RedisOptions{})
	s := open(b, r.Addr())
	hour := store.HourOf(noon)
	var batch store.Batch
	u := newUsage(1)
	for i := range 100 {
		value, err := u.hour(hour).AppendBinary(nil)
		if err != nil {
			b.Fatal(err)
		}
		batch.Writes = append(batch.Writes, store.Write{Value: value, Field: store.Field{
			Hash: fmt.Sprintf("%016x", i), Hour: hour, Container: "application", Agent: "ip-10-20-1-17.eu-central-1.compute.internal", Epoch: 1,
		}})
	}
	flush(b, s, batch)
	commands := []string{"hset", "pexpire", "get", "hmget"}
	cost := func() (usec int) {
		for _, c := range commands {
			_, us := commandStats(b, r, c)
			usec += us
		}
		return usec
	}
	before := cost()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		flush(b, s, batch)
	}
	b.StopTimer()
	result("store_flush_redis_us", float64(cost()-before)/float64(b.N), "us")
	result("store_flush_us", float64(b.Elapsed().Microseconds())/float64(b.N), "us")
}

// BenchmarkWindow reads the history of two containers of five resources over eight days.
func BenchmarkWindow(b *testing.B) {
	for _, n := range []int{10, 50} {
		r := env.StartRedis(b, env.RedisOptions{})
		s := open(b, r.Addr())
		hour := store.HourOf(noon)
		blocks := agents(1)
		for h := hour - 192; h < hour; h++ {
			writeHour(b, s, h, blocks)
			fold(b, s, time.Unix((h+1)*3600+60, 0))
		}
		writeHour(b, s, hour, agents(n))
		b.Run(fmt.Sprintf("cold/%d", n), func(b *testing.B) {
			for i := 0; i < b.N; i++ {
				s.Forget(hash)
				window(b, s, noon)
			}
			result(fmt.Sprintf("store_window_cold_%d_us", n), float64(b.Elapsed().Microseconds())/float64(b.N), "us")
		})
		b.Run(fmt.Sprintf("open hour/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			window(b, s, noon)
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				window(b, s, noon)
			}
			result(fmt.Sprintf("store_window_%d_us", n), float64(b.Elapsed().Microseconds())/float64(b.N), "us")
		})
	}
}

// BenchmarkWindows reads the open hours of many profiles whose blocks are cached, on two goroutines, and reports what ten
// thousand would take, and the heap their caches take.
func BenchmarkWindows(b *testing.B) {
	const profiles = 1000
	r := env.StartRedis(b, env.RedisOptions{})
	s := open(b, r.Addr())
	hour := store.HourOf(noon)
	blocks := agents(1)
	for h := hour - 192; h < hour; h++ {
		writeHour(b, s, h, blocks)
		fold(b, s, time.Unix((h+1)*3600+60, 0))
	}
	writeHour(b, s, hour, agents(10))
	for _, key := range keys(b, r) {
		for i := range profiles {
			if _, err := r.Do("COPY", key, strings.Replace(key, hash, profile(i), 1)); err != nil {
				b.Fatal(err)
			}
		}
	}
	each := func() {
		var wait sync.WaitGroup
		for worker := range 2 {
			wait.Go(func() {
				for i := worker; i < profiles; i += 2 {
					if _, err := s.Window(b.Context(), profile(i), noon, retention); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wait.Wait()
	}
	before := heap()
	each()
	each()
	result("store_cache_10k_mib", float64(heap()-before)/(1<<20)*10000/profiles, "MiB")
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		each()
	}
	result("store_window_10k_s", b.Elapsed().Seconds()/float64(b.N)*10000/profiles, "s")
}

func profile(i int) string { return fmt.Sprintf("%016x", i) }

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
