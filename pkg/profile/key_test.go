package profile_test

import (
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/profile"
)

const (
	nameLabel      = "app.kubernetes.io/name"
	componentLabel = "app.kubernetes.io/component"
)

func cluster(name string) v1alpha1.PolicyReference {
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: name}
}

func namespaced(namespace, name string) v1alpha1.PolicyReference {
	return v1alpha1.PolicyReference{Kind: v1alpha1.KindResourcePolicy, Namespace: namespace, Name: name}
}

var none v1alpha1.PolicyReference

// tuple is a key whose identity labels are exactly these.
func tuple(labels map[string]string, ref v1alpha1.PolicyReference) profile.Key {
	return profile.KeyOfIdentity(v1alpha1.Identity{Tuple: labels, PolicyRef: pointer(ref)})
}

func pointer(ref v1alpha1.PolicyReference) *v1alpha1.PolicyReference {
	if ref == none {
		return nil
	}
	return &ref
}

// These values name profiles and measurements that exist out there: a release
// that changes one loses every user's history.
func TestGoldenNamesAndHashes(t *testing.T) {
	long := strings.Repeat("x", 63)
	tests := map[string]struct {
		labels map[string]string
		ref    v1alpha1.PolicyReference
		name   string
		hash   string
	}{
		"name and component": {map[string]string{nameLabel: "shop", componentLabel: "web"}, cluster("fleet"), "shop--web--fleet-7997eb1f", "e96bbc7bf02dcafb"},
		"name alone":         {map[string]string{nameLabel: "shop"}, cluster("fleet"), "shop--fleet-7997eb1f", "03bd2cc8b6577c93"},
		"no policy":          {map[string]string{nameLabel: "shop", componentLabel: "web"}, none, "shop--web--nopolicy", "2725a457697f8db5"},
		"a ResourcePolicy":   {map[string]string{nameLabel: "shop"}, namespaced("team-a", "fleet"), "shop--fleet-409b7278", "8dcfaeded37fed1b"},
		"other labels":       {map[string]string{"team": "pay", "app": "ledger"}, cluster("fleet"), "ledger--pay--hd5f06af3cca3--fleet-7997eb1f", "1ed8639b0d8dcc1a"},
		"to be sanitised":    {map[string]string{nameLabel: "Shop.v2", componentLabel: "web_1"}, cluster("fleet"), "shop-v2--web-1--h6ebd9456e42c--fleet-7997eb1f", "b05fb917fdfa7a1d"},
		"empty value":        {map[string]string{nameLabel: ""}, cluster("fleet"), "hc433bcaa6060--fleet-7997eb1f", "fdac2bb3ce769adb"},
		"long": {
			map[string]string{nameLabel: long, componentLabel: long, "a": long, "b": long},
			cluster("a-very-long.policy.name.that.goes.on"),
			long + "--" + long + "--" + long + "--" + strings.Repeat("x", 9) + "--h5e4b9059eefa--a-very-long-policy-name-49304cee",
			"cb1ba79d9f8db5ae",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			k := tuple(test.labels, test.ref)
			if k.Name() != test.name || k.MeasurementHash() != test.hash {
				t.Errorf("key of %v under %s is named\n%q, hash %q, want\n%q, hash %q", test.labels, profile.FormatRef(test.ref),
					k.Name(), k.MeasurementHash(), test.name, test.hash)
			}
		})
	}
	if got := profile.Discriminator(cluster("fleet")); !strings.HasSuffix(tuple(map[string]string{nameLabel: "shop"}, cluster("fleet")).Name(), "--"+got) {
		t.Errorf("the name does not end with the discriminator %q", got)
	}
}

func TestKeyOf(t *testing.T) {
	pod := map[string]string{nameLabel: "shop", "pod-template-hash": "abc", "empty": ""}
	defaults := v1alpha1.DefaultIdentityLabels()
	k := profile.KeyOf(pod, defaults, cluster("fleet"))
	want := v1alpha1.Identity{
		Tuple:           map[string]string{nameLabel: "shop"},
		PolicyRef:       &v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "fleet"},
		MeasurementHash: k.MeasurementHash(),
	}
	if diff := cmp.Diff(want, k.Identity()); diff != "" {
		t.Error(diff)
	}
	if k != profile.KeyOf(pod, []string{"absent", nameLabel}, cluster("fleet")) {
		t.Error("the key depends on labels the pod lacks")
	}
	if profile.KeyOf(pod, []string{"empty"}, none) == profile.KeyOf(pod, []string{"absent"}, none) {
		t.Error("an empty value is taken for an absent label")
	}
	if profile.KeyOf(pod, []string{"absent"}, none).Identified() {
		t.Error("a pod without identity labels is identified")
	}
	if got := profile.KeyOf(pod, []string{"empty", nameLabel}, none).Selector(); got != nameLabel+"=shop,empty=" {
		t.Errorf("Selector = %q", got)
	}
}

// C07: values that sanitise to the same text make different profiles.
func TestC07SanitisedAlike(t *testing.T) {
	values := []string{"a.b", "a-b", "A-B", "a_b", "a--b", "a-b.", "á-b", "a-é-b", "", "-", "a"}
	seen := map[string]string{}
	add := func(what string, k profile.Key) {
		name := k.Name()
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Errorf("%s: %q: %v", what, name, errs)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%s and %s are both named %q", what, other, name)
		}
		seen[name] = what
	}
	for _, v := range values {
		add("name "+v, tuple(map[string]string{nameLabel: v}, cluster("p")))
		add("component "+v, tuple(map[string]string{componentLabel: v}, cluster("p")))
		add("app "+v, tuple(map[string]string{"app": v}, cluster("p")))
		for _, w := range values {
			add("both "+v+","+w, tuple(map[string]string{nameLabel: v, componentLabel: w}, cluster("p")))
		}
	}
	// A value that reads like what stands in for another tuple.
	hashed := tuple(map[string]string{nameLabel: "a.b"}, cluster("p")).Name()
	parts := strings.Split(hashed, "--")
	add("posing", tuple(map[string]string{nameLabel: parts[0], componentLabel: parts[1]}, cluster("p")))
}

// C08: whatever policies and labels are called, names fit, are valid and tell all apart.
func TestC08LongNames(t *testing.T) {
	long := strings.Repeat("p.", 126) + "p" // 253 characters
	value := strings.Repeat("v", 63)
	many := map[string]string{}
	for _, c := range "abcdefghijklmnop" {
		many[string(c)] = value
	}
	other := maps.Clone(many)
	other["p"] = value[:62] + "w"
	seen := map[string]bool{}
	for _, labels := range []map[string]string{many, other, {nameLabel: value, componentLabel: value}} {
		for _, ref := range []v1alpha1.PolicyReference{cluster(long), cluster(long[:252-1]), namespaced(value, long), none} {
			k := tuple(labels, ref)
			name := k.Name()
			if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
				t.Errorf("%q: %v", name, errs)
			}
			if !strings.HasSuffix(name, "--"+profile.Discriminator(ref)) {
				t.Errorf("%q does not end with its policy's discriminator", name)
			}
			if seen[name] {
				t.Errorf("%q names two keys", name)
			}
			seen[name] = true
		}
	}
}

var hash16 = regexp.MustCompile(`^[0-9a-f]{16}$`)

// Two keys have the same name or hash only if they are the same, and each can be
// read back from what is recorded.
func TestKeysAreToldApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawKey(t, "a"), drawKey(t, "b")
		for _, k := range []profile.Key{a, b} {
			if errs := validation.IsDNS1123Subdomain(k.Name()); len(errs) > 0 {
				t.Fatalf("%q: %v", k.Name(), errs)
			}
			if !hash16.MatchString(k.MeasurementHash()) {
				t.Fatalf("hash %q", k.MeasurementHash())
			}
			if profile.KeyOfIdentity(k.Identity()) != k {
				t.Fatalf("%v is not read back from %v", k, k.Identity())
			}
			if s, err := labels.Parse(k.Selector()); err != nil || !s.Matches(labels.Set(k.Tuple())) {
				t.Fatalf("selector %q of %v: %v", k.Selector(), k.Tuple(), err)
			}
			bare, _ := profile.PurgeHash(v1alpha1.Identity{Tuple: k.Tuple()})
			if bare == k.MeasurementHash() {
				t.Fatalf("the bare tuple's hash is %v's", k)
			}
		}
		if same := a == b; same != (a.Name() == b.Name()) || same != (a.MeasurementHash() == b.MeasurementHash()) {
			t.Fatalf("%+v and %+v: names %q and %q", a, b, a.Name(), b.Name())
		}
	})
}

// drawKey draws from few enough parts that two draws are often nearly alike.
func drawKey(t *rapid.T, label string) profile.Key {
	value := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "b", "A", "a-b", "a.b", "a_b", "a--b", "h0123456789ab", strings.Repeat("v", 63)}),
		rapid.StringMatching(`([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?`),
	)
	key := rapid.SampledFrom([]string{nameLabel, componentLabel, "app", "acme.org/name", "team"})
	name := rapid.OneOf(rapid.SampledFrom([]string{"fleet", "fleet.a", "fleet-a"}), rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?`))
	var ref v1alpha1.PolicyReference
	switch rapid.IntRange(0, 2).Draw(t, label+" kind") {
	case 1:
		ref = cluster(name.Draw(t, label+" policy"))
	case 2:
		ref = namespaced(rapid.SampledFrom([]string{"a", "fleet"}).Draw(t, label+" namespace"), name.Draw(t, label+" policy"))
	}
	return tuple(rapid.MapOfN(key, value, 1, 3).Draw(t, label+" tuple"), ref)
}

func TestPurgeHash(t *testing.T) {
	k := tuple(map[string]string{nameLabel: "shop"}, cluster("fleet"))
	tests := map[string]struct {
		identity v1alpha1.Identity
		want     string
		ok       bool
	}{
		"recorded":         {k.Identity(), k.MeasurementHash(), true},
		"legacy":           {v1alpha1.Identity{Tuple: map[string]string{nameLabel: "shop"}, PolicyRef: k.Identity().PolicyRef}, "4ef99863c91bffa3", true},
		"without identity": {v1alpha1.Identity{}, "", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := profile.PurgeHash(test.identity); got != test.want || ok != test.ok {
				t.Errorf("PurgeHash = %q, %v, want %q, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

func TestParseRefRoundTrip(t *testing.T) {
	for _, ref := range []v1alpha1.PolicyReference{none, cluster("fleet"), namespaced("a", "fleet.v2")} {
		got, err := profile.ParseRef(profile.FormatRef(ref))
		if err != nil || got != ref {
			t.Errorf("%+v became %+v, %v", ref, got, err)
		}
	}
	for _, text := range []string{"", "/", "fleet", "ClusterResourcePolicy/", "ClusterResourcePolicy/a/b", "ResourcePolicy/a",
		"ResourcePolicy//b", "ResourcePolicy/a/", "ResourcePolicy/a/b/c", "Policy/a", "ClusterResourcePolicy/A", "nopolicy/x",
		"ResourcePolicy/a.b/c", "ClusterResourcePolicy/a\n", strings.Repeat("x", 1<<20)} {
		if got, err := profile.ParseRef(text); err == nil {
			t.Errorf("%.40q was read as %+v", text, got)
		} else if len(err.Error()) > 2048 {
			t.Errorf("the error about a text of %d characters has %d", len(text), len(err.Error()))
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, seed := range []string{"nopolicy", "ClusterResourcePolicy/fleet", "ResourcePolicy/a/b", "ResourcePolicy/a", "//"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := profile.ParseRef(text)
		if err == nil && profile.FormatRef(ref) != text {
			t.Errorf("%q was read as %+v", text, ref)
		}
	})
}

func FuzzName(f *testing.F) {
	f.Add("shop", "web", "a", "fleet")
	f.Add("", "\x00", "", "")
	f.Add("Ä.-", "--h0123456789ab", "", "x.y")
	f.Fuzz(func(t *testing.T, name, component, namespace, policy string) {
		ref := cluster(policy)
		if namespace != "" {
			ref = namespaced(namespace, policy)
		}
		k := tuple(map[string]string{nameLabel: name, componentLabel: component}, ref)
		if errs := validation.IsDNS1123Subdomain(k.Name()); len(errs) > 0 {
			t.Errorf("%q: %v", k.Name(), errs)
		}
		if d := profile.Discriminator(ref); len(d) > 33 || !strings.HasSuffix(k.Name(), "--"+d) {
			t.Errorf("%q and discriminator %q", k.Name(), d)
		}
	})
}
