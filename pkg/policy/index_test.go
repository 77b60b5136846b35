package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
)

func spec(priority int32, s v1alpha1.Selector) v1alpha1.ResourcePolicySpec {
	return v1alpha1.ResourcePolicySpec{Priority: &priority, Selector: s}
}

func rp(namespace, name string, priority int32, s v1alpha1.Selector) v1alpha1.ResourcePolicy {
	return v1alpha1.ResourcePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec(priority, s),
	}
}

func crp(name string, priority int32, s v1alpha1.Selector) v1alpha1.ClusterResourcePolicy {
	return v1alpha1.ClusterResourcePolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec(priority, s)}
}

func pod(labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations}}
}

func namespaces(include, exclude []v1alpha1.Pattern) v1alpha1.Selector {
	return v1alpha1.Selector{Namespaces: &v1alpha1.NamespaceSelector{Include: include, Exclude: exclude}}
}

// answer is the name of the governing policy, "" for none.
func answer(x *policy.Index, in policy.Input) string {
	p, ok := x.Resolve(in)
	if !ok {
		return ""
	}
	if p.Ref.Namespace != "" {
		return p.Ref.Namespace + "/" + p.Ref.Name
	}
	return p.Ref.Name
}

func TestResolve(t *testing.T) {
	deployments := v1alpha1.Selector{Kinds: []string{"Deployment"}}
	web := v1alpha1.Selector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "web"}}}
	notDB := v1alpha1.Selector{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"db"}},
		{Key: "legacy", Operator: metav1.LabelSelectorOpDoesNotExist},
	}}}
	unit := v1alpha1.Selector{Annotations: map[string]v1alpha1.Pattern{"acme.org/unit": "/pay.*/"}}
	broken := namespaces([]v1alpha1.Pattern{"/(/"}, nil)
	webPod := pod(map[string]string{"tier": "web"}, map[string]string{"acme.org/unit": "payments"})
	tests := map[string]struct {
		rps  []v1alpha1.ResourcePolicy
		crps []v1alpha1.ClusterResourcePolicy
		in   policy.Input
		want string
	}{
		"no policy at all": {in: policy.NewInput(webPod, "a", "Deployment")},
		"an empty selector matches everything": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("all", 0, v1alpha1.Selector{})},
			in:   policy.NewInput(pod(nil, nil), "a", "Pod"), want: "all",
		},
		"the zero input matches nothing": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("all", 0, v1alpha1.Selector{})},
		},
		"C01 the kind is the top-level owner's": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("d", 0, deployments)},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "d",
		},
		"C01 not the direct owner's": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("d", 0, deployments)},
			in:   policy.NewInput(webPod, "a", "ReplicaSet"),
		},
		"C02 a ResourcePolicy stays in its namespace": {
			rps:  []v1alpha1.ResourcePolicy{rp("a", "loose", 1000, v1alpha1.Selector{})},
			crps: []v1alpha1.ClusterResourcePolicy{crp("fleet", -5, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "b", "Deployment"), want: "fleet",
		},
		"C02 in its namespace it beats any priority": {
			rps:  []v1alpha1.ResourcePolicy{rp("a", "loose", -1000, v1alpha1.Selector{})},
			crps: []v1alpha1.ClusterResourcePolicy{crp("fleet", 1000, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "a/loose",
		},
		"C03 no namespace, no ResourcePolicy": {
			rps:  []v1alpha1.ResourcePolicy{rp("a", "loose", 1000, v1alpha1.Selector{}), rp("", "odd", 1000, v1alpha1.Selector{})},
			crps: []v1alpha1.ClusterResourcePolicy{crp("fleet", 0, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "", "Deployment"), want: "fleet",
		},
		"C05 the name decides among equals": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("zebra", 7, v1alpha1.Selector{}), crp("ant", 7, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "ant",
		},
		"the higher priority governs": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("ant", 7, v1alpha1.Selector{}), crp("zebra", 8, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "zebra",
		},
		"C06 a broken policy is skipped": {
			rps:  []v1alpha1.ResourcePolicy{rp("a", "broken", 1000, broken)},
			crps: []v1alpha1.ClusterResourcePolicy{crp("broken", 1000, broken), crp("fleet", 0, v1alpha1.Selector{})},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "fleet",
		},
		"label equality": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("web", 0, web)},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "web",
		},
		"label equality, other value": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("web", 0, web)},
			in:   policy.NewInput(pod(map[string]string{"tier": "db"}, nil), "a", "Deployment"),
		},
		"negative label requirements match a pod without labels": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("not-db", 0, notDB)},
			in:   policy.NewInput(pod(nil, nil), "a", "Deployment"), want: "not-db",
		},
		"negative label requirements, present": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("not-db", 0, notDB)},
			in:   policy.NewInput(pod(map[string]string{"legacy": ""}, nil), "a", "Deployment"),
		},
		"annotation expression": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("pay", 0, unit)},
			in:   policy.NewInput(webPod, "a", "Deployment"), want: "pay",
		},
		"annotation absent": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("pay", 0, unit)},
			in:   policy.NewInput(pod(nil, nil), "a", "Deployment"),
		},
		"namespace expression is anchored": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("prod", 0, namespaces([]v1alpha1.Pattern{"/shop|.*-prod/"}, nil))},
			in:   policy.NewInput(webPod, "shop-prod-old", "Deployment"),
		},
		"exclude beats include": {
			crps: []v1alpha1.ClusterResourcePolicy{crp("prod", 0, namespaces([]v1alpha1.Pattern{"/.*/"}, []v1alpha1.Pattern{"monitoring"}))},
			in:   policy.NewInput(webPod, "monitoring", "Deployment"),
		},
		"a ResourcePolicy can exclude its own namespace": {
			rps: []v1alpha1.ResourcePolicy{rp("a", "none", 0, namespaces(nil, []v1alpha1.Pattern{"a"}))},
			in:  policy.NewInput(webPod, "a", "Deployment"),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := policy.NewIndex(test.rps, test.crps)
			for range 2 { // the second answer comes from what the index remembers
				if got := answer(x, test.in); got != test.want {
					t.Errorf("Resolve = %q, want %q", got, test.want)
				}
			}
		})
	}
}

func TestPatternIsAnchored(t *testing.T) {
	tests := map[v1alpha1.Pattern]struct{ match, no []string }{
		"exact":         {[]string{"exact"}, []string{"", "exact2", "2exact", "/exact/"}},
		"/":             {[]string{"/"}, []string{"", "//"}},
		"//":            {[]string{""}, []string{"/", "a"}},
		"/a|b/":         {[]string{"a", "b"}, []string{"ab", "ac", "cb"}},
		"/(?m)a$/":      {[]string{"a"}, []string{"a\n", "a\nb", "b\na"}},
		"/(?i)Ab/":      {[]string{"ab", "AB"}, []string{"abc"}},
		`/\Qa.b/`:       {[]string{"a.b"}, []string{"axb", "a.b)"}},
		"/^x.*$/":       {[]string{"x", "xyz"}, []string{"yx", "x\ny"}},
		"/(?s)x.*/":     {[]string{"x\ny"}, []string{"y\nx"}},
		`/a\/b/`:        {[]string{"a/b"}, []string{"a"}},
		"/[[:alpha:]]/": {[]string{"q"}, []string{"qq", "1"}},
	}
	for p, test := range tests {
		t.Run(string(p), func(t *testing.T) {
			c, err := policy.Compile(spec(0, v1alpha1.Selector{Annotations: map[string]v1alpha1.Pattern{"k": p}}))
			if err != nil {
				t.Fatal(err)
			}
			check := func(values []string, want bool) {
				for _, v := range values {
					if got := c.Matches(policy.NewInput(pod(nil, map[string]string{"k": v}), "a", "Pod")); got != want {
						t.Errorf("%q matches %q: %v, want %v", p, v, got, want)
					}
				}
			}
			check(test.match, true)
			check(test.no, false)
		})
	}
	for _, p := range []v1alpha1.Pattern{"/a)|(b/", "/(/", "/[/", `/\/`, "/a{2000}/", "/(?=a)/"} {
		if _, err := policy.Compile(spec(0, v1alpha1.Selector{Annotations: map[string]v1alpha1.Pattern{"k": p}})); err == nil {
			t.Errorf("%q compiles", p)
		}
	}
}

func TestC05OverlapNamesAllOfEqualRank(t *testing.T) {
	x := policy.NewIndex(
		[]v1alpha1.ResourcePolicy{rp("a", "one", 1, v1alpha1.Selector{Kinds: []string{"Job"}})},
		[]v1alpha1.ClusterResourcePolicy{
			crp("b", 5, v1alpha1.Selector{}), crp("a", 5, v1alpha1.Selector{}), crp("low", 4, v1alpha1.Selector{}),
			crp("other", 5, v1alpha1.Selector{Kinds: []string{"Pod"}}),
		})
	names := func(in policy.Input) (out []string) {
		for _, p := range x.Overlaps(in) {
			out = append(out, p.Ref.Name)
		}
		return out
	}
	if diff := cmp.Diff([]string{"a", "b"}, names(policy.NewInput(pod(nil, nil), "a", "Deployment"))); diff != "" {
		t.Error(diff)
	}
	if got := names(policy.NewInput(pod(nil, nil), "a", "Job")); got != nil {
		t.Errorf("a ResourcePolicy alone in its rank overlaps with %v", got)
	}
}

func TestBrokenPoliciesAreReported(t *testing.T) {
	bad := v1alpha1.ClusterResourcePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "bad", UID: "u", Generation: 3},
		Spec:       spec(0, namespaces([]v1alpha1.Pattern{"ok", "/(/"}, nil)),
	}
	x := policy.NewIndex(nil, []v1alpha1.ClusterResourcePolicy{bad, crp("good", 0, v1alpha1.Selector{})})
	if len(x.Broken()) != 1 {
		t.Fatalf("broken: %v", x.Broken())
	}
	b := x.Broken()[0]
	if b.Ref.Name != "bad" || b.Generation != 3 || !strings.Contains(b.Err.Error(), "spec.selector.namespaces.include[1]") {
		t.Errorf("broken: %+v", b)
	}
	if _, ok := x.Load(b.Ref); ok {
		t.Error("a broken policy can be loaded")
	}
	if p, ok := x.Load(v1alpha1.PolicyReference{Kind: v1alpha1.KindClusterResourcePolicy, Name: "good"}); !ok || p.Ref.Name != "good" {
		t.Error("a good policy cannot be loaded")
	}
}

func TestHolderBeforeTheFirstIndex(t *testing.T) {
	var h policy.Holder
	if _, ok := h.Get().Resolve(policy.NewInput(pod(nil, nil), "a", "Pod")); ok {
		t.Error("no index governs a pod")
	}
}

// The index must answer what trying every policy in order of rank answers.
func TestResolveEqualsTryingEach(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rps []v1alpha1.ResourcePolicy
		var crps []v1alpha1.ClusterResourcePolicy
		for i := range rapid.IntRange(0, 90).Draw(t, "policies") {
			s := drawSelector(t)
			name := fmt.Sprintf("p%02d", i)
			priority := rapid.Int32Range(-2, 2).Draw(t, "priority")
			if rapid.IntRange(0, 3).Draw(t, "scope") == 0 {
				rps = append(rps, rp(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "in"), name, priority, s))
			} else {
				crps = append(crps, crp(name, priority, s))
			}
		}
		x := policy.NewIndex(rps, crps)
		for range 8 {
			in, ns := drawInput(t)
			want := tryEach(rps, crps, in, ns)
			first := ""
			if len(want) > 0 {
				first = want[0]
			}
			if got := answer(x, in); got != first {
				t.Fatalf("Resolve = %q, trying each = %q", got, want)
			}
			var overlaps []string
			for _, p := range x.Overlaps(in) {
				overlaps = append(overlaps, strings.TrimPrefix(p.Ref.Namespace+"/"+p.Ref.Name, "/"))
			}
			if len(want) < 2 {
				want = nil
			}
			if diff := cmp.Diff(want, overlaps); diff != "" {
				t.Fatalf("Overlaps: %s", diff)
			}
			if len(want) > 1 && !x.Tied() {
				t.Fatal("Tied is false")
			}
		}
	})
}

// tryEach returns the policies that match with the best scope and priority, by name.
func tryEach(rps []v1alpha1.ResourcePolicy, crps []v1alpha1.ClusterResourcePolicy, in policy.Input, ns string) (best []string) {
	var rank []int
	consider := func(scope int, s v1alpha1.ResourcePolicySpec, name string) {
		c, err := policy.Compile(s)
		if err != nil || !c.Matches(in) {
			return
		}
		switch r := []int{scope, -int(c.Priority)}; {
		case best == nil || slices.Compare(r, rank) < 0:
			best, rank = []string{name}, r
		case slices.Equal(r, rank):
			best = append(best, name)
		}
	}
	for _, p := range rps { // in order of their names
		if p.Namespace == ns {
			consider(0, p.Spec, p.Namespace+"/"+p.Name)
		}
	}
	for _, p := range crps {
		consider(1, p.Spec, p.Name)
	}
	return best
}

var keys = []string{"k1", "k2", "k3"}
var values = []string{"", "v1", "v2", "w1"}

func drawSelector(t *rapid.T) v1alpha1.Selector {
	var s v1alpha1.Selector
	some := func(label string) bool { return rapid.Bool().Draw(t, label) }
	if some("kinds") {
		s.Kinds = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"Pod", "Deployment", "Job"}), 1, 2, rapid.ID).Draw(t, "kinds")
	}
	patterns := rapid.SliceOfN(rapid.SampledFrom([]v1alpha1.Pattern{"a", "b", "/a|c/", "/.*/", "/(/"}), 0, 2)
	if some("namespaces") {
		s.Namespaces = &v1alpha1.NamespaceSelector{Include: patterns.Draw(t, "include"), Exclude: patterns.Draw(t, "exclude")}
	}
	if some("annotations") {
		s.Annotations = rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom([]v1alpha1.Pattern{"v1", "/v./", "/.*/"}), 1, 2).Draw(t, "annotations")
	}
	if some("labels") {
		ls := &metav1.LabelSelector{MatchLabels: rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 1).Draw(t, "matchLabels")}
		for range rapid.IntRange(0, 2).Draw(t, "expressions") {
			r := metav1.LabelSelectorRequirement{
				Key:      rapid.SampledFrom(keys).Draw(t, "key"),
				Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}).Draw(t, "operator"),
			}
			if r.Operator == "In" || r.Operator == "NotIn" {
				r.Values = rapid.SliceOfN(rapid.SampledFrom(values), 1, 2).Draw(t, "values")
			}
			ls.MatchExpressions = append(ls.MatchExpressions, r)
		}
		s.LabelSelector = ls
	}
	return s
}

func drawInput(t *rapid.T) (policy.Input, string) {
	text := rapid.MapOfN(rapid.SampledFrom(append([]string{"other"}, keys...)), rapid.SampledFrom(values), 0, 4)
	labels, annotations := text.Draw(t, "pod labels"), text.Draw(t, "pod annotations")
	if rapid.IntRange(0, 9).Draw(t, "many") == 0 { // more attributes than narrow
		for i := range 40 {
			maps.Copy(labels, map[string]string{fmt.Sprintf("x%d", i): "y"})
		}
	}
	ns := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "namespace")
	kind := rapid.SampledFrom([]string{"Pod", "Deployment", "StatefulSet"}).Draw(t, "kind")
	return policy.NewInput(pod(labels, annotations), ns, kind), ns
}

func FuzzPattern(f *testing.F) {
	for _, seed := range []string{"a", "/a|b/", "/a)|(b/", `/\Qa/`, "/(?m)^a$/", "//", "/"} {
		f.Add(seed, "a")
	}
	f.Fuzz(func(t *testing.T, p, value string) {
		c, err := policy.Compile(spec(0, v1alpha1.Selector{Annotations: map[string]v1alpha1.Pattern{"k": v1alpha1.Pattern(p)}}))
		if err != nil || !c.Matches(policy.NewInput(pod(nil, map[string]string{"k": value}), "a", "Pod")) {
			return
		}
		// What matches the whole value cannot match with something put around it
		// that the expression does not name.
		if regex := len(p) >= 2 && p[0] == '/' && p[len(p)-1] == '/'; !regex && p != value {
			t.Errorf("the text %q matches %q", p, value)
		}
	})
}

// Many goroutines ask about many values while the index forgets and learns them.
func TestResolveConcurrently(t *testing.T) {
	crps, _ := fleet(100, true)
	x := policy.NewIndex(nil, crps)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				unit := fmt.Sprintf("unit-%04d-%d", i%100, i*8+g)
				in := policy.NewInput(pod(map[string]string{"acme.org/team": "web"}, map[string]string{"acme.org/unit": unit}), "team-1-prod", "Pod")
				if got, want := answer(x, in), fmt.Sprintf("policy-%04d", i%100); got != want {
					t.Errorf("%s is governed by %q, want %q", unit, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
