package cli

import (
	"regexp"

	corev1 "k8s.io/api/core/v1"
)

// removed stands where a secret stood.
const removed = "(removed)"

// What looks like a secret in a text: passwords in URLs, values of what is named
// like a secret, tokens, and keys.
var secrets = []struct {
	looks *regexp.Regexp
	with  string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [^-]*-----.*?(-----END [^-]*-----|$)`), removed},
	{regexp.MustCompile(`://[^\s"']*@`), "://" + removed + "@"},
	{regexp.MustCompile(`(?i)((?:password|passwd|pwd|secret|token|api-?key|authorization)["']?\s*[=:]\s*)(?:(?:bearer|basic)\s+)?["']?[^\s"'&,;]+`), "${1}" + removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}`), "${1} " + removed},
	{regexp.MustCompile(`\beyJ[\w-]+\.[\w-]+(\.[\w-]*)?`), removed},
}

// scrub removes from a text what looks like a secret.
func scrub(text string) string {
	for _, s := range secrets {
		text = s.looks.ReplaceAllString(text, s.with)
	}
	return text
}

// redact removes from an object, in place, every value of an environment
// variable, what looks like a secret anywhere, and what only repeats the object.
func redact(object map[string]any) {
	if m, ok := object["metadata"].(map[string]any); ok {
		delete(m, "managedFields")
		if a, ok := m["annotations"].(map[string]any); ok {
			delete(a, corev1.LastAppliedConfigAnnotation)
		}
	}
	clean(object)
}

func clean(value any) any {
	switch v := value.(type) {
	case string:
		return scrub(v)
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case map[string]any:
		for key, inner := range v {
			if list, ok := inner.([]any); ok && key == "env" {
				withoutValues(list)
			}
			v[key] = clean(inner)
		}
	}
	return value
}

func withoutValues(env []any) {
	for _, e := range env {
		if variable, ok := e.(map[string]any); ok && variable["value"] != nil {
			variable["value"] = removed
		}
	}
}
