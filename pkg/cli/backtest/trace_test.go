package backtest_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"plimsoll.dev/pkg/cli/backtest"
)

func TestReadTrace(t *testing.T) {
	tests := map[string]struct {
		text string
		want string // of the error, empty for none
	}{
		"all columns":            {"series,timestamp,cpu,memory\na,0,0.5,100\na,60,250m,1Mi\n", ""},
		"other order and others": {"cpu,host,timestamp\n1,x,2024-01-01T00:00:00Z\n2,y,2024-01-01 00:05:00\n", ""},
		"unmeasured values":      {"timestamp,cpu,memory\n0,,5\n60,1,\n", ""},
		"no header":              {"", "reading the trace's header: EOF"},
		"no use at all":          {"timestamp,disk\n", "name the columns timestamp and cpu or memory"},
		"no sample":              {"timestamp,cpu\n", "the trace has no sample"},
		"not a number":           {"timestamp,cpu\n0,fast\n", `trace line 2: cpu "fast": write a number or a quantity`},
		"negative":               {"timestamp,cpu\n0,-1\n", `trace line 2: cpu "-1" is out of range`},
		"not a time":             {"timestamp,cpu\nyesterday,1\n", `trace line 2: timestamp "yesterday": write RFC 3339`},
		"a time far away":        {"timestamp,cpu\n1e300,1\n", `trace line 2: timestamp "1e300" is out of range`},
		"time standing still":    {"timestamp,cpu\n60,1\n60,1\n", `trace line 3: timestamp is not after the one before of series ""`},
		"a short line":           {"timestamp,cpu\n60\n", "wrong number of fields"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := backtest.ReadTrace(strings.NewReader(tt.text))
			switch {
			case err == nil && tt.want != "":
				t.Errorf("no error, want %q", tt.want)
			case err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %q, want %q", err, tt.want)
			}
		})
	}
}

func TestReadTraceValues(t *testing.T) {
	got, err := backtest.ReadTrace(strings.NewReader("series,timestamp,cpu,memory\nb,0,250m,\na,0,1,1Ki\nb,300,1.5,2\nb,600,1,2\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Name != "b" || got[1].Name != "a" || got[0].Step != 5*time.Minute {
		t.Fatalf("got %+v", got)
	}
	first := got[0].Samples[0]
	if first.CPU != 0.25 || !math.IsNaN(first.Memory) || !first.At.Equal(time.Unix(0, 0)) {
		t.Errorf("got %+v", first)
	}
	if got[1].Samples[0].Memory != 1024 {
		t.Errorf("memory %v, want 1024", got[1].Samples[0].Memory)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("series,timestamp,cpu,memory\na,0,0.5,100\na,60,250m,1Mi\n")
	f.Add("timestamp,cpu\n2024-01-01T00:00:00Z,1\n")
	f.Fuzz(func(t *testing.T, text string) {
		series, err := backtest.ReadTrace(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, s := range series {
			if s.Step <= 0 || len(s.Samples) == 0 {
				t.Fatalf("series %q: step %v, %d samples", s.Name, s.Step, len(s.Samples))
			}
			for _, p := range s.Samples {
				if p.CPU < 0 || p.Memory < 0 || math.IsInf(p.CPU, 0) || math.IsInf(p.Memory, 0) {
					t.Fatalf("%+v", p)
				}
			}
		}
	})
}
