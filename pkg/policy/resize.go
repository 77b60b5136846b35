package policy

import (
	"cmp"
	"fmt"
	"time"
	_ "time/tzdata" // a schedule's time zone must mean the same in an image without a zone database

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"plimsoll.dev/pkg/api/v1alpha1"
)

const (
	leastWatch = 10 * time.Second
	mostWatch  = day
)

func (p *parser) resize(path *field.Path, in v1alpha1.Resize) Resize {
	canary, patience, rollback := orZero(in.Canary), orZero(in.Patience), orZero(in.Rollback)
	out := Resize{
		Threshold:         p.percent(path.Child("threshold"), in.Threshold, 0.10),
		MaxChangePerCycle: p.percent(path.Child("maxChangePerCycle"), in.MaxChangePerCycle, 0.50),
		Interval:          p.duration(path.Child("interval"), in.Interval, 15*time.Minute, 5*time.Second, day),
		MaxConcurrent:     p.concurrency(path.Child("maxConcurrent"), in.MaxConcurrent),
		CanaryFraction:    p.percent(path.Child("canary", "fraction"), canary.Fraction, 0),
		CanaryWatch:       p.duration(path.Child("canary", "watch"), canary.Watch, 10*time.Minute, leastWatch, mostWatch),
		DeferredPatience:  p.duration(path.Child("patience", "deferred"), patience.Deferred, 5*time.Minute, leastWatch, mostWatch),
		ProgressPatience:  p.duration(path.Child("patience", "inProgress"), patience.InProgress, 15*time.Minute, leastWatch, mostWatch),
		DecreaseMargin:    p.percent(path.Child("decreaseMargin"), in.DecreaseMargin, 0.10),
		AllowRestart:      flag(in.AllowRestart),
		RollbackWatch:     p.duration(path.Child("rollback", "watch"), rollback.Watch, 10*time.Minute, leastWatch, mostWatch),
		RollbackThrottled: p.percent(path.Child("rollback", "throttledShare"), rollback.ThrottledShare, 0.25),
		DryRun:            flag(in.DryRun),
	}
	if out.MaxChangePerCycle <= 0 {
		p.invalid(path.Child("maxChangePerCycle"), string(in.MaxChangePerCycle), "must be above 0%")
		out.MaxChangePerCycle = 0.50
	}
	out.Thresholds = p.thresholds(path.Child("thresholds"), orZero(in.Thresholds), out.Threshold)
	for i, w := range in.Schedule {
		if window, ok := p.window(path.Child("schedule").Index(i), w); ok {
			out.Schedule = append(out.Schedule, window)
		}
	}
	return out
}

func (p *parser) thresholds(path *field.Path, in v1alpha1.Thresholds, def float64) map[RuleKey]float64 {
	cpu, memory := orZero(in.CPU), orZero(in.Memory)
	at := func(r corev1.ResourceName, f v1alpha1.ResourceField, v v1alpha1.Percent) float64 {
		return p.percent(path.Child(string(r), string(f)), v, def)
	}
	out := make(map[RuleKey]float64, 4)
	for r, t := range map[corev1.ResourceName]v1alpha1.FieldThresholds{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		out[RuleKey{r, v1alpha1.FieldRequest}] = at(r, v1alpha1.FieldRequest, t.Request)
		out[RuleKey{r, v1alpha1.FieldLimit}] = at(r, v1alpha1.FieldLimit, t.Limit)
	}
	return out
}

var weekdays = map[string]time.Weekday{
	"Sun": time.Sunday, "Mon": time.Monday, "Tue": time.Tuesday, "Wed": time.Wednesday,
	"Thu": time.Thursday, "Fri": time.Friday, "Sat": time.Saturday,
}

func (p *parser) window(path *field.Path, in v1alpha1.ScheduleWindow) (Window, bool) {
	before := len(p.errs)
	out := Window{
		Start: p.clock(path.Child("start"), in.Start),
		End:   p.clock(path.Child("end"), in.End),
	}
	for i, d := range in.Days {
		day, ok := weekdays[d]
		if !ok {
			p.invalid(path.Child("days").Index(i), d, "must be one of Mon, Tue, Wed, Thu, Fri, Sat, Sun")
			continue
		}
		out.Days[day] = true
	}
	if len(in.Days) == 0 {
		out.Days = [7]bool{true, true, true, true, true, true, true}
	}
	if in.Start == in.End {
		p.invalid(path.Child("end"), in.End, "start and end must differ")
	}
	zone := cmp.Or(in.TimeZone, "UTC")
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		p.invalid(path.Child("timeZone"), in.TimeZone, `must be an IANA time zone such as "Europe/Vienna"`)
	}
	out.Location = loc
	// A window that cannot be read closes nothing and opens nothing: it is left out.
	return out, len(p.errs) == before
}

func (p *parser) clock(path *field.Path, text string) time.Duration {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		p.invalid(path, text, fmt.Sprintf("must be a time of day as HH:MM, not %q", text))
		return 0
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute
}
