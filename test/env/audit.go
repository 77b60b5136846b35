package env

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// AuditEvent is one answered request in the API server's audit log.
type AuditEvent struct {
	Verb      string // create, update, patch, delete, get, list, watch, deletecollection
	UserAgent string
	User      struct {
		Username string
	}
	ObjectRef struct {
		APIGroup, Resource, Subresource, Namespace, Name string
	}
	ResponseStatus struct {
		Code int
	}
}

const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
	"omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}]}`

func (a *API) auditLog() string { return filepath.Join(a.dir, "audit.log") }

func (a *API) configureAudit(flags *envtest.Arguments) error {
	policy := filepath.Join(a.dir, "audit-policy.json")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	flags.Set("audit-policy-file", policy).
		Set("audit-log-path", a.auditLog()).
		// Written before the answer is sent, so that a client that has it
		// finds its request in the log.
		Set("audit-log-mode", "blocking-strict")
	return nil
}

// Audited returns the requests that match, oldest first, of a control plane
// started with Options.Audit; a watch appears when it ends.
func (a *API) Audited(match func(AuditEvent) bool) []AuditEvent {
	a.t.Helper()
	if !a.opts.Audit {
		a.t.Fatalf("reading the audit log: start the control plane with Options.Audit")
	}
	f, err := os.Open(a.auditLog())
	if err != nil {
		a.t.Fatalf("reading the audit log: %v", err)
	}
	defer f.Close()
	var events []AuditEvent
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e AuditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// The last line may be half written.
			break
		}
		if match(e) {
			events = append(events, e)
		}
	}
	if err := lines.Err(); err != nil {
		a.t.Fatalf("reading the audit log: %v", err)
	}
	return events
}
