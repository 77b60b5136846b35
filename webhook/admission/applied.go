package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/resize"
)

// maxApplied bounds annotation plimsoll.dev/applied, in bytes; all annotations
// of an object together may have 256 KiB.
const maxApplied = 32 << 10

// Applied is what admission did to a pod, as annotation plimsoll.dev/applied
// holds it: enough to explain it and to take it back.
type Applied struct {
	// Profile the values are from, and when its recommendations last changed.
	Profile string `json:"profile"`
	At      string `json:"at,omitempty"`
	// DryRun: the policy asks only to record what would be set.
	DryRun bool `json:"dryRun,omitempty"`
	// Changes that were made.
	Changes []resize.RecordedChange `json:"changes,omitempty"`
	// Kept are fields a recommendation exists for that were left as they were.
	Kept []KeptField `json:"kept,omitempty"`
	// Omitted counts changes and kept fields there was no room for.
	Omitted int `json:"omitted,omitempty"`
	// Defaults is what LimitRanger said it had set: a reinvocation finds its
	// annotation replaced by what it set the second time.
	Defaults string `json:"defaults,omitempty"`
}

// KeptField is a field that was left as it was.
type KeptField struct {
	Container string        `json:"c"`
	Field     string        `json:"f"`
	Reason    resize.Reason `json:"why"`
}

// ParseApplied reads annotation plimsoll.dev/applied.
func ParseApplied(text string) (Applied, error) {
	var a Applied
	if len(text) > maxApplied {
		return a, fmt.Errorf("annotation %s has %d bytes: remove it", v1alpha1.AnnotationApplied, len(text))
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return Applied{}, fmt.Errorf("parsing annotation %s (remove it): %w", v1alpha1.AnnotationApplied, err)
	}
	return a, nil
}

// String returns compact JSON of at most maxApplied bytes.
func (a Applied) String() string {
	text := encode(a)
	if len(text) <= maxApplied {
		return text
	}
	a.Omitted += len(a.Kept)
	a.Kept, a.Defaults = nil, ""
	for text = encode(a); len(text) > maxApplied && len(a.Changes) > 0; text = encode(a) {
		half := len(a.Changes) / 2
		a.Omitted += len(a.Changes) - half
		a.Changes = a.Changes[:half]
	}
	return text
}

func encode(a Applied) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(a); err != nil { // every field is plain data
		return ""
	}
	return strings.TrimSpace(b.String())
}

func fieldName(f resize.Field) string { return string(f.Resource) + " " + string(f.Field) }

// record writes a decision down.
func record(profile string, at string, dryRun bool, d resize.Decision) Applied {
	a := Applied{Profile: profile, At: at, DryRun: dryRun}
	if len(d.Changes) > 0 {
		a.Changes = make([]resize.RecordedChange, 0, len(d.Changes))
	}
	for _, c := range d.Changes {
		r := resize.RecordedChange{Container: c.Container, Field: fieldName(c.Field), To: c.To.String(), Reason: c.Reason}
		if c.From != nil {
			r.From = c.From.String()
		}
		a.Changes = append(a.Changes, r)
	}
	for _, k := range d.Kept {
		a.Kept = append(a.Kept, KeptField{Container: k.Container, Field: fieldName(k.Field), Reason: k.Reason})
	}
	return a
}

// Undo gives the pod back the values it had before: those that still are what
// was set. So a second call decides from the same pod as the first.
func (a Applied) Undo(pod *corev1.Pod) {
	if a.DryRun {
		return
	}
	for _, c := range a.Changes {
		ctr := longRunning(pod, c.Container)
		res, field, ok := strings.Cut(c.Field, " ")
		if ctr == nil || !ok {
			continue
		}
		list := ctr.Resources.Requests
		if field == string(v1alpha1.FieldLimit) {
			list = ctr.Resources.Limits
		}
		name := corev1.ResourceName(res)
		now, isSet := list[name]
		to, err := resource.ParseQuantity(c.To)
		if !isSet || err != nil || now.Cmp(to) != 0 {
			continue
		}
		if c.From == "" {
			delete(list, name)
		} else if from, err := resource.ParseQuantity(c.From); err == nil && from.Sign() >= 0 {
			list[name] = from
		}
	}
}

// longRunning returns the app container or native sidecar of a name.
func longRunning(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return c
		}
	}
	return nil
}
