package resize

import (
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// ManagerPrefix starts the field manager of every replica: "plimsoll-<replica>".
const ManagerPrefix = "plimsoll-"

// subresourceResize is how managedFields names what came through pods/resize.
const subresourceResize = "resize"

// Peers tells which replicas are alive, by name.
type Peers interface {
	Live(replica string) bool
}

// Claim says how a change of a pod's fields may be sent.
type Claim struct {
	// Reason is empty when the change may be sent; ReasonPeer or
	// ReasonFieldOwnedByOther when it may not.
	Reason Reason
	// Other is who stands against it.
	Other string
	// Force means a forced apply with the resourceVersion just seen; without
	// it the apply is unforced and needs none.
	Force bool
	// Carry are the fields this replica owns already: an apply that leaves one
	// out would remove it.
	Carry []Field
}

// ClaimOf decides from the pod's managedFields how the replica may send the
// changes. A live peer's entry counts until it is older than an interval.
func ClaimOf(pod *corev1.Pod, replica string, changes []Change, peers Peers, interval time.Duration, now time.Time) Claim {
	var c Claim
	self := ManagerPrefix + replica
	for i := range pod.ManagedFields {
		e := &pod.ManagedFields[i]
		owned := ownedFields(e)
		if e.Manager == self && e.Subresource == subresourceResize && e.Operation == metav1.ManagedFieldsOperationApply {
			c.Carry = owned
			continue
		}
		if c.Reason == ReasonFieldOwnedByOther || !touches(owned, changes) {
			continue
		}
		switch peer, isPeer := strings.CutPrefix(e.Manager, ManagerPrefix); {
		case e.Subresource == "": // the pod's creator: later changes come through resize only
			c.Force = true
		case !isPeer || e.Subresource != subresourceResize:
			c.Reason, c.Other = ReasonFieldOwnedByOther, e.Manager
		case peers != nil && peers.Live(peer) && e.Time != nil && now.Sub(e.Time.Time) <= interval:
			c.Reason, c.Other = ReasonPeer, peer
		default:
			c.Force = true
		}
	}
	return c
}

func touches(owned []Field, changes []Change) bool {
	for _, f := range owned {
		for _, c := range changes {
			if f == c.Field {
				return true
			}
		}
	}
	return false
}

// LastBy returns when and by which replica the pod was last resized, from
// managedFields; false when no replica did.
func LastBy(pod *corev1.Pod) (replica string, at time.Time, ok bool) {
	for i := range pod.ManagedFields {
		e := &pod.ManagedFields[i]
		r, isPeer := strings.CutPrefix(e.Manager, ManagerPrefix)
		if isPeer && e.Subresource == subresourceResize && e.Time != nil && e.Time.After(at) {
			replica, at, ok = r, e.Time.Time, true
		}
	}
	return replica, at, ok
}

// ownedFields reads the requests and limits of cpu and memory that an entry
// owns from its FieldsV1, such as
//
//	{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{"f:resources":{"f:requests":{"f:cpu":{}}}}}}}
//
// Anything else in it is none of them.
func ownedFields(e *metav1.ManagedFieldsEntry) []Field {
	if e.FieldsV1 == nil {
		return nil
	}
	var root map[string]any
	if json.Unmarshal(e.FieldsV1.GetRawBytes(), &root) != nil {
		return nil
	}
	var out []Field
	spec := child(root, "f:spec")
	for _, list := range []string{"f:initContainers", "f:containers"} {
		for key, v := range child(spec, list) {
			var id struct{ Name string }
			text, ok := strings.CutPrefix(key, "k:")
			if !ok || json.Unmarshal([]byte(text), &id) != nil {
				continue
			}
			entry, _ := v.(map[string]any)
			resources := child(entry, "f:resources")
			for part, f := range map[string]v1alpha1.ResourceField{"f:requests": v1alpha1.FieldRequest, "f:limits": v1alpha1.FieldLimit} {
				for _, res := range resizeResources {
					if _, ok := child(resources, part)["f:"+string(res)]; ok {
						out = append(out, Field{id.Name, res, f})
					}
				}
			}
		}
	}
	return out
}

func child(m map[string]any, key string) map[string]any {
	c, _ := m[key].(map[string]any)
	return c
}

// ApplyBody returns the server-side apply that sets the changes and carries
// the claim's fields at the values they have; nil resourceVersion is left out.
func ApplyBody(pod *corev1.Pod, changes []Change, c Claim) ([]byte, error) {
	after := pod.DeepCopy()
	Decision{Changes: changes}.Set(after)
	fields := map[Field]bool{}
	for _, f := range c.Carry {
		fields[f] = true
	}
	for _, ch := range changes {
		fields[ch.Field] = true
	}
	type body struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources"`
	}
	collect := func(containers []corev1.Container) []body {
		var out []body
		for i := range containers {
			b := body{Name: containers[i].Name}
			for f := range fields {
				if q, ok := valueOf(&containers[i], f); ok && f.Container == b.Name {
					put(&b.Resources, f.Resource, f.Field, q)
				}
			}
			if b.Resources.Requests != nil || b.Resources.Limits != nil {
				out = append(out, b)
			}
		}
		return out
	}
	meta := map[string]any{"name": pod.Name, "namespace": pod.Namespace, "uid": pod.UID}
	if c.Force {
		meta["resourceVersion"] = pod.ResourceVersion
	}
	spec := map[string]any{}
	for name, list := range map[string][]body{"initContainers": collect(after.Spec.InitContainers), "containers": collect(after.Spec.Containers)} {
		if len(list) > 0 {
			spec[name] = list
		}
	}
	return json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
}
