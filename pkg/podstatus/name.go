// Package podstatus decides what many reporters say together: the names under
// which each webhook replica reports about each policy, what becomes of their
// reports on the policy, and what the agents' reports sum up to.
package podstatus

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

// ErrHashed is returned by Unpack for a name that is a hash: what it stands for
// is in the object's spec.
var ErrHashed = errors.New("the name is a hash")

// hashPrefix cannot begin a packed name, whose alphabet has no hyphen.
const hashPrefix = "h-"

// packing is base32 in characters that names of objects may have.
var packing = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Pack returns the name of the PolicyPodStatus of a replica's pod about a
// policy: pod and reference in base32 or, where that is longer than a name may
// be, "h-" and their SHA-256 in hexadecimal. Different pods or policies have
// different names.
func Pack(pod string, ref v1alpha1.PolicyReference) string {
	// No valid name holds a slash, so this splits in one way only.
	text := pod + "/" + profile.FormatRef(ref)
	if name := packing.EncodeToString([]byte(shorten(text))); len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(text))
	return hashPrefix + hex.EncodeToString(sum[:])
}

// The kinds as they stand in a packed name.
var short = map[string]string{v1alpha1.KindResourcePolicy: "r", v1alpha1.KindClusterResourcePolicy: "c"}

// shorten writes pod/Kind/rest with the kind's letter.
func shorten(text string) string {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) == 3 && short[parts[1]] != "" {
		parts[1] = short[parts[1]]
	}
	return strings.Join(parts, "/")
}

// lengthen is the inverse of shorten.
func lengthen(text string) string {
	parts := strings.SplitN(text, "/", 3)
	for kind, letter := range short {
		if len(parts) == 3 && parts[1] == letter {
			parts[1] = kind
			break
		}
	}
	return strings.Join(parts, "/")
}

// Unpack returns the pod and the policy that a name was packed from, ErrHashed
// for a hash, and another error for what Pack never returns.
func Unpack(name string) (pod string, ref v1alpha1.PolicyReference, err error) {
	if digits, ok := strings.CutPrefix(name, hashPrefix); ok {
		if b, err := hex.DecodeString(digits); err == nil && len(b) == sha256.Size && strings.ToLower(digits) == digits {
			return "", ref, ErrHashed
		}
		return "", ref, fmt.Errorf("reading status name %.300q: a hash has %d hexadecimal digits", name, 2*sha256.Size)
	}
	b, err := packing.DecodeString(name)
	if err != nil {
		return "", ref, fmt.Errorf("reading status name %.300q: %w", name, err)
	}
	pod, rest, _ := strings.Cut(lengthen(string(b)), "/")
	if len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return "", ref, fmt.Errorf("reading status name %.300q: %q is not a pod's name", name, pod)
	}
	if ref, err = profile.ParseRef(rest); err != nil {
		return "", v1alpha1.PolicyReference{}, fmt.Errorf("reading status name %.300q: %w", name, err)
	}
	// Base32 has several writings of one text; only Pack's own is a name.
	if ref == (v1alpha1.PolicyReference{}) || Pack(pod, ref) != name {
		return "", v1alpha1.PolicyReference{}, fmt.Errorf("reading status name %.300q: it does not name a replica and a policy", name)
	}
	return pod, ref, nil
}

// Parent returns the policy that a PolicyPodStatus is about: from its name, or
// from its spec where the name is a hash. It also holds for one that is gone. An
// error says that the object is nobody's report.
func Parent(s *v1alpha1.PolicyPodStatus) (v1alpha1.PolicyReference, error) {
	pod, ref, err := Unpack(s.Name)
	if errors.Is(err, ErrHashed) {
		pod, ref, err = s.Spec.Pod, s.Spec.PolicyRef, nil
		if Pack(pod, ref) != s.Name {
			err = fmt.Errorf("status %s is not about %s of pod %q", s.Name, profile.FormatRef(ref), pod)
		}
	}
	if err == nil && (pod != s.Spec.Pod || ref != s.Spec.PolicyRef) {
		err = fmt.Errorf("status %s says in its spec that it is about %s of pod %q", s.Name, profile.FormatRef(s.Spec.PolicyRef), s.Spec.Pod)
	}
	return ref, err
}
