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
	text []byte // the operations' JSON, without the closing bracket
	err  error
}

// op begins an operation.
func (p *patch) op(name, path string) {
	before := byte(',')
	if p.text == nil {
		p.text, before = make([]byte, 0, 4096), '['
	}
	p.text = append(append(append(p.text, before), `{"op":"`...), name...)
	p.text = appendText(append(p.text, `","path":`...), path)
}

func (p *patch) remove(path string) {
	p.op("remove", path)
	p.text = append(p.text, '}')
}

func (p *patch) addText(path, value string) {
	p.op("add", path)
	p.text = append(appendText(append(p.text, `,"value":`...), value), '}')
}

func (p *patch) addTexts(path string, values map[string]string) {
	p.op("add", path)
	p.text = append(p.text, `,"value":`...)
	between := byte('{')
	for _, k := range slices.Sorted(maps.Keys(values)) {
		p.text = append(appendText(append(p.text, between), k), ':')
		p.text = appendText(p.text, values[k])
		between = ','
	}
	p.text = append(p.text, "}}"...)
}

func (p *patch) add(path string, value any) {
	b, err := json.Marshal(value)
	if err != nil {
		p.err = fmt.Errorf("encoding the patch: %w", err)
		return
	}
	p.op("add", path)
	p.text = append(append(append(p.text, `,"value":`...), b...), '}')
}

// bytes returns the patch, nil when it is empty.
func (p *patch) bytes() ([]byte, error) {
	if p.text == nil || p.err != nil {
		return nil, p.err
	}
	return append(p.text, ']'), nil
}

// appendText appends a JSON string. Nearly all are ASCII, where only quotes and
// backslashes need care.
func appendText(b []byte, s string) []byte {
	start := len(b)
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			quoted, err := json.Marshal(s)
			if err != nil { // a string always encodes
				return b
			}
			return append(b[:start], quoted...)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// texts turns one map of labels or annotations into another.
func (p *patch) texts(path string, was, want map[string]string) {
	if len(was) == 0 {
		if len(want) > 0 {
			p.addTexts(path, want)
		}
		return
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := was[k]; !ok || v != want[k] {
			p.addText(path+"/"+pointerEscapes.Replace(k), want[k])
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
			p.addText(path+"/"+pointerEscapes.Replace(string(name)), v.String())
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
