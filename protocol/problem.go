package protocol

import "net/http"

// Disposition says what is known of an effect (I11).
type Disposition string

// The dispositions.
const (
	Refused Disposition = "refused" // no effect
	Done    Disposition = "done"    // durable
	Unknown Disposition = "unknown" // may have happened: read again before anything else
)

// Code names a problem. The list is closed and append-only.
type Code string

// The problem codes.
const (
	CodeBadRequest         Code = "bad_request"         // malformed path, query, header or body; Field names it
	CodeBadNumber          Code = "bad_number"          // not a plain decimal from 1 to 2⁵³−1
	CodeTooLarge           Code = "too_large"           // over a byte ceiling
	CodeVersionRequired    Code = "version_required"    // a method other than GET without Quittance-Version
	CodeUnknownVersion     Code = "unknown_version"     // Versions lists those known
	CodeNotFound           Code = "not_found"           // no such route or allocation
	CodeMethodNotAllowed   Code = "method_not_allowed"  // the route exists for other methods
	CodeForbidden          Code = "forbidden"           // the peer's uid may not do this
	CodeOwnerRequired      Code = "owner_required"      // a controller's request without Quittance-Owner
	CodeOtherOwner         Code = "other_owner"         // the generation obeys another owner
	CodeOtherGeneration    Code = "other_generation"    // Generation is ours
	CodeNumberConflict     Code = "number_conflict"     // the number is known with another owner, purpose or profile
	CodeSequenceGap        Code = "sequence_gap"        // Expected is the next acceptable number
	CodeReleased           Code = "released"            // pruned history
	CodeExhausted          Code = "exhausted"           // 2⁵³−1 was accepted
	CodeWitnessRequired    Code = "witness_required"    // PUT witness first
	CodeLedgerBehind       Code = "ledger_behind"       // somebody has seen more than the ledger holds
	CodeCapacity           Code = "capacity"            // max_slots reached
	CodeBudget             Code = "budget"              // the node's memory budget does not allow it now
	CodeDeviceUnavailable  Code = "device_unavailable"  // no free device, or it failed its preflight
	CodeDraining           Code = "draining"            // an operator drains the node
	CodeEngineUnavailable  Code = "engine_unavailable"  // containerd is down or does not answer
	CodeProfileUnknown     Code = "profile_unknown"     // no profile of that name
	CodeProfileUnavailable Code = "profile_unavailable" // listed, with its reason
	CodeProfileChanged     Code = "profile_changed"     // the digest is not the current one
	CodeHistoryFull        Code = "history_full"        // max_unreleased reached: release history first
	CodeNoSpace            Code = "no_space"            // the state directory's disk is full
	CodeNotRetired         Code = "not_retired"         // consumption before retirement
	CodeOtherReceipt       Code = "other_receipt"       // consumption names another receipt
	CodeNotConsumed        Code = "not_consumed"        // Blocker is the first number that stops the release
	CodeNotStuck           Code = "not_stuck"           // except names an allocation that is not stuck
	CodeBusy               Code = "busy"                // another release is under way
	CodePruned             Code = "pruned"              // FirstIndex is the oldest that can be served
	CodeNotConnectable     Code = "not_connectable"     // the worker does not listen yet
	CodeExited             Code = "exited"              // the worker's process has ended
	CodeRetiring           Code = "retiring"            // retirement has begun
	CodeChannelLimit       Code = "channel_limit"       // max_channels handed out
	CodeTooManyConnections Code = "too_many_connections"
	CodeTimeout            Code = "timeout"     // the request did not arrive whole in time
	CodeInternal           Code = "internal"    // our fault; the journal has the cause
	CodeUnavailable        Code = "unavailable" // the agent is stopping or its ledger failed; the effect may have happened
)

// Problem is an RFC 9457 problem with what a client needs to go on. Members
// that do not concern the code are left out.
type Problem struct {
	Type        string      `json:"type"` // "about:blank": the code identifies it
	Title       string      `json:"title"`
	Status      int         `json:"status"`
	Code        Code        `json:"code"`
	Disposition Disposition `json:"disposition"`
	Detail      string      `json:"detail"` // what happened, to what
	Next        string      `json:"next"`   // what to do

	Field            string  `json:"field,omitempty"`
	Versions         []int   `json:"versions,omitempty"`
	Generation       ID      `json:"generation,omitempty"`
	Expected         Number  `json:"expected,omitempty"`
	Blocker          Number  `json:"blocker,omitempty"`
	FirstIndex       *Index  `json:"first_index,omitempty"`
	Head             *Index  `json:"head,omitempty"`
	Frontier         *Number `json:"frontier,omitempty"`
	RetryAfterMillis int64   `json:"retry_after_ms,omitempty"`
}

// Error makes a problem an error; the text is for logs.
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// NewProblem is a refusal with the code's usual status. Callers set the facts.
func NewProblem(code Code, detail, next string) *Problem {
	status := statusOf(code)
	disposition := Refused
	if code == CodeInternal || code == CodeUnavailable {
		disposition = Unknown
	}
	return &Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: code, Disposition: disposition, Detail: detail, Next: next,
	}
}

func statusOf(code Code) int {
	switch code {
	case CodeBadRequest, CodeBadNumber, CodeVersionRequired, CodeOwnerRequired:
		return http.StatusBadRequest
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeUnknownVersion:
		return http.StatusNotAcceptable
	case CodeNotFound:
		return http.StatusNotFound
	case CodeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case CodeForbidden, CodeOtherOwner:
		return http.StatusForbidden
	case CodeReleased, CodePruned:
		return http.StatusGone
	case CodeEngineUnavailable, CodeNoSpace, CodeUnavailable, CodeNotConnectable:
		return http.StatusServiceUnavailable
	case CodeTooManyConnections:
		return http.StatusTooManyRequests
	case CodeTimeout:
		return http.StatusRequestTimeout
	case CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusConflict
}
