package policy

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/sample"
)

// parser turns the texts of a policy into typed values and gathers what is
// wrong with them. A stored object may predate today's bounds, so the parser
// checks what the CRD checks too.
type parser struct {
	errs field.ErrorList
}

func (p *parser) invalid(path *field.Path, value any, detail string) {
	p.errs = append(p.errs, field.Invalid(path, value, detail))
}

func (p *parser) duration(path *field.Path, d *metav1.Duration, def, least, most time.Duration) time.Duration {
	if d == nil {
		return def
	}
	if d.Duration < least || d.Duration > most {
		p.invalid(path, d.Duration.String(), fmt.Sprintf("must lie between %s and %s", short(least), short(most)))
		return def
	}
	return d.Duration
}

// short writes a duration as people do: 24h, not 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

var decimalText = regexp.MustCompile(`^[0-9]{1,7}(\.[0-9]{1,6})?$`)

// decimal reads a number that must lie in [least, most], or above least when most is infinite.
func (p *parser) decimal(path *field.Path, d v1alpha1.Decimal, def, least, most float64) float64 {
	if d == "" {
		return def
	}
	if !decimalText.MatchString(string(d)) {
		p.invalid(path, string(d), `must be a decimal number such as "1.15"`)
		return def
	}
	v, err := strconv.ParseFloat(string(d), 64)
	switch {
	case err != nil:
		p.invalid(path, string(d), `must be a decimal number such as "1.15"`)
	case math.IsInf(most, 1) && v <= least:
		p.invalid(path, string(d), fmt.Sprintf("must be above %v", least))
	case v < least || v > most:
		p.invalid(path, string(d), fmt.Sprintf("must lie between %v and %v", least, most))
	default:
		return v
	}
	return def
}

var percentText = regexp.MustCompile(`^([0-9]{1,2}(\.[0-9]{1,2})?|100)%$`)

// percent reads a share as a number in [0, 1].
func (p *parser) percent(path *field.Path, s v1alpha1.Percent, def float64) float64 {
	if s == "" {
		return def
	}
	v, err := strconv.ParseFloat(strings.TrimSuffix(string(s), "%"), 64)
	if err != nil || !percentText.MatchString(string(s)) {
		p.invalid(path, string(s), `must be a share from "0%" to "100%"`)
		return def
	}
	return v / 100
}

// amount reads a quantity that must not be negative; def when there is none.
func (p *parser) amount(path *field.Path, q *resource.Quantity, def sample.Amount) sample.Amount {
	if q == nil {
		return def
	}
	if q.Sign() < 0 {
		p.invalid(path, q.String(), "must not be negative")
		return def
	}
	return sample.FromQuantity(*q)
}

func flag(b *bool) bool { return b != nil && *b }
