// Package backtest replays a usage trace through sketch, decay and recommendation, and scores what would have been set
// against what was used; beside it, on the same trace, the rules of other tools.
package backtest

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Sample is the use of one container over one step of a trace; NaN where it was not measured.
type Sample struct {
	At     time.Time
	CPU    float64 // cores
	Memory float64 // bytes
}

// Series is one container's use, oldest first.
type Series struct {
	Name    string
	Step    time.Duration // the usual distance of two samples, which each sample covers
	Samples []Sample
}

const (
	maxSeries  = 10_000
	maxSamples = 10_000_000
)

// ReadTrace reads a CSV file with a header. Columns, in any order: timestamp (RFC 3339, "2006-01-02 15:04:05" or Unix
// seconds), cpu (cores or a quantity such as 250m), memory (bytes or a quantity such as 64Mi) and series (a name); series
// and one of cpu and memory may be absent, others are ignored. Within a series time must go on. Series come in the order
// of their first line. Errors name the line.
func ReadTrace(r io.Reader) ([]Series, error) {
	in := csv.NewReader(r)
	in.ReuseRecord = true
	header, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("reading the trace's header: %w", err)
	}
	cols, err := columnsOf(header)
	if err != nil {
		return nil, err
	}
	var all []Series
	index := map[string]int{}
	for n := 0; ; n++ {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the trace: %w", err)
		}
		line, _ := in.FieldPos(0)
		if n >= maxSamples {
			return nil, fmt.Errorf("trace line %d: more than %d samples; split the trace", line, maxSamples)
		}
		name, sample, err := cols.parse(record)
		if err != nil {
			return nil, fmt.Errorf("trace line %d: %w", line, err)
		}
		i, ok := index[name]
		if !ok {
			if len(all) == maxSeries {
				return nil, fmt.Errorf("trace line %d: more than %d series; split the trace", line, maxSeries)
			}
			i = len(all)
			index[name] = i
			all = append(all, Series{Name: name})
		}
		s := &all[i]
		if k := len(s.Samples); k > 0 && !sample.At.After(s.Samples[k-1].At) {
			return nil, fmt.Errorf("trace line %d: timestamp is not after the one before of series %q; sort the trace and remove duplicates", line, name)
		}
		s.Samples = append(s.Samples, sample)
	}
	if len(all) == 0 {
		return nil, errors.New("the trace has no sample")
	}
	for i := range all {
		all[i].Step = step(all[i].Samples)
	}
	return all, nil
}

// columns holds the position of each column, -1 if absent.
type columns struct{ series, timestamp, cpu, memory int }

func columnsOf(header []string) (columns, error) {
	c := columns{
		series: slices.Index(header, "series"), timestamp: slices.Index(header, "timestamp"),
		cpu: slices.Index(header, "cpu"), memory: slices.Index(header, "memory"),
	}
	if c.timestamp < 0 || c.cpu < 0 && c.memory < 0 {
		return c, fmt.Errorf("trace header %.200q: name the columns timestamp and cpu or memory (and series, if there are several)", header)
	}
	return c, nil
}

func (c columns) parse(record []string) (string, Sample, error) {
	at, err := parseTime(record[c.timestamp])
	if err != nil {
		return "", Sample{}, err
	}
	s := Sample{At: at}
	if s.CPU, err = parseAmount("cpu", record, c.cpu); err != nil {
		return "", Sample{}, err
	}
	if s.Memory, err = parseAmount("memory", record, c.memory); err != nil {
		return "", Sample{}, err
	}
	if c.series < 0 {
		return "", s, nil
	}
	return record[c.series], s, nil
}

// lastSecond keeps times within what a duration can span.
const lastSecond = 1 << 33

func parseTime(text string) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if !(seconds >= 0 && seconds < lastSecond) {
			return time.Time{}, fmt.Errorf("timestamp %.40q is out of range: write Unix seconds", text)
		}
		return time.UnixMilli(int64(seconds * 1000)).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime} {
		if t, err := time.Parse(layout, text); err == nil && t.Unix() >= 0 && t.Unix() < lastSecond {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("timestamp %.40q: write RFC 3339, 2006-01-02 15:04:05 or Unix seconds", text)
}

func parseAmount(column string, record []string, i int) (float64, error) {
	if i < 0 || record[i] == "" {
		return math.NaN(), nil
	}
	v, err := strconv.ParseFloat(record[i], 64)
	if err != nil {
		q, qerr := resource.ParseQuantity(record[i])
		if qerr != nil {
			return 0, fmt.Errorf("%s %.40q: write a number or a quantity", column, record[i])
		}
		v = q.AsApproximateFloat64()
	}
	if !(v >= 0 && v <= 1e15) {
		return 0, fmt.Errorf("%s %.40q is out of range", column, record[i])
	}
	return v, nil
}

// step is the median distance of two samples, a minute for a single one.
func step(samples []Sample) time.Duration {
	if len(samples) < 2 {
		return time.Minute
	}
	gaps := make([]time.Duration, len(samples)-1)
	for i := range gaps {
		gaps[i] = samples[i+1].At.Sub(samples[i].At)
	}
	slices.Sort(gaps)
	return gaps[len(gaps)/2]
}
