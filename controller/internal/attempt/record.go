package attempt

import "github.com/quittance/quittance/protocol"

// State names the state of a record.
type State string

// The states.
const (
	StateStartPending      State = "start_pending"
	StateAcknowledged      State = "acknowledged"
	StateTerminalPending   State = "terminal_pending"
	StateTerminalConfirmed State = "terminal_confirmed"
	StateTerminalHeld      State = "terminal_held"
	StateSuppressed        State = "suppressed"
	StateEnded             State = "ended"
)

// Record is one of [StartPending], [Acknowledged], [TerminalPending],
// [TerminalConfirmed], [TerminalHeld], [Suppressed] and [Ended], always by
// value. Records are immutable: Step returns a new one and shares the parts
// that did not change, so nobody may write into a record's slices.
type Record interface {
	State() State
	parts() parts
}

// Scope is the identity under which a store's attempts are made. Records of
// different scopes are never mixed.
type Scope struct {
	APIOrigin  string `json:"api_origin"` // scheme, host and port of the job service
	Provider   string `json:"provider"`   // this node's own provider identity
	Consumer   string `json:"consumer"`   // the program that acts for it
	Generation string `json:"generation"` // from the configuration, changed by hand only
}

// Input identifies a job's input bytes.
type Input struct {
	Schema string          `json:"schema"`
	Length int64           `json:"length"` // bytes
	SHA256 protocol.Digest `json:"sha256"`
}

// Origin is what is known before the first send; it never changes.
type Origin struct {
	Scope         Scope              `json:"scope"`
	Lane          int                `json:"lane"` // from 0
	Key           string             `json:"key"`  // provider attempt key, and the purpose of its allocations
	Job           string             `json:"job"`
	Kind          string             `json:"kind"`
	Input         Input              `json:"input"`
	MaxExecutions int                `json:"max_executions"` // 2 only where the offering is pure (I27)
	Start         []byte             `json:"start"`          // the exact START body (I26)
	Created       protocol.Timestamp `json:"created"`
}

// Reply is an answer of the job service that a decision rests on.
type Reply struct {
	Status    int    `json:"status"`     // HTTP status
	RequestID string `json:"request_id"` // the service's, or ""
	Body      []byte `json:"body"`       // exact
}

// Admission is the START answer that admitted the attempt.
type Admission struct {
	Reference string `json:"reference"` // the service's identity of the attempt
	Reply     Reply  `json:"reply"`     // exactly as received
}

// Settlement says what became of an allocation.
type Settlement string

// The settlements.
const (
	SettlementOpen           Settlement = "open"            // not yet consumed
	SettlementConsumed       Settlement = "consumed"        // its consumed receipt was read
	SettlementStuck          Settlement = "stuck"           // its stuck receipt was read: the host owner's obligation (I19)
	SettlementGenerationGone Settlement = "generation_gone" // its host generation was abandoned, containers verified gone
)

// Settled reports whether the allocation is no obligation of the attempt.
func (s Settlement) Settled() bool { return s != SettlementOpen && s != "" }

// Execution is one allocation made for the attempt and how far it came.
type Execution struct {
	Generation    protocol.ID         `json:"generation"` // the host generation in which Number counts
	Number        protocol.Number     `json:"number"`
	Profile       string              `json:"profile"`
	ProfileDigest protocol.Digest     `json:"profile_digest"`
	Settlement    Settlement          `json:"settlement"`
	Preparation   *Preparation        `json:"preparation"` // null until prepared
	Entered       *protocol.Timestamp `json:"entered"`     // null until execution entry is durable (I27)
	Failure       string              `json:"failure"`     // failure class, "" while it has not failed
	HostKey       string              `json:"host_key"`    // verifier key of the receipts, "" while none are saved
	Receipts      []SavedReceipt      `json:"receipts"`    // ascending by index
}

// Preparation identifies what a prepared execution will run.
type Preparation struct {
	PreparedSHA256 protocol.Digest `json:"prepared_sha256"` // of the prepared request bytes
	ImageDigest    protocol.Digest `json:"image_digest"`
	SpecDigest     protocol.Digest `json:"spec_digest"`
}

// SavedReceipt is one signed host receipt kept for the job service.
type SavedReceipt struct {
	Index protocol.Index `json:"index"`
	Leaf  []byte         `json:"leaf"`  // canonical receipt bytes
	Proof []byte         `json:"proof"` // tlog-proof with its checkpoint
}

// Operation is a terminal request.
type Operation string

// The operations.
const (
	OperationComplete Operation = "complete"
	OperationFail     Operation = "fail"
)

// Outcome is the one chosen outcome of an attempt (I28).
type Outcome struct {
	Operation Operation  `json:"operation"`
	Body      []byte     `json:"body"`      // the exact request body (I26)
	Evidence  []byte     `json:"evidence"`  // protected: never sent, 1 … MaxEvidenceBytes
	Candidate *Candidate `json:"candidate"` // only beside FAIL: a result that may not be published
}

// Candidate is a returned outcome that may not be published; it is kept and
// never sent (I28).
type Candidate struct {
	Operation Operation `json:"operation"`
	Body      []byte    `json:"body"`
}

// Fact is something that was learned beside the main line: a later failure, a
// late answer. It changes nothing (I14).
type Fact struct {
	Name string             `json:"name"`
	Text string             `json:"text"` // our own words, no secret
	At   protocol.Timestamp `json:"at"`
}

// Facts are the first MaxFacts facts and the count of those left out.
type Facts struct {
	Kept    []Fact `json:"kept"`
	Dropped int64  `json:"dropped"`
}

// ReceiptsAnswer is how the job service took the signed host receipts.
type ReceiptsAnswer struct {
	Attached bool  `json:"attached"` // false: refused for good
	Reply    Reply `json:"reply"`
}

// StartPending is a record whose START may or may not have been sent.
type StartPending struct {
	Origin       Origin              `json:"origin"`
	LatestExpiry *protocol.Timestamp `json:"latest_expiry"` // latest signature expiry of any send; null before the first
	Facts        Facts               `json:"facts"`
}

// Acknowledged is an admitted attempt.
type Acknowledged struct {
	Origin     Origin      `json:"origin"`
	Admission  Admission   `json:"admission"`
	Executions []Execution `json:"executions"` // at most MaxExecutions
	Facts      Facts       `json:"facts"`
}

// TerminalPending is an attempt whose outcome is chosen and not yet confirmed.
type TerminalPending struct {
	Origin     Origin             `json:"origin"`
	Admission  Admission          `json:"admission"`
	Executions []Execution        `json:"executions"`
	Outcome    Outcome            `json:"outcome"`
	Chosen     protocol.Timestamp `json:"chosen"`
	Facts      Facts              `json:"facts"`
}

// TerminalConfirmed is an attempt whose receipt matched the retained request.
type TerminalConfirmed struct {
	Origin     Origin             `json:"origin"`
	Admission  Admission          `json:"admission"`
	Executions []Execution        `json:"executions"`
	Outcome    Outcome            `json:"outcome"`
	Receipt    Reply              `json:"receipt"` // the matching answer, exactly as received (I29)
	Confirmed  protocol.Timestamp `json:"confirmed"`
	Answer     *ReceiptsAnswer    `json:"answer"`
	Facts      Facts              `json:"facts"`
}

// HoldReason says why a terminal request was refused for good.
type HoldReason string

// The hold reasons.
const (
	HoldExpired         HoldReason = "expired"          // another attempt was admitted, or the job ended
	HoldOppositeOutcome HoldReason = "opposite_outcome" // the other terminal operation is recorded
	HoldMismatch        HoldReason = "mismatch"         // other bytes are recorded
	HoldNotVisible      HoldReason = "not_visible"      // the service does not know the attempt
)

// HoldsLane reports whether a person must look before the lane goes on:
// somebody else acted under our identity.
func (h HoldReason) HoldsLane() bool { return h == HoldOppositeOutcome || h == HoldMismatch }

// TerminalHeld is an attempt whose terminal request was refused for good.
type TerminalHeld struct {
	Origin     Origin             `json:"origin"`
	Admission  Admission          `json:"admission"`
	Executions []Execution        `json:"executions"`
	Outcome    Outcome            `json:"outcome"`
	Reason     HoldReason         `json:"reason"`
	Evidence   Reply              `json:"evidence"` // the refusal
	HeldAt     protocol.Timestamp `json:"held_at"`
	Resolution *Resolution        `json:"resolution"` // null until a person resolved it
	Answer     *ReceiptsAnswer    `json:"answer"`
	Facts      Facts              `json:"facts"`
}

// Resolution is an operator's word that a hold was looked at. It frees the
// lane and sends nothing.
type Resolution struct {
	UID  int64              `json:"uid"` // of the operator
	Note string             `json:"note"`
	At   protocol.Timestamp `json:"at"`
}

// Suppressed is an attempt that was over when its outcome came.
type Suppressed struct {
	Origin     Origin             `json:"origin"`
	Admission  Admission          `json:"admission"`
	Executions []Execution        `json:"executions"`
	Candidate  Candidate          `json:"candidate"`
	Evidence   []byte             `json:"evidence"` // protected, 1 … MaxEvidenceBytes
	Why        EndReason          `json:"why"`
	Reply      Reply              `json:"reply"` // that showed it
	At         protocol.Timestamp `json:"at"`
	Answer     *ReceiptsAnswer    `json:"answer"`
	Facts      Facts              `json:"facts"`
}

// EndReason says why an attempt ended without a terminal request of ours.
type EndReason string

// The end reasons.
const (
	EndStartRefused EndReason = "start_refused" // START refused without effect
	EndCompleted    EndReason = "completed"     // the attempt is completed, not by us
	EndFailed       EndReason = "failed"        // the attempt is failed, not by us
	EndExpired      EndReason = "expired"       // another attempt was admitted
	EndCancelled    EndReason = "cancelled"     // the job was cancelled
	EndJobOver      EndReason = "job_over"      // the job is in another final state
	EndNotVisible   EndReason = "not_visible"   // the service does not know the attempt
	EndOperator     EndReason = "operator"      // a person decided
)

// Ended is an attempt that is over and for which no terminal request of ours
// was ever sent.
type Ended struct {
	Origin     Origin             `json:"origin"`
	Admission  *Admission         `json:"admission"` // null where START was never acknowledged
	Executions []Execution        `json:"executions"`
	Reason     EndReason          `json:"reason"`
	Reply      Reply              `json:"reply"` // that showed it; status 0 where a person decided
	At         protocol.Timestamp `json:"at"`
	Answer     *ReceiptsAnswer    `json:"answer"`
	Facts      Facts              `json:"facts"`
}

// State implements [Record].
func (StartPending) State() State { return StateStartPending }

// State implements [Record].
func (Acknowledged) State() State { return StateAcknowledged }

// State implements [Record].
func (TerminalPending) State() State { return StateTerminalPending }

// State implements [Record].
func (TerminalConfirmed) State() State { return StateTerminalConfirmed }

// State implements [Record].
func (TerminalHeld) State() State { return StateTerminalHeld }

// State implements [Record].
func (Suppressed) State() State { return StateSuppressed }

// State implements [Record].
func (Ended) State() State { return StateEnded }

// parts are what readers ask of any record.
type parts struct {
	origin     Origin
	admission  *Admission
	executions []Execution
	answer     *ReceiptsAnswer
	facts      Facts
}

func (r StartPending) parts() parts { return parts{origin: r.Origin, facts: r.Facts} }
func (r Acknowledged) parts() parts {
	return parts{r.Origin, &r.Admission, r.Executions, nil, r.Facts}
}
func (r TerminalPending) parts() parts {
	return parts{r.Origin, &r.Admission, r.Executions, nil, r.Facts}
}
func (r TerminalConfirmed) parts() parts {
	return parts{r.Origin, &r.Admission, r.Executions, r.Answer, r.Facts}
}
func (r TerminalHeld) parts() parts {
	return parts{r.Origin, &r.Admission, r.Executions, r.Answer, r.Facts}
}
func (r Suppressed) parts() parts {
	return parts{r.Origin, &r.Admission, r.Executions, r.Answer, r.Facts}
}
func (r Ended) parts() parts {
	return parts{r.Origin, r.Admission, r.Executions, r.Answer, r.Facts}
}

// KeyPrefix begins the keys of all attempts at a job. The job's id is in the key
// because the key is the purpose of the attempt's allocations: one id is in every
// line and receipt from the job's creation to its release.
func KeyPrefix(job string) string { return "att." + job + "." }

// OriginOf is the record's origin.
func OriginOf(r Record) Origin { return r.parts().origin }

// AdmissionOf is the record's admission, if it was ever acknowledged.
func AdmissionOf(r Record) (Admission, bool) {
	if a := r.parts().admission; a != nil {
		return *a, true
	}
	return Admission{}, false
}

// ExecutionsOf are the record's executions, none for [StartPending].
func ExecutionsOf(r Record) []Execution { return r.parts().executions }

// FactsOf are the record's facts.
func FactsOf(r Record) Facts { return r.parts().facts }

// AnswerOf is how the service took the receipts, nil while it has not.
func AnswerOf(r Record) *ReceiptsAnswer { return r.parts().answer }

// WasEntered reports whether any execution was entered.
func WasEntered(r Record) bool {
	for _, e := range ExecutionsOf(r) {
		if e.Entered != nil {
			return true
		}
	}
	return false
}

// HoldsLane reports whether the record is unresolved: no other attempt may
// start in its lane, and it is never archived (I32).
func HoldsLane(r Record) bool {
	switch r := r.(type) {
	case StartPending, Acknowledged, TerminalPending:
		return true
	case TerminalHeld:
		return r.Reason.HoldsLane() && r.Resolution == nil
	}
	return false
}

// Archivable reports whether the record may leave the active set: it holds no
// lane, every allocation is settled, and the receipts of its allocations were
// attached or refused for good.
func Archivable(r Record) bool {
	if HoldsLane(r) || !HostSettled(r) {
		return false
	}
	return len(ExecutionsOf(r)) == 0 || AnswerOf(r) != nil
}

// HostSettled reports whether every allocation of the record is consumed, or
// stuck, or its generation gone.
func HostSettled(r Record) bool {
	for _, e := range ExecutionsOf(r) {
		if !e.Settlement.Settled() {
			return false
		}
	}
	return true
}

// PermitsRelease reports whether host history may be released past the
// record's allocations although it is not archived: it is held, its
// allocations are settled, and what was consumed has its receipts saved (I32).
func PermitsRelease(r Record) bool {
	if r.State() != StateTerminalHeld {
		return false
	}
	for _, e := range ExecutionsOf(r) {
		if !e.Settlement.Settled() || e.Settlement == SettlementConsumed && len(e.Receipts) == 0 {
			return false
		}
	}
	return true
}
