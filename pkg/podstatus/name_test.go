package podstatus_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/podstatus"
)

func cluster(name string) v1alpha1.PolicyReference {
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: name}
}

func namespaced(namespace, name string) v1alpha1.PolicyReference {
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: namespace, Name: name}
}

// The names must be the same in every release: a replica finds its own again.
func TestNamesStay(t *testing.T) {
	tests := map[string]struct {
		pod  string
		ref  v1alpha1.PolicyReference
		want string
	}{
		"cluster":    {"web-0", cluster("fleet"), "o5sweljqf5rs6ztmmvsxi"},
		"namespaced": {"web-0", namespaced("shop", "fleet"), "o5sweljqf5zc643in5yc6ztmmvsxi"},
		"hashed": {
			strings.Repeat("p", 63), cluster(strings.Repeat("n", 253)),
			"h-33d5917de790353e16b829abbb85304706cfb3df9e52e845b15d943e6f846424",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := podstatus.Pack(tc.pod, tc.ref); got != tc.want {
				t.Errorf("named %q, want %q", got, tc.want)
			}
		})
	}
}

func refs(t *rapid.T, label string) (string, v1alpha1.PolicyReference) {
	names := rapid.StringMatching(`[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?`).Filter(func(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 })
	pod, ref := names.Draw(t, label+"pod"), cluster(names.Draw(t, label+"name"))
	if rapid.Bool().Draw(t, label+"namespaced") {
		ref = namespaced(rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, label+"namespace"), ref.Name)
	}
	return pod, ref
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod, ref := refs(t, "")
		name := podstatus.Pack(pod, ref)
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Fatalf("%q is no name: %v", name, errs)
		}
		gotPod, gotRef, err := podstatus.Unpack(name)
		if !errors.Is(err, podstatus.ErrHashed) && (err != nil || gotPod != pod || gotRef != ref) {
			t.Fatalf("%q unpacks to %s, %+v, %v", name, gotPod, gotRef, err)
		}
		s := &v1alpha1.PolicyPodStatus{Spec: v1alpha1.PolicyPodStatusSpec{Pod: pod, PolicyRef: ref}}
		s.Name = name
		if got, err := podstatus.Parent(s); err != nil || got != ref {
			t.Fatalf("the parent of %q is %+v, %v", name, got, err)
		}
	})
}

func TestUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		podA, refA := refs(t, "a")
		podB, refB := refs(t, "b")
		if same := podA == podB && refA == refB; (podstatus.Pack(podA, refA) == podstatus.Pack(podB, refB)) != same {
			t.Fatalf("%s %+v and %s %+v share a name or do not", podA, refA, podB, refB)
		}
	})
}

func TestUnpackRefuses(t *testing.T) {
	good := podstatus.Pack("web-0", cluster("fleet"))
	tests := map[string]string{
		"empty": "", "capitals": strings.ToUpper(good), "cut": good[:len(good)-3], "padded": good + "=", "no base32": "web-0",
		"a short hash": "h-abcdef", "a hash in capitals": "h-" + strings.Repeat("AB", 32), "other spare bits": good[:len(good)-1] + "j",
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			if pod, ref, err := podstatus.Unpack(text); err == nil || errors.Is(err, podstatus.ErrHashed) {
				t.Errorf("%q unpacks to %s, %+v, %v", text, pod, ref, err)
			}
		})
	}
}

// A spec that contradicts the name is nobody's report.
func TestParentOfALie(t *testing.T) {
	for name, packed := range map[string]string{
		"reversible": podstatus.Pack("web-0", cluster("fleet")),
		"hashed":     podstatus.Pack("web-0", cluster(strings.Repeat("n", 253))),
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.PolicyPodStatus{Spec: v1alpha1.PolicyPodStatusSpec{Pod: "web-0", PolicyRef: cluster("other")}}
			s.Name = packed
			if ref, err := podstatus.Parent(s); err == nil {
				t.Errorf("it is about %+v", ref)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(podstatus.Pack("web-0", namespaced("shop", "fleet")))
	f.Add(podstatus.Pack("web-0", cluster(strings.Repeat("n", 253))))
	f.Add("h-")
	f.Fuzz(func(t *testing.T, name string) {
		if pod, ref, err := podstatus.Unpack(name); err == nil && podstatus.Pack(pod, ref) != name {
			t.Errorf("%q unpacks to %s, %+v, which has another name", name, pod, ref)
		}
	})
}
