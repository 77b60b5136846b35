package v1alpha1_test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/test/env"
)

var api *env.API

func TestMain(m *testing.M) {
	env.Main(m, func(t env.TB) { api = env.StartAPI(t, env.Options{}) })
}

// fullSpec uses every field of a policy with a value the server accepts.
const fullSpec = `
priority: 100
selector:
  kinds: [Deployment]
  namespaces: {include: [shop, "/.*-prod/"], exclude: [monitoring]}
  annotations: {"acme.org/unit": "/.+/"}
  labelSelector: {matchLabels: {tier: web}}
sampling: {interval: 1s, sources: [cgroup, ebpf], flush: 15s, startup: 2m, memory: workingSet}
resources:
- {resource: cpu, field: request, aggregation: p95, headroom: "1.15", min: 10m, max: "8"}
- {resource: memory, field: limit, aggregation: peak, headroom: "1.2", min: 16Mi}
- {resource: memory, field: request, aggregation: p99.9}
oom: {bump: "1.2", minBump: 100Mi, halfLife: 24h}
readiness: {minSamples: 250, minTimeSpan: 24h, maxCV: "1.5", cvMeanFloor: {cpu: 25m, memory: 25Mi}}
retention: {window: 192h, halfLife: 24h}
apply: {qos: allowBurstable, hpa: leave, dryRun: false}
resize:
  threshold: "10%"
  thresholds: {cpu: {request: "15%"}}
  maxChangePerCycle: "50%"
  interval: 15m
  maxConcurrent: 10%
  canary: {fraction: 0%, watch: 10m}
  patience: {deferred: 5m, inProgress: 15m}
  decreaseMargin: "10%"
  allowRestart: false
  rollback: {watch: 10m, throttledShare: "25%"}
  schedule: [{days: [Sat, Sun], start: "22:00", end: "06:00", timeZone: Europe/Berlin}]
  dryRun: false
`

// TestPolicyValidation sends both policy kinds to the API server; want is part
// of the refusal, empty where the object is valid.
func TestPolicyValidation(t *testing.T) {
	tests := map[string]struct{ spec, want string }{
		"empty":                      {`{}`, ""},
		"every field":                {fullSpec, ""},
		"count of concurrent pods":   {`resize: {maxConcurrent: 3}`, ""},
		"priority too high":          {`priority: 1000001`, "spec.priority"},
		"unknown resource":           {`resources: [{resource: gpu, field: limit}]`, "spec.resources[0].resource"},
		"unknown field":              {`resources: [{resource: cpu, field: both}]`, "spec.resources[0].field"},
		"same rule twice":            {`resources: [{resource: cpu, field: limit}, {resource: cpu, field: limit}]`, "spec.resources[1]"},
		"unknown aggregation":        {`resources: [{resource: cpu, field: limit, aggregation: median}]`, "spec.resources[0].aggregation"},
		"headroom below one":         {`resources: [{resource: cpu, field: limit, headroom: "0.9"}]`, "headroom must lie between 1 and 10"},
		"headroom not a number":      {`resources: [{resource: cpu, field: limit, headroom: "-1"}]`, "spec.resources[0].headroom"},
		"min above max":              {`resources: [{resource: cpu, field: limit, min: "2", max: "1500m"}]`, "min must not be above max"},
		"min equal to max":           {`resources: [{resource: cpu, field: limit, min: "2", max: "2000m"}]`, ""},
		"negative min":               {`resources: [{resource: cpu, field: limit, min: "-1"}]`, "must not be negative"},
		"bare numbers":               {`resources: [{resource: cpu, field: limit, min: 1, max: 2}]`, ""},
		"bare numbers upside down":   {`resources: [{resource: cpu, field: limit, min: 3, max: "2"}]`, "min must not be above max"},
		"interval too short":         {`sampling: {interval: 10ms}`, "interval must lie between 200ms and 1m"},
		"interval not a duration":    {`sampling: {interval: soon}`, "spec.sampling.interval"},
		"flush too long":             {`sampling: {flush: 1h}`, "flush must lie between 1s and 5m"},
		"unknown source":             {`sampling: {sources: [kubelet]}`, "spec.sampling.sources[0]"},
		"no source":                  {`sampling: {sources: []}`, "spec.sampling.sources"},
		"unknown memory measure":     {`sampling: {memory: rss}`, "spec.sampling.memory"},
		"bump too large":             {`oom: {bump: "11"}`, "bump must lie between 1 and 10"},
		"no samples needed":          {`readiness: {minSamples: 0}`, "spec.readiness.minSamples"},
		"variation of zero":          {`readiness: {maxCV: "0"}`, "maxCV must be above 0"},
		"half-life above window":     {`retention: {window: 24h, halfLife: 48h}`, "halfLife must not be above window"},
		"unknown qos":                {`apply: {qos: guaranteed}`, "spec.apply.qos"},
		"unknown hpa":                {`apply: {hpa: fight}`, "spec.apply.hpa"},
		"threshold without percent":  {`resize: {threshold: "10"}`, "spec.resize.threshold"},
		"threshold above 100%":       {`resize: {threshold: "101%"}`, "spec.resize.threshold"},
		"step of zero":               {`resize: {maxChangePerCycle: "0%"}`, "maxChangePerCycle must be above 0%"},
		"no pod at once":             {`resize: {maxConcurrent: 0}`, "maxConcurrent must be a count"},
		"share of pods without sign": {`resize: {maxConcurrent: "10"}`, "maxConcurrent must be a count"},
		"schedule with a bad time":   {`resize: {schedule: [{start: "24:00", end: "06:00"}]}`, "spec.resize.schedule[0].start"},
		"schedule of no length":      {`resize: {schedule: [{start: "06:00", end: "06:00"}]}`, "start and end must differ"},
		"schedule on no day":         {`resize: {schedule: [{days: [Today], start: "06:00", end: "07:00"}]}`, "spec.resize.schedule[0].days[0]"},
		"empty namespace pattern":    {`selector: {namespaces: {include: [""]}}`, "spec.selector.namespaces.include[0]"},
		"long annotation pattern":    {`selector: {annotations: {a: "` + strings.Repeat("x", 257) + `"}}`, "spec.selector.annotations"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []string{"ResourcePolicy", "ClusterResourcePolicy"} {
				check(t, kind, "p", tc.spec, tc.want)
			}
		})
	}
}

func TestObjectValidation(t *testing.T) {
	const hash = "0123456789abcdef"
	tests := map[string]struct{ kind, name, spec, want string }{
		"profile":                            {"WorkloadProfile", "w", `{identity: {tuple: {app: a}, policyRef: {kind: ClusterResourcePolicy, name: p}, measurementHash: ` + hash + `}}`, ""},
		"profile without policy":             {"WorkloadProfile", "w", `{identity: {measurementHash: ` + hash + `}}`, ""},
		"profile without identity":           {"WorkloadProfile", "w", `{}`, "spec.identity"},
		"profile with a bad hash":            {"WorkloadProfile", "w", `{identity: {measurementHash: XYZ}}`, "spec.identity.measurementHash"},
		"cluster policy with a namespace":    {"WorkloadProfile", "w", `{identity: {policyRef: {kind: ClusterResourcePolicy, namespace: a, name: p}, measurementHash: ` + hash + `}}`, "namespace is required for a ResourcePolicy"},
		"resource policy without namespace":  {"WorkloadProfile", "w", `{identity: {policyRef: {kind: ResourcePolicy, name: p}, measurementHash: ` + hash + `}}`, "namespace is required for a ResourcePolicy"},
		"envelope":                           {"ContainerProfile", "e", `{containers: [{name: a, cpu: {typical: 1, max: 2}, startup: 30s}]}`, ""},
		"envelope upside down":               {"ContainerProfile", "e", `{containers: [{name: a, memory: {typical: 2Gi, max: 1Gi}}]}`, "typical must not be above max"},
		"envelope of nothing":                {"ContainerProfile", "e", `{containers: []}`, "spec.containers"},
		"status of a replica":                {"PolicyPodStatus", "s", `{pod: w-1, policyRef: {kind: ClusterResourcePolicy, name: p}}`, ""},
		"status of nobody":                   {"PolicyPodStatus", "s", `{policyRef: {kind: ClusterResourcePolicy, name: p}}`, "spec.pod"},
		"agent":                              {"AgentStatus", "n", `{nodeName: node-1}`, ""},
		"agent without node":                 {"AgentStatus", "n", `{}`, "spec.nodeName"},
		"config":                             {"PlimsollConfig", "plimsoll", `{identityLabels: [app], orphanTTL: 1h, suspended: true}`, ""},
		"config of another name":             {"PlimsollConfig", "other", `{}`, "the only PlimsollConfig is named plimsoll"},
		"config with a label twice":          {"PlimsollConfig", "plimsoll", `{identityLabels: [app, app]}`, "each identity label may stand once"},
		"config with what is no label":       {"PlimsollConfig", "plimsoll", `{identityLabels: [app, "../name"]}`, "must be a label's name"},
		"config with usual labels":           {"PlimsollConfig", "plimsoll", `{identityLabels: [app.kubernetes.io/name, k8s-app, T_1.x, a]}`, ""},
		"config with no label":               {"PlimsollConfig", "plimsoll", `{identityLabels: []}`, "spec.identityLabels"},
		"config that keeps orphans too long": {"PlimsollConfig", "plimsoll", `{orphanTTL: 9000h}`, "orphanTTL must lie between 1m and 8760h"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) { check(t, tc.kind, tc.name, tc.spec, tc.want) })
	}
}

// TestIdentityIsImmutable changes the identity of a stored profile.
func TestIdentityIsImmutable(t *testing.T) {
	c := newClient(t)
	o := object(t, "WorkloadProfile", "immutable", `{identity: {tuple: {app: a}, measurementHash: 0123456789abcdef}}`)
	if err := c.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(t.Context(), o) })
	_ = unstructured.SetNestedField(o.Object, "b", "spec", "identity", "tuple", "app")
	if err := c.Update(t.Context(), o); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "identity is immutable") {
		t.Errorf("changing the identity: %v, want a refusal", err)
	}
}

// TestDefaultsStayOut proves that the server stores a policy as it was written:
// defaults are applied when it is read.
func TestDefaultsStayOut(t *testing.T) {
	c := newClient(t)
	o := object(t, "ClusterResourcePolicy", "bare", `{resize: {}}`)
	if err := c.Create(t.Context(), o, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	spec, _, _ := unstructured.NestedMap(o.Object, "spec")
	if resize, ok := spec["resize"].(map[string]any); len(spec) != 1 || !ok || len(resize) != 0 {
		t.Errorf("stored spec is %v, want {resize: {}}", spec)
	}
}

// TestExplain asks the server for the words a user sees.
func TestExplain(t *testing.T) {
	tests := map[string]string{
		"crp.spec.selector.kinds":                             "cannot narrow what is measured",
		"crp.spec.selector":                                   "plimsoll.dev/profile-ref",
		"rp.spec.resize.maxChangePerCycle":                    "Default 50%",
		"wp.status.containers.recommendations.reason":         "CappedByPolicy",
		"plimsollconfigs.spec.suspended":                      "kill switch",
		"agentstatuses.status.programs.message":               "why",
		"containerprofiles.spec.containers.memory.max":        "largest use",
		"policypodstatuses.status.parentGeneration":           "generation of the policy",
		"clusterresourcepolicies.status.profileDiscriminator": "ends the names of all profiles",
	}
	for field, want := range tests {
		t.Run(field, func(t *testing.T) {
			out, err := api.Kubectl("", "explain", field)
			if err != nil {
				t.Fatal(err)
			}
			if flat := strings.Join(strings.Fields(out), " "); !strings.Contains(flat, want) {
				t.Errorf("explanation lacks %q:\n%s", want, out)
			}
		})
	}
}

func check(t *testing.T, kind, name, spec, want string) {
	t.Helper()
	err := newClient(t).Create(t.Context(), object(t, kind, name, spec), client.DryRunAll)
	switch {
	case want == "" && err != nil:
		t.Errorf("%s refused: %v", kind, err)
	case want != "" && err == nil:
		t.Errorf("%s accepted, want a refusal with %q", kind, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("%s refused with %v, want %q", kind, err, want)
	}
}

func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var s map[string]any
	if err := yaml.Unmarshal([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "plimsoll.dev/v1alpha1", "kind": kind, "spec": s}}
	o.SetName(name)
	switch kind {
	case "ResourcePolicy", "ContainerProfile", "PolicyPodStatus", "AgentStatus":
		o.SetNamespace("default")
	}
	return o
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(api.Config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
