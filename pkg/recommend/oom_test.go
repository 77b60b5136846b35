package recommend_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
	"plimsoll.dev/pkg/policy"
	"plimsoll.dev/pkg/recommend"
	"plimsoll.dev/pkg/sample"
)

func kill(age time.Duration, limit sample.Amount) recommend.Kill {
	return recommend.Kill{Time: now.Add(-age), Limit: limit}
}

func memoryLimit(t *testing.T, s policy.Settings, c recommend.Container) *recommend.Recommendation {
	t.Helper()
	return need(t, recommend.Compute(input(s, c)), corev1.ResourceMemory, v1alpha1.FieldLimit)
}

func TestOOMKills(t *testing.T) {
	fifty := make([]recommend.Kill, 50)
	for i := range fifty {
		fifty[i] = kill(time.Duration(i)*time.Minute, 1000*mi)
	}
	tests := map[string]struct {
		kills  []recommend.Kill
		want   sample.Amount
		reason recommend.Reason
	}{
		"C41 fifty kills at one limit ask for no more than one":   {fifty, 1200 * mi, recommend.RaisedByOOM},
		"the least raise holds for small limits":                  {[]recommend.Kill{kill(0, 128*mi)}, 228 * mi, recommend.RaisedByOOM},
		"C43 a kill dated after now counts":                       {[]recommend.Kill{kill(-30*time.Second, 1000*mi)}, 1200 * mi, recommend.RaisedByOOM},
		"C43 a kill before the newest sample counts":              {[]recommend.Kill{kill(30*time.Second, 1000*mi)}, 1200 * mi, recommend.RaisedByOOM},
		"the raise fades, the limit stays":                        {[]recommend.Kill{kill(24*time.Hour, 1000*mi)}, 1100 * mi, recommend.RaisedByOOM},
		"a kill older than the window is forgotten":               {[]recommend.Kill{kill(193*time.Hour, 1000*mi)}, 115 * mi, recommend.Estimated},
		"a kill below the estimate changes nothing":               {[]recommend.Kill{kill(0, 10*mi)}, 115 * mi, recommend.Estimated},
		"C31 a kill by the node's pressure changes nothing":       {[]recommend.Kill{{Time: now, Limit: 1000 * mi, Node: true}}, 115 * mi, recommend.Estimated},
		"without a limit the use at the kill stands in":           {[]recommend.Kill{{Time: now, Usage: 1000 * mi}}, 1200 * mi, recommend.RaisedByOOM},
		"a kill that tells nothing takes what the container runs": {[]recommend.Kill{{Time: now}}, 500 * mi * 1.2, recommend.RaisedByOOM},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := container("app", 0.1, 100*mi)
			c.Kills = tt.kills
			c.Limits = map[corev1.ResourceName]sample.Amount{corev1.ResourceMemory: 500 * mi}
			if got := memoryLimit(t, defaults(), c); !near(got.Value, tt.want) || got.Reason != tt.reason {
				t.Errorf("got %s (%s), want %s (%s)", recommend.Format(got.Value, "memory"), got.Reason, recommend.Format(tt.want, "memory"), tt.reason)
			}
		})
	}
}

func TestC41CapHoldsUnderManyKills(t *testing.T) {
	c := container("app", 0.1, 300*mi)
	for i := range 50 {
		c.Kills = append(c.Kills, kill(time.Duration(i)*time.Minute, 256*mi))
	}
	s := with(defaults(), corev1.ResourceMemory, v1alpha1.FieldLimit, func(r *policy.Rule) { r.Max = 256 * mi })
	got := memoryLimit(t, s, c)
	if got.Value != 256*mi || got.Reason != recommend.CappedByPolicy {
		t.Errorf("applied %s (%s), want the cap", recommend.Format(got.Value, "memory"), got.Reason)
	}
	if want := sample.Amount(356 * mi); !near(got.Estimate, want) {
		t.Errorf("estimate %s, want %s", recommend.Format(got.Estimate, "memory"), recommend.Format(want, "memory"))
	}
	if m := recommend.Compute(input(s, c)).Message; !strings.Contains(m, "CappedByPolicy: memory limit of app stays at 256Mi") {
		t.Errorf("the condition's message does not say so: %s", m)
	}
}

func TestC42KillsWithoutSamples(t *testing.T) {
	c := recommend.Container{Name: "app", Running: true, Kills: []recommend.Kill{kill(time.Second, 64*mi)}}
	r := recommend.Compute(input(defaults(), c))
	for _, f := range []v1alpha1.ResourceField{v1alpha1.FieldLimit, v1alpha1.FieldRequest} {
		if got := need(t, r, corev1.ResourceMemory, f); !near(got.Value, 164*mi) || got.Reason != recommend.RaisedByOOM {
			t.Errorf("%s: got %v (%s), want 164Mi", f, got.Value, got.Reason)
		}
	}
	if find(r, corev1.ResourceCPU, v1alpha1.FieldRequest) != nil {
		t.Error("cpu is recommended without a sample")
	}
	if status := r.Statuses()[0]; status.OOMKills != 1 {
		t.Errorf("the status tells of %d kills", status.OOMKills)
	}
	if r.Sufficient {
		t.Error("Sufficient without a sample")
	}
}
