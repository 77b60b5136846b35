package resize

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// maxRecord bounds the text that ParseRecord reads, in bytes.
const maxRecord = 16 << 10

// Record is a pod's last resize as annotation plimsoll.dev/resize holds it.
type Record struct {
	// At is when the change was sent.
	At time.Time `json:"at"`
	// By is the replica that sent it.
	By string `json:"by,omitempty"`
	// State is how far it has come.
	State State `json:"state"`
	// Since is when it came to that state.
	Since time.Time `json:"since"`
	// Reason is why it is in that state.
	Reason Reason `json:"reason,omitempty"`
	// Message explains the reason.
	Message string `json:"message,omitempty"`
	// Changes that were made, oldest value and newest.
	Changes []RecordedChange `json:"changes,omitempty"`
	// Failures in a row, of any kind; they set how long the pod is held.
	Failures int `json:"failures,omitempty"`
	// HeldUntil is when the pod may be resized again; zero when it is not held.
	HeldUntil time.Time `json:"heldUntil,omitzero"`
	// Refused is the pod's generation for which the kubelet called a resize infeasible.
	Refused int64 `json:"refused,omitempty"`
	// Restarts of the pod's containers that are no sign of harm.
	Restarts int32 `json:"restarts,omitempty"`
	// OOMKills of the pod's containers when the change was sent, if they were known.
	OOMKills *int64 `json:"oomKills,omitempty"`
	// Ready is whether the pod was ready when the change was sent, and has to stay so.
	Ready bool `json:"ready,omitempty"`
}

// RecordedChange is one field of a Record: quantities as text, From empty when
// it was unset.
type RecordedChange struct {
	Container string `json:"c"`
	Field     string `json:"f"` // "cpu request", "memory limit" and so on
	From      string `json:"from,omitempty"`
	To        string `json:"to"`
	Reason    Reason `json:"why,omitempty"`
}

// State is how far a resize has come.
type State string

// The states of a resize.
const (
	// StateRequested: the API server accepted it, the kubelet has not acted yet.
	StateRequested State = "Requested"
	// StateResized: the kubelet actuated it; the pod is watched for a while.
	StateResized State = "Resized"
	// StateWithdrawn: the kubelet could not make room, and the change was taken back.
	StateWithdrawn State = "Withdrawn"
	// StateReverted: the kubelet called it infeasible, and it was taken back.
	StateReverted State = "Reverted"
	// StateRolledBack: the pod did badly, and the change was taken back.
	StateRolledBack State = "RolledBack"
	// StateLeft: somebody else owns the fields, and nothing was sent.
	StateLeft State = "LeftAlone"
	// StateDryRun: the changes would have been made.
	StateDryRun State = "DryRun"
)

// ParseRecord reads annotation plimsoll.dev/resize; an empty text is no record.
func ParseRecord(text string) (Record, error) {
	var r Record
	if text == "" {
		return r, nil
	}
	if len(text) > maxRecord {
		return r, fmt.Errorf("annotation plimsoll.dev/resize has %d bytes: remove it", len(text))
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, fmt.Errorf("parsing annotation plimsoll.dev/resize (remove it): %w", err)
	}
	return r, nil
}

// String returns the record as compact JSON.
func (r Record) String() string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil { // every field is plain data
		return ""
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
