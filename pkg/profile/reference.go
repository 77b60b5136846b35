package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// NoPolicy stands where a policy is named when none governs.
const NoPolicy = "nopolicy"

// FormatRef writes a policy reference as it stands in annotations:
// "ResourcePolicy/namespace/name", "ClusterResourcePolicy/name", or "nopolicy"
// for the zero reference.
func FormatRef(ref v1alpha1.PolicyReference) string {
	switch {
	case ref == v1alpha1.PolicyReference{}:
		return NoPolicy
	case ref.Namespace != "":
		return ref.Kind + "/" + ref.Namespace + "/" + ref.Name
	default:
		return ref.Kind + "/" + ref.Name
	}
}

// ParseRef reads what FormatRef writes and refuses any other text.
func ParseRef(text string) (v1alpha1.PolicyReference, error) {
	none := v1alpha1.PolicyReference{}
	if text == NoPolicy {
		return none, nil
	}
	parts := strings.Split(text, "/")
	ref := v1alpha1.PolicyReference{Kind: parts[0]}
	switch {
	case ref.Kind == v1alpha1.KindResourcePolicy && len(parts) == 3:
		ref.Namespace, ref.Name = parts[1], parts[2]
		if len(validation.IsDNS1123Label(ref.Namespace)) > 0 {
			return none, fmt.Errorf("reading policy reference %.300q: %q is not a namespace", text, ref.Namespace)
		}
	case ref.Kind == v1alpha1.KindClusterResourcePolicy && len(parts) == 2:
		ref.Name = parts[1]
	default:
		return none, fmt.Errorf("reading policy reference %.300q: want ResourcePolicy/namespace/name, ClusterResourcePolicy/name or %s", text, NoPolicy)
	}
	if len(validation.IsDNS1123Subdomain(ref.Name)) > 0 {
		return none, fmt.Errorf("reading policy reference %.300q: %q is not a policy's name", text, ref.Name)
	}
	return ref, nil
}

const longestReadable = 24 // of a policy's name within a discriminator

// Discriminator returns the text that ends the names of all profiles a policy
// governs: its name, made readable and cut, and 8 hexadecimal digits of the
// SHA-256 of its reference; "nopolicy" for the zero reference.
func Discriminator(ref v1alpha1.PolicyReference) string {
	if ref == (v1alpha1.PolicyReference{}) {
		return NoPolicy
	}
	sum := sha256.Sum256([]byte(FormatRef(ref)))
	readable := sanitise(ref.Name)
	if len(readable) > longestReadable {
		readable = strings.Trim(readable[:longestReadable], "-")
	}
	token := hex.EncodeToString(sum[:4])
	if readable == "" {
		return "p-" + token
	}
	return readable + "-" + token
}

// sanitise keeps lower-case ASCII letters and digits and turns every run of
// other characters into one hyphen, with none at either end.
func sanitise(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
	}
	return strings.TrimRight(b.String(), "-")
}
