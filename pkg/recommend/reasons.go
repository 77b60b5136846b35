package recommend

// Reason says why: a recommendation's value is what it is, or a profile is ready or not. It is the condition's reason,
// the event's and the metric's label.
type Reason string

// The reasons of a recommendation: the last step that changed its value.
const (
	Estimated       Reason = "Estimated"
	RaisedByStartup Reason = "RaisedByStartup"
	RaisedByOOM     Reason = "RaisedByOOM"
	FlooredByPolicy Reason = "FlooredByPolicy"
	CappedByPolicy  Reason = "CappedByPolicy"
	CappedByNode    Reason = "CappedByNode"
	LoweredToLimit  Reason = "LoweredToLimit"
)

// The reasons of a profile's condition Sufficient.
const (
	EnoughHistory    Reason = "EnoughHistory"
	NoSamples        Reason = "NoSamples"
	NotEnoughSamples Reason = "NotEnoughSamples"
	NotEnoughTime    Reason = "NotEnoughTime"
	TooVariable      Reason = "TooVariable"
)
