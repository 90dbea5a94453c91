package attempt

import "github.com/quittance/quittance/protocol"

// Event is something that happened to an attempt; see the package comment's
// table for where each is allowed.
type Event interface{ event() string }

// StartSending precedes a send of START and records when its signature
// expires: until the service's date is later, an unanswered send may still
// take effect.
type StartSending struct{ Expires protocol.Timestamp }

// Admitted is a START answer that shows the attempt in progress.
type Admitted struct{ Admission Admission }

// Over is a START refused without effect, or a reading that shows the attempt
// over before any terminal request of ours. Admission is given where a START
// replay was answered with an attempt that is already over.
type Over struct {
	Reason    EndReason
	Admission *Admission // only from StartPending
	Reply     Reply
	At        protocol.Timestamp
}

// Allocated is the intent to ask the host for a number.
type Allocated struct {
	Generation    protocol.ID
	Number        protocol.Number
	Profile       string
	ProfileDigest protocol.Digest
}

// Unallocated says that the number asked for last was refused, with no
// earlier request for it left unknown.
type Unallocated struct {
	Generation protocol.ID
	Number     protocol.Number
}

// Prepared identifies what the last execution will run.
type Prepared struct{ Preparation Preparation }

// Entered is written before the worker is asked to execute.
type Entered struct{ At protocol.Timestamp }

// ExecutionFailed ends the last execution with its class, which is kept even
// where a replacement succeeds.
type ExecutionFailed struct{ Class string }

// OutcomeChosen fixes the outcome for ever.
type OutcomeChosen struct {
	Outcome Outcome
	At      protocol.Timestamp
}

// CandidateSuppressed keeps an outcome that came when the attempt was over.
type CandidateSuppressed struct {
	Candidate Candidate
	Evidence  []byte
	Why       EndReason
	Reply     Reply
	At        protocol.Timestamp
}

// Confirmed is a receipt that matches the retained request exactly.
type Confirmed struct {
	Receipt Reply
	At      protocol.Timestamp
}

// Held is a terminal request refused for good.
type Held struct {
	Reason   HoldReason
	Evidence Reply
	At       protocol.Timestamp
}

// Resolved is an operator's decision about a hold.
type Resolved struct{ Resolution Resolution }

// Settled says what became of one allocation.
type Settled struct {
	Generation protocol.ID
	Number     protocol.Number
	Settlement Settlement
}

// ReceiptsSaved keeps the signed receipts of one allocation, replacing those
// saved before, of which it must contain every index.
type ReceiptsSaved struct {
	Generation protocol.ID
	Number     protocol.Number
	HostKey    string // verifier key of the host's receipt log
	Receipts   []SavedReceipt
}

// ReceiptsAnswered is how the service took the receipts.
type ReceiptsAnswered struct{ Answer ReceiptsAnswer }

// Noted adds a fact.
type Noted struct{ Fact Fact }

func (StartSending) event() string        { return "StartSending" }
func (Admitted) event() string            { return "Admitted" }
func (Over) event() string                { return "Over" }
func (Allocated) event() string           { return "Allocated" }
func (Unallocated) event() string         { return "Unallocated" }
func (Prepared) event() string            { return "Prepared" }
func (Entered) event() string             { return "Entered" }
func (ExecutionFailed) event() string     { return "ExecutionFailed" }
func (OutcomeChosen) event() string       { return "OutcomeChosen" }
func (CandidateSuppressed) event() string { return "CandidateSuppressed" }
func (Confirmed) event() string           { return "Confirmed" }
func (Held) event() string                { return "Held" }
func (Resolved) event() string            { return "Resolved" }
func (Settled) event() string             { return "Settled" }
func (ReceiptsSaved) event() string       { return "ReceiptsSaved" }
func (ReceiptsAnswered) event() string    { return "ReceiptsAnswered" }
func (Noted) event() string               { return "Noted" }
