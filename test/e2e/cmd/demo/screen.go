package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"plimsoll.dev/test/e2e/scenario"
)

// plainEvery is the time between two tables where none can be overwritten.
const plainEvery = 15 * time.Second

// screen prints the story: on a terminal each table in place of the one
// before, elsewhere one after the other and less often.
type screen struct {
	w        io.Writer
	fd       int
	terminal bool
	start    time.Time
	lines    int // of the table that may be overwritten
	last     time.Time
	pending  string // a table that was not worth printing yet
}

func newScreen(f *os.File) *screen {
	fd := int(f.Fd())
	return &screen{w: f, fd: fd, terminal: term.IsTerminal(fd), start: time.Now()}
}

// say begins a new part of the story; the table so far stays.
func (s *screen) say(text string) {
	if s.pending != "" {
		fmt.Fprint(s.w, s.pending)
	}
	s.pending, s.lines = "", 0
	fmt.Fprintf(s.w, "\n[%3.0f s] %s\n\n", time.Since(s.start).Seconds(), text)
}

// table shows requested against used against recommended, per pod.
func (s *screen) table(all []scenario.Workload) {
	if len(all) == 0 {
		return
	}
	const row = "%-9s %4s  %9s %6s %11s  %9s %6s %11s  %s"
	lines := []string{
		fmt.Sprintf(row, "", "", "CPU", "", "", "MEMORY", "", "", ""),
		fmt.Sprintf(row, "WORKLOAD", "PODS", "requested", "used", "recommended", "requested", "used", "recommended", "PROFILE"),
	}
	for _, l := range all {
		requested, used := perPod(l)
		state := "Sufficient"
		if ok, why := l.Sufficient(); !ok {
			state = why
		}
		lines = append(lines, fmt.Sprintf(row, l.Name, strconv.Itoa(len(l.Pods)),
			cores(requested.CPU), cores(used.CPU), cores(l.Recommended.CPU),
			bytes(requested.Memory), bytes(used.Memory), bytes(l.Recommended.Memory), state))
	}
	if s.terminal {
		s.overwrite(lines)
		return
	}
	text := fmt.Sprintf("[%3.0f s]\n%s\n", time.Since(s.start).Seconds(), strings.Join(lines, "\n"))
	if s.pending = text; time.Since(s.last) >= plainEvery {
		fmt.Fprint(s.w, text)
		s.last, s.pending = time.Now(), ""
	}
}

// overwrite prints lines in place of the last ones, cut to the terminal's
// width: a line that wraps would count as two.
func (s *screen) overwrite(lines []string) {
	if s.lines > 0 {
		fmt.Fprintf(s.w, "\x1b[%dA\x1b[J", s.lines)
	}
	width, _, err := term.GetSize(s.fd)
	if err != nil || width <= 0 {
		width = 80
	}
	for _, line := range lines {
		fmt.Fprintln(s.w, line[:min(len(line), width)])
	}
	s.lines = len(lines)
}

// perPod is the largest request and the average use of a workload's pods.
func perPod(w scenario.Workload) (requested, used scenario.Amounts) {
	for _, p := range w.Pods {
		requested.CPU = max(requested.CPU, p.Requested.CPU)
		requested.Memory = max(requested.Memory, p.Requested.Memory)
		used.CPU += p.Used.CPU / float64(len(w.Pods))
		used.Memory += p.Used.Memory / float64(len(w.Pods))
	}
	return requested, used
}

// cgroups shows the kernel's values of every pod before and after.
func (s *screen) cgroups(before, after []scenario.Workload) {
	was := map[string]scenario.Pod{}
	for _, l := range before {
		for _, p := range l.Pods {
			was[p.Object.Name] = p
		}
	}
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POD\tCPU QUOTA\tCPU WEIGHT\tMEMORY LIMIT\tRESTARTS")
	for _, l := range after {
		for _, p := range l.Pods {
			old := was[p.Object.Name].Cgroup
			fmt.Fprintf(w, "%s\t%s, was %s\t%d, was %d\t%s, was %s\t%d\n", p.Object.Name,
				cores(p.Cgroup.CPULimit), cores(old.CPULimit), p.Cgroup.CPUWeight, old.CPUWeight,
				bytes(float64(p.Cgroup.MemoryLimit)), bytes(float64(old.MemoryLimit)), p.Restarts)
		}
	}
	w.Flush()
}

// added tells what a new pod started with.
func (s *screen) added(p scenario.Pod, before []scenario.Workload) {
	fmt.Fprint(s.w, s.pending)
	s.pending = ""
	for _, l := range before {
		if l.Name == "steady" {
			asked := l.Pods[0].Requested
			fmt.Fprintf(s.w, "\n%s started with requests of %s and %s; its Deployment says %s and %s.\n", p.Object.Name,
				cores(p.Requested.CPU), bytes(p.Requested.Memory), cores(asked.CPU), bytes(asked.Memory))
		}
	}
}

// summary compares what is reserved, by the same pods and with the new one.
func (s *screen) summary(before, after, all []scenario.Workload) {
	s.say("Summary: reserved by the workloads' requests, as the scheduler counts")
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tPODS\tCORES\tGiB\t")
	for _, row := range []struct {
		name string
		all  []scenario.Workload
	}{{"before", before}, {"after, the same pods", after}, {"after, with the new pod", all}} {
		pods, sum := 0, scenario.Reserved(row.all)
		for _, l := range row.all {
			pods += len(l.Pods)
		}
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t\n", row.name, pods, sum.CPU, sum.Memory/(1<<30))
	}
	w.Flush()
	was, is := scenario.Reserved(before), scenario.Reserved(after)
	fmt.Fprintf(s.w, "\nFreed: %.2f cores (%.0f %%) and %.2f GiB (%.0f %%).\n",
		was.CPU-is.CPU, 100*(1-is.CPU/was.CPU), (was.Memory-is.Memory)/(1<<30), 100*(1-is.Memory/was.Memory))
}

// cores writes an amount of CPU as Kubernetes does; - if there is none.
func cores(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0fm", v*1000)
}

// bytes writes an amount of memory in MiB; - if there is none.
func bytes(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0fMi", v/(1<<20))
}
