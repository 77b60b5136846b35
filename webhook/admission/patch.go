package admission

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// patch collects the operations of a JSON patch. Only additions and removals
// of single values are made, so that fields this version does not know survive.
type patch struct {
	ops []operation
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func (p *patch) add(path string, value any) { p.ops = append(p.ops, operation{"add", path, value}) }

func (p *patch) remove(path string) { p.ops = append(p.ops, operation{Op: "remove", Path: path}) }

// bytes returns the patch, nil when it is empty.
func (p *patch) bytes() ([]byte, error) {
	if len(p.ops) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(p.ops)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch: %w", err)
	}
	return b, nil
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// texts turns one map of labels or annotations into another.
func (p *patch) texts(path string, was, want map[string]string) {
	if len(was) == 0 {
		if len(want) > 0 {
			p.add(path, want)
		}
		return
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := was[k]; !ok || v != want[k] {
			p.add(path+"/"+pointerEscapes.Replace(k), want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(was)) {
		if _, ok := want[k]; !ok {
			p.remove(path + "/" + pointerEscapes.Replace(k))
		}
	}
}

// containers turns the resources of one list of containers into another's.
func (p *patch) containers(path string, was []corev1.ResourceRequirements, want []corev1.Container) {
	for i := range want {
		at := path + "/" + strconv.Itoa(i) + "/resources"
		w := want[i].Resources
		if len(was[i].Requests)+len(was[i].Limits)+len(was[i].Claims) == 0 {
			// The field itself may be missing.
			if len(w.Requests)+len(w.Limits) > 0 {
				p.add(at, w)
			}
			continue
		}
		p.resources(at+"/requests", was[i].Requests, w.Requests)
		p.resources(at+"/limits", was[i].Limits, w.Limits)
	}
}

func (p *patch) resources(path string, was, want corev1.ResourceList) {
	if len(was) == 0 {
		if len(want) > 0 {
			p.add(path, want)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		v := want[name]
		if old, ok := was[name]; !ok || old.Cmp(v) != 0 {
			p.add(path+"/"+pointerEscapes.Replace(string(name)), v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was)) {
		if _, ok := want[name]; !ok {
			p.remove(path + "/" + pointerEscapes.Replace(string(name)))
		}
	}
}

// resourcesOf copies the resources of containers, to compare with later.
func resourcesOf(cs []corev1.Container) []corev1.ResourceRequirements {
	out := make([]corev1.ResourceRequirements, len(cs))
	for i := range cs {
		r := &cs[i].Resources
		out[i] = corev1.ResourceRequirements{Requests: maps.Clone(r.Requests), Limits: maps.Clone(r.Limits), Claims: r.Claims}
	}
	return out
}
