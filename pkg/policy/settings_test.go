package policy_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/sample"
)

// Exact: these are the documented defaults, and a change of one is a change of behaviour.
func TestDefaults(t *testing.T) {
	cpu, memory := sample.Amount(0.025), sample.Amount(25<<20)
	want := policy.Settings{
		Sampling: policy.Sampling{
			Interval: time.Second, Cgroup: true, EBPF: true, Flush: 15 * time.Second,
			Startup: 2 * time.Minute, Memory: v1alpha1.MemoryWorkingSet,
		},
		OOM: policy.OOM{Bump: 1.2, MinBump: 100 << 20, HalfLife: 24 * time.Hour},
		Readiness: policy.Readiness{
			MinSamples: 250, MinTimeSpan: 24 * time.Hour, MaxCV: 1.5,
			CVMeanFloor: map[sample.Resource]sample.Amount{
				sample.CPU: cpu, sample.CPUBurst: cpu, sample.Memory: memory, sample.MemoryPeak: memory,
			},
		},
		Retention: policy.Retention{Window: 192 * time.Hour, HalfLife: 24 * time.Hour},
		Apply:     policy.Apply{QoS: v1alpha1.QoSAllowBurstable, HPA: v1alpha1.HPALeave},
		Resize: policy.Resize{
			Threshold: 0.1, MaxChangePerCycle: 0.5, Interval: 15 * time.Minute, MaxConcurrent: policy.Concurrency{Share: 0.1},
			CanaryWatch: 10 * time.Minute, DeferredPatience: 5 * time.Minute, ProgressPatience: 15 * time.Minute,
			DecreaseMargin: 0.1, RollbackWatch: 10 * time.Minute, RollbackThrottled: 0.25,
			Thresholds: map[policy.RuleKey]float64{
				{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldRequest}:    0.1,
				{Resource: corev1.ResourceCPU, Field: v1alpha1.FieldLimit}:      0.1,
				{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldRequest}: 0.1,
				{Resource: corev1.ResourceMemory, Field: v1alpha1.FieldLimit}:   0.1,
			},
		},
	}
	if diff := cmp.Diff(want, policy.DefaultSettings(), cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestRuleDefaults(t *testing.T) {
	tests := map[string]struct {
		rule v1alpha1.ResourceRule
		want policy.Rule
	}{
		"cpu request": {
			v1alpha1.ResourceRule{Resource: "cpu", Field: "request"},
			policy.Rule{Resource: "cpu", Field: "request", Aggregation: policy.Percentile, Quantile: 0.95, Headroom: 1.15, Min: 0.01},
		},
		"memory limit": {
			v1alpha1.ResourceRule{Resource: "memory", Field: "limit"},
			policy.Rule{Resource: "memory", Field: "limit", Aggregation: policy.Peak, Headroom: 1.15, Min: 16 << 20},
		},
		"a cap below the default floor": {
			v1alpha1.ResourceRule{Resource: "memory", Field: "limit", Max: quantity("8Mi")},
			policy.Rule{Resource: "memory", Field: "limit", Aggregation: policy.Peak, Headroom: 1.15, Min: 8 << 20, Max: 8 << 20},
		},
		"everything given": {
			v1alpha1.ResourceRule{Resource: "cpu", Field: "limit", Aggregation: "p99.9", Headroom: "2", Min: quantity("0"), Max: quantity("8")},
			policy.Rule{Resource: "cpu", Field: "limit", Aggregation: policy.Percentile, Quantile: 0.999, Headroom: 2, Max: 8},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := policy.SettingsOf(v1alpha1.ResourcePolicySpec{Resources: []v1alpha1.ResourceRule{test.rule}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]policy.Rule{test.want}, s.Rules, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}

// Each line is wrong in one field, which the error has to name.
func TestValidateNamesTheField(t *testing.T) {
	tests := map[string]string{
		`selector: {namespaces: {include: ["/(/"]}}`:                                             "spec.selector.namespaces.include[0]",
		`selector: {namespaces: {exclude: [ok, "shop-*"]}}`:                                      "spec.selector.namespaces.exclude[1]",
		`selector: {annotations: {"acme.org/unit": "/[/"}}`:                                      "spec.selector.annotations[acme.org/unit]",
		`selector: {annotations: {"a b": x}}`:                                                    "spec.selector.annotations[a b]",
		`selector: {labelSelector: {matchLabels: {"a b": x}}}`:                                   "spec.selector.labelSelector.matchLabels",
		`selector: {labelSelector: {matchExpressions: [{key: a, operator: In}]}}`:                "spec.selector.labelSelector.matchExpressions[0].values",
		`selector: {labelSelector: {matchExpressions: [{key: a, operator: Like, values: [x]}]}}`: "spec.selector.labelSelector.matchExpressions[0].operator",
		`priority: 2000000`:                                                          "spec.priority",
		`sampling: {interval: 1ms}`:                                                  "spec.sampling.interval",
		`sampling: {flush: 1h}`:                                                      "spec.sampling.flush",
		`sampling: {startup: -1s}`:                                                   "spec.sampling.startup",
		`sampling: {memory: rss}`:                                                    "spec.sampling.memory",
		`sampling: {sources: [cgroup, procfs]}`:                                      "spec.sampling.sources[1]",
		`resources: [{resource: gpu, field: request}]`:                               "spec.resources[0].resource",
		`resources: [{resource: cpu, field: requests}]`:                              "spec.resources[0].field",
		`resources: [{resource: cpu, field: limit, aggregation: p30}]`:               "spec.resources[0].aggregation",
		`resources: [{resource: cpu, field: limit, aggregation: p100}]`:              "spec.resources[0].aggregation",
		`resources: [{resource: cpu, field: limit, aggregation: mean}]`:              "spec.resources[0].aggregation",
		`resources: [{resource: cpu, field: limit, headroom: "0.5"}]`:                "spec.resources[0].headroom",
		`resources: [{resource: cpu, field: limit, headroom: "1e1"}]`:                "spec.resources[0].headroom",
		`resources: [{resource: cpu, field: limit, headroom: "NaN"}]`:                "spec.resources[0].headroom",
		`resources: [{resource: cpu, field: limit, min: "2", max: 500m}]`:            "spec.resources[0].min",
		`resources: [{resource: cpu, field: limit, min: "-2"}]`:                      "spec.resources[0].min",
		`resources: [{resource: cpu, field: limit, max: "0"}]`:                       "spec.resources[0].max",
		`resources: [{resource: cpu, field: limit, max: 1u}]`:                        "spec.resources[0].max",
		`resources: [{resource: memory, field: limit, max: 512}]`:                    "spec.resources[0].max",
		`resources: [{resource: ephemeral-storage, field: limit, max: 1M}]`:          "spec.resources[0].max",
		`resources: [{resource: cpu, field: limit}, {resource: cpu, field: limit}]`:  "spec.resources[1]",
		`oom: {bump: "20"}`:                                                          "spec.oom.bump",
		`oom: {minBump: "-1Mi"}`:                                                     "spec.oom.minBump",
		`oom: {halfLife: 1s}`:                                                        "spec.oom.halfLife",
		`readiness: {minSamples: 0}`:                                                 "spec.readiness.minSamples",
		`readiness: {minTimeSpan: 1s}`:                                               "spec.readiness.minTimeSpan",
		`readiness: {maxCV: "0"}`:                                                    "spec.readiness.maxCV",
		`readiness: {cvMeanFloor: {cpu: "-1"}}`:                                      "spec.readiness.cvMeanFloor.cpu",
		`readiness: {cvMeanFloor: {memory: "-1"}}`:                                   "spec.readiness.cvMeanFloor.memory",
		`retention: {window: 1m}`:                                                    "spec.retention.window",
		`retention: {halfLife: 3000h}`:                                               "spec.retention.halfLife",
		`retention: {window: 24h, halfLife: 48h}`:                                    "spec.retention.halfLife",
		`apply: {qos: burst}`:                                                        "spec.apply.qos",
		`apply: {hpa: fight}`:                                                        "spec.apply.hpa",
		`resize: {threshold: "10"}`:                                                  "spec.resize.threshold",
		`resize: {thresholds: {cpu: {limit: "x%"}}}`:                                 "spec.resize.thresholds.cpu.limit",
		`resize: {maxChangePerCycle: "0%"}`:                                          "spec.resize.maxChangePerCycle",
		`resize: {maxConcurrent: 0}`:                                                 "spec.resize.maxConcurrent",
		`resize: {maxConcurrent: "0%"}`:                                              "spec.resize.maxConcurrent",
		`resize: {maxConcurrent: "10"}`:                                              "spec.resize.maxConcurrent",
		`resize: {interval: 1s}`:                                                     "spec.resize.interval",
		`resize: {canary: {fraction: "101%"}}`:                                       "spec.resize.canary.fraction",
		`resize: {canary: {watch: 1s}}`:                                              "spec.resize.canary.watch",
		`resize: {patience: {deferred: 1s}}`:                                         "spec.resize.patience.deferred",
		`resize: {patience: {inProgress: 1s}}`:                                       "spec.resize.patience.inProgress",
		`resize: {decreaseMargin: "-1%"}`:                                            "spec.resize.decreaseMargin",
		`resize: {rollback: {watch: 25h}}`:                                           "spec.resize.rollback.watch",
		`resize: {rollback: {throttledShare: many}}`:                                 "spec.resize.rollback.throttledShare",
		`resize: {schedule: [{start: "9:00", end: "17:00"}]}`:                        "spec.resize.schedule[0].start",
		`resize: {schedule: [{start: "09:00", end: "24:00"}]}`:                       "spec.resize.schedule[0].end",
		`resize: {schedule: [{start: "09:00", end: "09:00"}]}`:                       "spec.resize.schedule[0].end",
		`resize: {schedule: [{start: "09:00", end: "17:00", days: [Monday]}]}`:       "spec.resize.schedule[0].days[0]",
		`resize: {schedule: [{start: "09:00", end: "17:00", timeZone: Mars/North}]}`: "spec.resize.schedule[0].timeZone",
		`resize: {schedule: [{start: "09:00", end: "17:00", timeZone: "../etc"}]}`:   "spec.resize.schedule[0].timeZone",
	}
	for text, want := range tests {
		t.Run(text, func(t *testing.T) {
			errs := policy.Validate(parse(t, text))
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Field, want) {
				t.Errorf("Validate = %v, want one error about %s", errs, want)
			}
			if _, err := policy.Compile(parse(t, text)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Compile = %v, want an error about %s", err, want)
			}
		})
	}
}

func parse(t *testing.T, text string) (s v1alpha1.ResourcePolicySpec) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// One policy per field that sets nothing else than what the field needs beside
// it; want is what differs from the defaults. A new field without a line, or one
// that nothing reads, fails.
func TestEveryFieldIsRead(t *testing.T) {
	samples := map[string]string{
		"priority":                         `priority: 1`,
		"selector.kinds":                   `selector: {kinds: [Job]}`,
		"selector.namespaces.include":      `selector: {namespaces: {include: [b]}}`,
		"selector.namespaces.exclude":      `selector: {namespaces: {exclude: [a]}}`,
		"selector.annotations":             `selector: {annotations: {k: v}}`,
		"selector.labelSelector":           `selector: {labelSelector: {matchLabels: {k: v}}}`,
		"sampling.interval":                `sampling: {interval: 2s}`,
		"sampling.sources":                 `sampling: {sources: [cgroup]}`,
		"sampling.flush":                   `sampling: {flush: 1s}`,
		"sampling.startup":                 `sampling: {startup: 0s}`,
		"sampling.memory":                  `sampling: {memory: anon}`,
		"resources.resource":               `resources: [{resource: cpu, field: request}]`,
		"resources.field":                  `resources: [{resource: cpu, field: limit}]`,
		"resources.aggregation":            `resources: [{resource: cpu, field: request, aggregation: max}]`,
		"resources.headroom":               `resources: [{resource: cpu, field: request, headroom: "3"}]`,
		"resources.min":                    `resources: [{resource: cpu, field: request, min: 1m}]`,
		"resources.max":                    `resources: [{resource: cpu, field: request, max: "3"}]`,
		"oom.bump":                         `oom: {bump: "2"}`,
		"oom.minBump":                      `oom: {minBump: "2"}`,
		"oom.halfLife":                     `oom: {halfLife: 1h}`,
		"readiness.minSamples":             `readiness: {minSamples: 1}`,
		"readiness.minTimeSpan":            `readiness: {minTimeSpan: 1h}`,
		"readiness.maxCV":                  `readiness: {maxCV: "3"}`,
		"readiness.cvMeanFloor.cpu":        `readiness: {cvMeanFloor: {cpu: "1"}}`,
		"readiness.cvMeanFloor.memory":     `readiness: {cvMeanFloor: {memory: "1"}}`,
		"retention.window":                 `retention: {window: 100h}`,
		"retention.halfLife":               `retention: {halfLife: 200h}`,
		"apply.qos":                        `apply: {qos: keep}`,
		"apply.hpa":                        `apply: {hpa: ignore}`,
		"apply.dryRun":                     `apply: {dryRun: true}`,
		"resize.threshold":                 `resize: {threshold: 11%}`,
		"resize.thresholds.cpu.request":    `resize: {thresholds: {cpu: {request: 11%}}}`,
		"resize.thresholds.cpu.limit":      `resize: {thresholds: {cpu: {limit: 11%}}}`,
		"resize.thresholds.memory.request": `resize: {thresholds: {memory: {request: 11%}}}`,
		"resize.thresholds.memory.limit":   `resize: {thresholds: {memory: {limit: 11%}}}`,
		"resize.maxChangePerCycle":         `resize: {maxChangePerCycle: 11%}`,
		"resize.interval":                  `resize: {interval: 1h}`,
		"resize.maxConcurrent":             `resize: {maxConcurrent: 3}`,
		"resize.canary.fraction":           `resize: {canary: {fraction: 3%}}`,
		"resize.canary.watch":              `resize: {canary: {watch: 3h}}`,
		"resize.patience.deferred":         `resize: {patience: {deferred: 3h}}`,
		"resize.patience.inProgress":       `resize: {patience: {inProgress: 3h}}`,
		"resize.decreaseMargin":            `resize: {decreaseMargin: 3%}`,
		"resize.allowRestart":              `resize: {allowRestart: true}`,
		"resize.rollback.watch":            `resize: {rollback: {watch: 3h}}`,
		"resize.rollback.throttledShare":   `resize: {rollback: {throttledShare: 3%}}`,
		"resize.schedule.days":             `resize: {schedule: [{start: "09:00", end: "17:00", days: [Mon]}]}`,
		"resize.schedule.start":            `resize: {schedule: [{start: "08:00", end: "17:00"}]}`,
		"resize.schedule.end":              `resize: {schedule: [{start: "09:00", end: "18:00"}]}`,
		"resize.schedule.timeZone":         `resize: {schedule: [{start: "09:00", end: "17:00", timeZone: Asia/Tokyo}]}`,
		"resize.dryRun":                    `resize: {dryRun: true}`,
	}
	bases := map[string]string{
		"resources":       `resources: [{resource: cpu, field: request}]`,
		"resize.schedule": `resize: {schedule: [{start: "09:00", end: "17:00"}]}`,
	}
	for _, path := range leaves(reflect.TypeFor[v1alpha1.ResourcePolicySpec](), "") {
		text, ok := samples[path]
		if !ok {
			t.Errorf("no sample for spec.%s", path)
			continue
		}
		base := ``
		for prefix, b := range bases {
			if strings.HasPrefix(path, prefix+".") && text != b {
				base = b
			}
		}
		if diff := cmp.Diff(effect(t, base), effect(t, text), cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() })); diff == "" {
			t.Errorf("nothing reads spec.%s", path)
		}
	}
}

// effect is all a policy does: its settings, its rank, and which of some pods it matches.
func effect(t *testing.T, text string) any {
	t.Helper()
	c, err := policy.Compile(parse(t, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return struct {
		Settings policy.Settings
		Priority int32
		Matches  bool
	}{c.Settings, c.Priority, c.Matches(policy.NewInput(pod(nil, nil), "a", "Pod"))}
}

// leaves are the JSON paths of a type's fields that hold a value rather than fields of this API.
func leaves(typ reflect.Type, path string) (out []string) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	ours := typ.Kind() == reflect.Struct && typ.PkgPath() == reflect.TypeFor[v1alpha1.Resize]().PkgPath()
	if !ours {
		return []string{path}
	}
	for f := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(f).Tag.Get("json"), ",")
		out = append(out, leaves(typ.Field(f).Type, strings.TrimPrefix(path+"."+name, "."))...)
	}
	return out
}

func TestConcurrency(t *testing.T) {
	ten := intstr.FromString("25%")
	s, err := policy.SettingsOf(v1alpha1.ResourcePolicySpec{Resize: &v1alpha1.Resize{MaxConcurrent: &ten}})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]int{0: 1, 3: 1, 8: 2, 11: 2} {
		if got := s.Resize.MaxConcurrent.Of(n); got != want {
			t.Errorf("25%% of %d pods is %d, want %d", n, got, want)
		}
	}
}

func TestRetentionDefaultsGiveWay(t *testing.T) {
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	tests := map[string]struct {
		in   v1alpha1.Retention
		want policy.Retention
	}{
		"a short window":   {v1alpha1.Retention{Window: hours(6)}, policy.Retention{Window: 6 * time.Hour, HalfLife: 6 * time.Hour}},
		"a long half-life": {v1alpha1.Retention{HalfLife: hours(300)}, policy.Retention{Window: 300 * time.Hour, HalfLife: 300 * time.Hour}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := policy.SettingsOf(v1alpha1.ResourcePolicySpec{Retention: &test.in})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, s.Retention); diff != "" {
				t.Error(diff)
			}
		})
	}
}
