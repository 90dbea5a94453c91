package api

import (
	"net/http"

	"github.com/quittance/quittance/protocol"
)

// Code names a problem. The list is closed and append-only.
type Code string

// The problem codes.
const (
	CodeBadRequest        Code = "bad_request"        // malformed path, query, header or body; Field names it
	CodeTooLarge          Code = "too_large"          // over the route's byte ceiling
	CodeLengthRequired    Code = "length_required"    // a body without Content-Length
	CodeUnsupportedType   Code = "unsupported_type"   // Content-Type or Content-Encoding
	CodeVersionRequired   Code = "version_required"   // no Quittance-API-Version
	CodeUnknownVersion    Code = "unknown_version"    // Versions lists those known
	CodeNotFound          Code = "not_found"          // no such route, job, upload or attempt for this caller
	CodeMethodNotAllowed  Code = "method_not_allowed" // the route exists for other methods
	CodeUnauthenticated   Code = "unauthenticated"    // no or unknown token
	CodeForbidden         Code = "forbidden"          // the token's role does not allow it
	CodeUnsigned          Code = "unsigned"           // no RFC 9421 signature of the required form
	CodeBadSignature      Code = "bad_signature"      // the signature or digest does not match
	CodeUnknownKey        Code = "unknown_key"        // keyid is not registered
	CodeClockSkew         Code = "clock_skew"         // clocks more than 5 minutes apart; Date is the service's
	CodeIdentityInUse     Code = "identity_in_use"    // another attempt store holds the provider identity
	CodeOtherStore        Code = "other_store"        // not the announced attempt store
	CodeHelloRequired     Code = "hello_required"     // this provider never announced itself
	CodeKeyConflict       Code = "key_conflict"       // the attempt key is known with another request
	CodeJobNotOpen        Code = "job_not_open"       // closed or ended
	CodeJobBusy           Code = "job_busy"           // another attempt is in progress
	CodeAttemptLimit      Code = "attempt_limit"      // the job has no attempt left
	CodeProviderLimit     Code = "provider_limit"     // this provider has as many attempts as lanes
	CodeKindMismatch      Code = "kind_mismatch"      // the job has another kind, or the provider does not offer it
	CodeInputMismatch     Code = "input_mismatch"     // the job's input is another
	CodeAttemptOver       Code = "attempt_over"       // the attempt has ended
	CodePhaseBack         Code = "phase_back"         // a phase never goes back
	CodeProgressConflict  Code = "progress_conflict"  // the same seq with other content
	CodeOppositeOutcome   Code = "opposite_outcome"   // the attempt ended the other way
	CodeOutcomeConflict   Code = "outcome_conflict"   // it ended the same way with other bytes
	CodeAttemptExpired    Code = "attempt_expired"    // another attempt was admitted after the lease lapsed
	CodeReceiptConflict   Code = "receipt_conflict"   // another leaf under a known index
	CodeReceiptBounds     Code = "receipt_bounds"     // too many receipts for one attempt
	CodeIdempotencyNeeded Code = "idempotency_needed" // no Idempotency-Key
	CodeIdempotencyReuse  Code = "idempotency_reuse"  // the key is known with another payload
	CodeAmbiguousIntent   Code = "ambiguous_intent"   // several twins: name the key or say new_intent
	CodeUnknownKind       Code = "unknown_kind"       // no provider announced it
	CodeInvalidInput      Code = "invalid_input"      // the offering's rules refuse the input
	CodeUploadMissing     Code = "upload_missing"     // absent, expired, or used by another job
	CodeDigestMismatch    Code = "digest_mismatch"    // bytes differ from the declared length or digest
	CodeNotRetryable      Code = "not_retryable"      // the job's state allows no retry
	CodeNoResult          Code = "no_result"          // the job has no result (yet)
	CodeGrantInvalid      Code = "grant_invalid"      // unknown, expired or for another upload
	CodeLimitReached      Code = "limit_reached"      // a bound of the workspace
	CodeNoSpace           Code = "no_space"           // the service's disk is full
	CodeTimeout           Code = "timeout"            // the request did not arrive whole in time
	CodeInternal          Code = "internal"           // our fault; the journal has the cause
	CodeUnavailable       Code = "unavailable"        // stopping, or the database failed; the effect may have happened
)

// Codes lists every problem code, in the order of their introduction.
func Codes() []Code {
	return []Code{
		CodeBadRequest, CodeTooLarge, CodeLengthRequired, CodeUnsupportedType, CodeVersionRequired,
		CodeUnknownVersion, CodeNotFound, CodeMethodNotAllowed, CodeUnauthenticated, CodeForbidden,
		CodeUnsigned, CodeBadSignature, CodeUnknownKey, CodeClockSkew, CodeIdentityInUse, CodeOtherStore,
		CodeHelloRequired, CodeKeyConflict, CodeJobNotOpen, CodeJobBusy, CodeAttemptLimit,
		CodeProviderLimit, CodeKindMismatch, CodeInputMismatch, CodeAttemptOver, CodePhaseBack,
		CodeProgressConflict, CodeOppositeOutcome, CodeOutcomeConflict, CodeAttemptExpired,
		CodeReceiptConflict, CodeReceiptBounds, CodeIdempotencyNeeded, CodeIdempotencyReuse,
		CodeAmbiguousIntent, CodeUnknownKind, CodeInvalidInput, CodeUploadMissing, CodeDigestMismatch,
		CodeNotRetryable, CodeNoResult, CodeGrantInvalid, CodeLimitReached, CodeNoSpace, CodeTimeout,
		CodeInternal, CodeUnavailable,
	}
}

// Effect says whether a refused request changed anything (I11).
type Effect string

// The effects of a problem.
const (
	EffectNone    Effect = "none"
	EffectUnknown Effect = "unknown" // may have happened: repeat the same request, or read
)

// Problem is an RFC 9457 problem. Members that do not concern the code are left
// out.
type Problem struct {
	Type   string `json:"type"` // "about:blank": the code identifies it
	Title  string `json:"title"`
	Status int    `json:"status"`
	Code   Code   `json:"code"`
	Effect Effect `json:"effect"`
	Detail string `json:"detail"` // what was refused and why, never a secret or input (I37)
	Next   string `json:"next"`   // what to do

	Field       string              `json:"field,omitempty"`
	Versions    []int               `json:"versions,omitempty"`
	ServiceTime *protocol.Timestamp `json:"service_time,omitempty"` // with clock_skew
	Store       *protocol.ID        `json:"store,omitempty"`        // with identity_in_use: who holds it
}

// Error makes a problem an error; the text is for logs.
func (p *Problem) Error() string { return string(p.Code) + ": " + p.Detail }

// NewProblem is a problem with the code's status and usual effect.
func NewProblem(code Code, detail, next string) *Problem {
	status := code.Status()
	effect := EffectNone
	if code == CodeInternal || code == CodeUnavailable {
		effect = EffectUnknown
	}
	return &Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Code: code, Effect: effect, Detail: detail, Next: next,
	}
}

// Status is the HTTP status that goes with the code.
func (c Code) Status() int {
	switch c {
	case CodeBadRequest, CodeVersionRequired, CodeIdempotencyNeeded, CodeDigestMismatch:
		return http.StatusBadRequest
	case CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case CodeLengthRequired:
		return http.StatusLengthRequired
	case CodeUnsupportedType:
		return http.StatusUnsupportedMediaType
	case CodeUnknownVersion:
		return http.StatusNotAcceptable
	case CodeNotFound, CodeNoResult:
		return http.StatusNotFound
	case CodeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case CodeUnauthenticated, CodeUnsigned, CodeBadSignature, CodeUnknownKey, CodeClockSkew, CodeGrantInvalid:
		return http.StatusUnauthorized
	case CodeForbidden:
		return http.StatusForbidden
	case CodeUnknownKind, CodeInvalidInput:
		return http.StatusUnprocessableEntity
	case CodeLimitReached:
		return http.StatusTooManyRequests
	case CodeNoSpace:
		return http.StatusInsufficientStorage
	case CodeTimeout:
		return http.StatusRequestTimeout
	case CodeInternal:
		return http.StatusInternalServerError
	case CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusConflict
}

// Condition says what an attempt, or a job without one, waits for. The list is
// closed and append-only.
type Condition string

// The conditions.
const (
	ConditionWaitingForCapacity Condition = "waiting_for_capacity"
	ConditionWaitingForDevice   Condition = "waiting_for_device"
	ConditionStartingWorker     Condition = "starting_worker"
	ConditionLoadingModel       Condition = "loading_model"
	ConditionFetchingInput      Condition = "fetching_input"
	ConditionServiceUnreachable Condition = "service_unreachable"
	ConditionStopping           Condition = "stopping"
)

// Text is fixed text for people: what it means and what to do.
type Text struct {
	Message string
	Next    string
}

var conditionTexts = map[Condition]Text{
	ConditionWaitingForCapacity: {"No node has a free slot for this kind of job.", "Wait; the job starts when a slot is free."},
	ConditionWaitingForDevice:   {"No node has a free device for this kind of job.", "Wait; the job starts when a device is free."},
	ConditionStartingWorker:     {"The worker's container is being started.", "Wait; this usually takes seconds."},
	ConditionLoadingModel:       {"The worker has started and is not ready yet.", "Wait; the profile's ready rule bounds this."},
	ConditionFetchingInput:      {"The node is fetching the job's input.", "Wait; large uploads take longer."},
	ConditionServiceUnreachable: {"The node could not reach its worker or the job service for a while.", "Wait; ask the operator if it stays."},
	ConditionStopping:           {"The worker is being stopped.", "Wait; the outcome follows once it has ended."},
}

// Text is the condition's message and next action; ok is false for a code that
// this version does not have.
func (c Condition) Text() (text Text, ok bool) {
	text, ok = conditionTexts[c]
	return text, ok
}

// Conditions lists every condition.
func Conditions() []Condition {
	return []Condition{
		ConditionWaitingForCapacity, ConditionWaitingForDevice, ConditionStartingWorker,
		ConditionLoadingModel, ConditionFetchingInput, ConditionServiceUnreachable, ConditionStopping,
	}
}

// FailureCode says why an attempt failed. The list is closed and append-only.
type FailureCode string

// The failure codes.
const (
	FailInvalidInput   FailureCode = "invalid_input"   // the job's fault, before execution
	FailWorkerFailed   FailureCode = "worker_failed"   // the worker said so after execution began
	FailWorkerTimeout  FailureCode = "worker_timeout"  // our own deadline
	FailWorkerLost     FailureCode = "worker_lost"     // the connection broke
	FailWorkerOOM      FailureCode = "worker_oom"      // lost or failed, and the host's receipt says killed
	FailProtocol       FailureCode = "protocol"        // malformed reply of the worker
	FailUnavailable    FailureCode = "unavailable"     // the worker never became ready
	FailCancelled      FailureCode = "cancelled"       // a person or cancel_after stopped it
	FailInterrupted    FailureCode = "interrupted"     // the controller stopped or was restarted
	FailInputCalls     FailureCode = "input_calls"     // the job's limit on input calls
	FailSelectionTime  FailureCode = "selection_time"  // the job's limit on selection
	FailWorkTime       FailureCode = "work_time"       // the job's limit on work
	FailUploadBytes    FailureCode = "upload_bytes"    // the job's limit on bytes fetched
	FailUploadRequests FailureCode = "upload_requests" // the job's limit on fetches
)

var failureTexts = map[FailureCode]Text{
	FailInvalidInput:   {"The input does not fit what this kind of job takes.", "Correct the input and submit a new job."},
	FailWorkerFailed:   {"The worker reported a failure.", "Read the message; retry if the cause has gone."},
	FailWorkerTimeout:  {"The worker did not answer within the offering's time.", "Retry, or ask the operator for a longer timeout."},
	FailWorkerLost:     {"The worker ended or broke its connection before it answered.", "Retry; ask the operator if it happens again."},
	FailWorkerOOM:      {"The kernel killed the worker for memory.", "Use a smaller input, or ask the operator for a profile with more memory."},
	FailProtocol:       {"The worker answered in a form that its offering does not allow.", "Ask the operator to check the worker's image."},
	FailUnavailable:    {"The worker did not become ready in time.", "Retry later; ask the operator if it stays."},
	FailCancelled:      {"The job was cancelled while it ran.", "Submit it again if it is still wanted."},
	FailInterrupted:    {"The node stopped the attempt for reasons of its own.", "Retry; nothing was published."},
	FailInputCalls:     {"The attempt read its input more often than the limit allows.", "Ask the operator; this limit protects the service."},
	FailSelectionTime:  {"The attempt did not settle on its input within the limit.", "Do not change uploads while a job runs; retry."},
	FailWorkTime:       {"The attempt worked longer than the limit allows.", "Use a smaller input, or ask the operator for a higher limit."},
	FailUploadBytes:    {"The attempt fetched more bytes than the limit allows.", "Use smaller uploads, or ask the operator for a higher limit."},
	FailUploadRequests: {"The attempt fetched uploads more often than the limit allows.", "Retry; ask the operator if it happens again."},
}

// Text is the failure's message and next action; ok is false for a code that
// this version does not have.
func (c FailureCode) Text() (text Text, ok bool) {
	text, ok = failureTexts[c]
	return text, ok
}

// FailureCodes lists every failure code.
func FailureCodes() []FailureCode {
	return []FailureCode{
		FailInvalidInput, FailWorkerFailed, FailWorkerTimeout, FailWorkerLost, FailWorkerOOM, FailProtocol,
		FailUnavailable, FailCancelled, FailInterrupted, FailInputCalls, FailSelectionTime, FailWorkTime,
		FailUploadBytes, FailUploadRequests,
	}
}

// Reopens reports whether a FAIL that did not enter execution leaves the job
// open and the attempt uncounted.
func (c FailureCode) Reopens() bool { return c == FailInterrupted || c == FailUnavailable }
