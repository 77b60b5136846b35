package policy

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// pattern matches a text exactly, or as a whole by a regular expression.
type pattern struct {
	exact string
	re    *regexp.Regexp
}

// isRegex reports whether a pattern is written between slashes.
func isRegex(p v1alpha1.Pattern) bool {
	return len(p) >= 2 && strings.HasPrefix(string(p), "/") && strings.HasSuffix(string(p), "/")
}

// compilePattern compiles a pattern; the error says what is wrong with the expression.
func compilePattern(p v1alpha1.Pattern) (pattern, error) {
	if !isRegex(p) {
		return pattern{exact: string(p)}, nil
	}
	text := string(p[1 : len(p)-1])
	// The expression is parsed on its own first: put between the anchors as
	// text, "a)|(b" would close the group and escape them.
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return pattern{}, fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	re, err := regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
	if err != nil {
		return pattern{}, fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	return pattern{re: re}, nil
}

func (p pattern) match(s string) bool {
	if p.re == nil {
		return p.exact == s
	}
	return p.re.MatchString(s)
}

func matchAny(ps []pattern, s string) bool {
	for i := range ps {
		if ps[i].match(s) {
			return true
		}
	}
	return false
}
