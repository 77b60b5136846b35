package recommend

import (
	corev1 "k8s.io/api/core/v1"

	"plimsoll.dev/pkg/api/v1alpha1"
)

// Explanation is the full derivation of a profile's recommendations, for people and as JSON.
type Explanation struct {
	Sufficient bool                   `json:"sufficient"`
	Reason     Reason                 `json:"reason"`
	Message    string                 `json:"message"`
	Containers []ContainerExplanation `json:"containers,omitempty"`
}

// ContainerExplanation derives the recommendations of one container.
type ContainerExplanation struct {
	Name            string            `json:"name"`
	OOMKills        int               `json:"oomKills,omitempty"`
	Recommendations []ValueDerivation `json:"recommendations,omitempty"`
}

// ValueDerivation derives one request or limit.
type ValueDerivation struct {
	Resource   corev1.ResourceName    `json:"resource"`
	Field      v1alpha1.ResourceField `json:"field"`
	Value      string                 `json:"value"`
	Estimate   string                 `json:"estimate"`
	Reason     Reason                 `json:"reason"`
	ShareAbove v1alpha1.Percent       `json:"shareAbove,omitempty"`
	Censored   bool                   `json:"censored,omitempty"`
	Steps      []StepExplanation      `json:"steps"`
}

// StepExplanation is one step: what was done, with what, and the value after it.
type StepExplanation struct {
	Operation Operation `json:"operation,omitempty"`
	Input     string    `json:"input"`
	Value     string    `json:"value"`
}

// Explain derives every value step by step.
func (r Result) Explain() Explanation {
	e := Explanation{Sufficient: r.Sufficient, Reason: r.Reason, Message: r.Message}
	for _, c := range r.Containers {
		ce := ContainerExplanation{Name: c.Name, OOMKills: c.OOMKills}
		for _, rec := range c.Recommendations {
			d := ValueDerivation{
				Resource: rec.Resource, Field: rec.Field, Reason: rec.Reason, Censored: rec.Share.Censored,
				Value: Format(rec.Value, rec.Resource), Estimate: Format(rec.Estimate, rec.Resource),
			}
			if rec.Share.Known {
				d.ShareAbove = percent(rec.Share.Above)
			}
			for _, s := range rec.Steps {
				d.Steps = append(d.Steps, StepExplanation{s.Operation, s.Input(rec.Resource), Format(s.Value, rec.Resource)})
			}
			ce.Recommendations = append(ce.Recommendations, d)
		}
		e.Containers = append(e.Containers, ce)
	}
	return e
}
