package api

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/protocol"
)

// JobState is a job's state.
type JobState string

// The job states; finished, failed, cancelled and expired absorb, a user's
// retry of a failed job excepted.
const (
	JobOpen      JobState = "open"      // also while an attempt runs
	JobClosed    JobState = "closed"    // no new attempt; a running one may finish
	JobFinished  JobState = "finished"  // has a result
	JobFailed    JobState = "failed"    // its last permitted attempt failed
	JobCancelled JobState = "cancelled" // stopped by a person or by cancel_after while an attempt ran
	JobExpired   JobState = "expired"   // cancel_after passed before any attempt started
)

// Terminal reports whether no attempt can change the state any more.
func (s JobState) Terminal() bool {
	switch s {
	case JobFinished, JobFailed, JobCancelled, JobExpired:
		return true
	}
	return false
}

// AttemptState is an attempt's state; all but in_progress are final.
type AttemptState string

// The attempt states.
const (
	AttemptInProgress AttemptState = "in_progress"
	AttemptCompleted  AttemptState = "completed"
	AttemptFailed     AttemptState = "failed"
	AttemptExpired    AttemptState = "expired" // another was admitted after its lease lapsed
)

// CreateJob asks for a job. The Idempotency-Key header names the operation.
type CreateJob struct {
	Kind          string      `json:"kind"`
	Input         *CreateData `json:"input,omitempty"`   // nothing: no bytes
	Uploads       []string    `json:"uploads,omitempty"` // in the order in which workers see them
	Labels        []Label     `json:"labels,omitempty"`
	Limits        *JobLimits  `json:"limits,omitempty"`
	CancelAfterMs *int64      `json:"cancel_after_ms,omitempty"`
	NewIntent     bool        `json:"new_intent,omitempty"` // a deliberate twin where retry_window would converge
}

// CreateData is the input in exactly one of three forms. Schema names the
// format of the bytes; left out it is text/plain, application/json or
// application/octet-stream.
type CreateData struct {
	Schema string         `json:"schema,omitempty"`
	Text   *string        `json:"text,omitempty"`   // the bytes are its UTF-8
	JSON   jsontext.Value `json:"json,omitempty"`   // the bytes are as written, outer spaces removed
	Base64 *Bytes         `json:"base64,omitempty"` // any bytes
}

// Label is a name with a value, for finding jobs again.
type Label struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// JobLimits bound a job.
type JobLimits struct {
	Attempts int `json:"attempts,omitempty"` // 1 … [MaxAttemptLimit]; 0: the service's default, 1
}

// CreateJobAnswer is the job that stands for the operation.
type CreateJobAnswer struct {
	IdempotentReplay bool `json:"idempotent_replay"` // created by an earlier call
	Job              Job  `json:"job"`
}

// Job is a job as its submitter sees it.
type Job struct {
	Job           string              `json:"job"`
	Kind          string              `json:"kind"`
	State         JobState            `json:"state"`
	Version       int64               `json:"version"` // index of its last event; grows with every visible change
	CreatedBy     string              `json:"created_by"`
	Created       protocol.Timestamp  `json:"created"`
	CancelAt      *protocol.Timestamp `json:"cancel_at"`
	Times         []StateTime         `json:"times"` // in order
	Labels        []Label             `json:"labels"`
	Input         Identity            `json:"input"`
	Uploads       []UploadMember      `json:"uploads"`
	AttemptLimit  int                 `json:"attempt_limit"`
	AttemptsUsed  int                 `json:"attempts_used"` // uncounted (reopened) ones left out
	Reopens       int                 `json:"reopens"`
	Attempts      []JobAttempt        `json:"attempts"`  // in order of admission
	Condition     *ConditionView      `json:"condition"` // of the running attempt, or why none runs
	Result        *ResultView         `json:"result"`
	Failure       *FailureView        `json:"failure"`
	OOM           *protocol.OOM       `json:"oom"` // of the last execution
	MemoryPeak    *int64              `json:"memory_peak_bytes"`
	MemoryLimit   *int64              `json:"memory_limit_bytes"`
	RunningSince  *protocol.Timestamp `json:"running_since"` // null unless an attempt is in progress
	ResultPruned  bool                `json:"result_pruned"`
	ServiceTime   protocol.Timestamp  `json:"service_time"`
	CancelPending bool                `json:"cancel_pending"` // cancelled while an attempt has not ended yet
}

// StateTime is when a job first entered a state, or entered it again.
type StateTime struct {
	State JobState           `json:"state"`
	At    protocol.Timestamp `json:"at"`
}

// JobAttempt is one attempt as the submitter sees it.
type JobAttempt struct {
	Attempt      string              `json:"attempt"`
	Provider     string              `json:"provider"`
	State        AttemptState        `json:"state"`
	Quiet        bool                `json:"quiet"`
	Counted      bool                `json:"counted"`
	Phase        *Phase              `json:"phase"`
	Condition    *ConditionView      `json:"condition"`
	Admitted     protocol.Timestamp  `json:"admitted"`
	LeaseExpires protocol.Timestamp  `json:"lease_expires"`
	LastHeard    *protocol.Timestamp `json:"last_heard"`
	Ended        *protocol.Timestamp `json:"ended"`
	Failure      *FailureView        `json:"failure"`
	Executions   []Execution         `json:"executions"`
	Receipts     ReceiptCount        `json:"receipts"`
}

// ReceiptCount counts attached host receipts by trust.
type ReceiptCount struct {
	Total    int `json:"total"`
	Verified int `json:"verified"`
}

// ConditionView is a condition with its fixed text.
type ConditionView struct {
	Code       Condition          `json:"code"`
	Message    string             `json:"message"`
	Next       string             `json:"next"`
	ObservedAt protocol.Timestamp `json:"observed_at"`
}

// FailureView is a failure with our fixed text beside the provider's.
type FailureView struct {
	Code    FailureCode `json:"code"`
	Text    string      `json:"text"`    // ours
	Next    string      `json:"next"`    // ours where the provider gave none
	Message string      `json:"message"` // the provider's, exactly as sent
	Entered bool        `json:"entered"`
}

// ResultView identifies a result.
type ResultView struct {
	Attempt     string             `json:"attempt"`
	Schema      string             `json:"schema"`
	Length      int64              `json:"length"`
	SHA256      protocol.Digest    `json:"sha256"`
	CommittedAt protocol.Timestamp `json:"committed_at"`
}

// JobList is one page of a workspace's jobs, newest first.
type JobList struct {
	Jobs       []Job   `json:"jobs"`
	NextCursor *string `json:"next_cursor"`
	Version    int64   `json:"version"` // of the workspace: pass it as after= with wait=
}

// Upload is an uploaded file.
type Upload struct {
	Upload      string              `json:"upload"`
	ContentType string              `json:"content_type"`
	Length      int64               `json:"length"`
	SHA256      protocol.Digest     `json:"sha256"`
	Created     protocol.Timestamp  `json:"created"`
	Expires     *protocol.Timestamp `json:"expires"` // null once a job uses it
	Job         *string             `json:"job"`
}

// EventType names what happened.
type EventType string

// The event types.
const (
	EventCreated   EventType = "created"
	EventStarted   EventType = "attempt_started"
	EventProgress  EventType = "progress" // phase or condition changed
	EventQuiet     EventType = "attempt_quiet"
	EventCompleted EventType = "attempt_completed"
	EventFailed    EventType = "attempt_failed"
	EventExpired   EventType = "attempt_expired"
	EventState     EventType = "state" // the job's state changed
	EventReceipts  EventType = "receipts"
	EventRetry     EventType = "retry"
	EventGone      EventType = "gone" // history up to First is gone; not stored
)

// Event is one entry of a job's history.
type Event struct {
	Index     int64              `json:"index"` // grows, contiguous within a job from 1
	Job       string             `json:"job"`
	At        protocol.Timestamp `json:"at"`
	Type      EventType          `json:"type"`
	State     JobState           `json:"state"` // the job's, after it
	Attempt   *string            `json:"attempt"`
	Phase     *Phase             `json:"phase"`
	Condition *Condition         `json:"condition"`
	Failure   *FailureCode       `json:"failure"`
	By        *string            `json:"by"` // principal, for what a person did
}

// EventsGone is the data of an [EventGone] event.
type EventsGone struct {
	First int64 `json:"first"` // the oldest index that can be served
	Head  int64 `json:"head"`
}

// Trust says how far a host receipt is proved.
type Trust string

// The trusts.
const (
	TrustVerified  Trust = "verified"  // proved under a host key that an operator registered
	TrustAnnounced Trust = "announced" // nobody registered the key
	TrustInvalid   Trust = "invalid"   // the proof fails under the very key that it came with
)

// JobReceipts lists the signed host receipts of a job.
type JobReceipts struct {
	Job      string       `json:"job"`
	Receipts []JobReceipt `json:"receipts"` // by attempt, then index
}

// JobReceipt is one host receipt, complete enough to verify elsewhere.
type JobReceipt struct {
	Attempt    string          `json:"attempt"`
	Generation protocol.ID     `json:"generation"`
	Index      protocol.Index  `json:"index"`
	Kind       protocol.Kind   `json:"kind"`
	Number     protocol.Number `json:"number"` // 0: concerns no allocation
	Key        string          `json:"key"`
	Trust      Trust           `json:"trust"`
	Leaf       Bytes           `json:"leaf"`
	Proof      string          `json:"proof"`
}

// JobProvenance is what produced each outcome of a job.
type JobProvenance struct {
	Job      string              `json:"job"`
	Kind     string              `json:"kind"`
	Input    Identity            `json:"input"`
	Result   *ResultView         `json:"result"`
	Attempts []AttemptProvenance `json:"attempts"`
}

// AttemptProvenance is one attempt's; Provenance is null until it ended, and
// where a failure came with none.
type AttemptProvenance struct {
	Attempt    string       `json:"attempt"`
	Provider   string       `json:"provider"`
	State      AttemptState `json:"state"`
	Executions int          `json:"executions"` // entered ones, also 0
	Provenance *Provenance  `json:"provenance"`
}

// Why is one plain paragraph of what happened to a job, with the evidence.
type Why struct {
	Job      string   `json:"job"`
	Text     string   `json:"text"`
	Evidence []string `json:"evidence"`
}

// Offerings lists the job kinds that providers announce now.
type Offerings struct {
	Offerings []Offering `json:"offerings"`
}

// Offering is one kind with where it is offered.
type Offering struct {
	Kind      string     `json:"kind"`
	Available bool       `json:"available"` // by at least one provider heard within hello_ttl
	Providers int        `json:"providers"`
	Reason    string     `json:"reason"`
	Input     HelloInput `json:"input"`
}
