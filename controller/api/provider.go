package api

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/quittance/quittance/protocol"
)

// Hello is a provider's complete current announcement; it replaces the one
// before. Where Seq is not above the last one accepted, the answer repeats what
// stands and nothing is changed.
type Hello struct {
	Store     protocol.ID     `json:"store"` // random id made with the attempt store
	Seq       int64           `json:"seq"`   // 1 … 2⁵³−1, the highest wins
	Versions  HelloVersions   `json:"versions"`
	Lanes     int             `json:"lanes"` // 1 … 256
	Draining  bool            `json:"draining"`
	Host      *HelloHost      `json:"host"` // null while the host cannot be reached
	Offerings []HelloOffering `json:"offerings"`
}

// HelloVersions says what the provider is and speaks.
type HelloVersions struct {
	Controller string `json:"controller"` // the program's version, for people
	API        []int  `json:"api"`        // versions of this API, newest first
}

// HelloHost identifies the host agent behind a provider.
type HelloHost struct {
	Generation protocol.ID `json:"generation"`
	Key        string      `json:"key"`   // verifier key of the receipt log; announced, not trusted by itself
	Agent      string      `json:"agent"` // the agent's version, for people
}

// InputSource says where an offering takes the worker's input from.
type InputSource string

// The input sources.
const (
	InputFromJob    InputSource = "job"    // the job's input bytes
	InputFromUpload InputSource = "upload" // the job's one upload
)

// HelloOffering announces one job kind.
type HelloOffering struct {
	Kind          string          `json:"kind"`
	Profile       string          `json:"profile"`
	ProfileDigest protocol.Digest `json:"profile_digest"` // "" while it is unavailable
	Adapter       string          `json:"adapter"`
	Available     bool            `json:"available"`
	Reason        string          `json:"reason"` // why it is unavailable, for people
	Input         HelloInput      `json:"input"`
	Pure          bool            `json:"pure"`
}

// HelloInput says what input an offering takes.
type HelloInput struct {
	From        InputSource    `json:"from"`
	ContentType string         `json:"content_type"`
	MaxBytes    int64          `json:"max_bytes"`
	Schema      jsontext.Value `json:"schema"` // JSON Schema 2020-12 of the input, or null
}

// HelloAnswer acknowledges an announcement.
type HelloAnswer struct {
	Provider     string             `json:"provider"`
	Store        protocol.ID        `json:"store"`
	Seq          int64              `json:"seq"` // of the announcement that stands
	ObservedAt   protocol.Timestamp `json:"observed_at"`
	LeaseMillis  int64              `json:"lease_ms"`     // of an attempt, renewed by each heartbeat
	HelloTTL     int64              `json:"hello_ttl_ms"` // how long the store holds the identity after its last hello
	ServiceTime  protocol.Timestamp `json:"service_time"`
	LiveAttempts int64              `json:"live_attempts"` // in progress under this provider
}

// Identity identifies bytes: a job's input or a result.
type Identity struct {
	Schema string          `json:"schema"`
	Length int64           `json:"length"`
	SHA256 protocol.Digest `json:"sha256"`
}

// Feed is one page of open jobs. Kind, Attempted and Limit repeat the request;
// a client refuses another answer.
type Feed struct {
	Kind       string    `json:"kind"`
	Attempted  bool      `json:"attempted"`
	Limit      int       `json:"limit"`
	Jobs       []FeedJob `json:"jobs"`
	NextCursor *string   `json:"next_cursor"` // opaque; null on the last page
}

// FeedJob is an open job with an attempt left.
type FeedJob struct {
	Job         string             `json:"job"`
	Kind        string             `json:"kind"`
	Input       Identity           `json:"input"`
	Uploads     int                `json:"uploads"`
	UploadBytes int64              `json:"upload_bytes"`
	Created     protocol.Timestamp `json:"created"`
}

// Input is a job's exact input bytes.
type Input struct {
	Job     string             `json:"job"`
	Schema  string             `json:"schema"`
	Length  int64              `json:"length"`
	SHA256  protocol.Digest    `json:"sha256"`
	Data    Bytes              `json:"data"`
	Created protocol.Timestamp `json:"created"`
}

// Uploads is the full ordered membership of a job's uploads, at most
// [MaxUploads].
type Uploads struct {
	Job     string         `json:"job"`
	Uploads []UploadMember `json:"uploads"`
}

// UploadMember is one upload of a job.
type UploadMember struct {
	Upload      string             `json:"upload"`
	ContentType string             `json:"content_type"`
	Length      int64              `json:"length"`
	SHA256      protocol.Digest    `json:"sha256"`
	Created     protocol.Timestamp `json:"created"`
}

// GrantRequest asks for a read grant. The attempt is in progress, of this
// provider and of the upload's job.
type GrantRequest struct {
	Attempt string `json:"attempt"`
}

// Grant lets its bearer read one upload until it expires. The bearer goes into
// the Authorization header of a GET of URL and nowhere else (I37).
type Grant struct {
	Upload  string             `json:"upload"`
	URL     string             `json:"url"`
	Bearer  string             `json:"bearer"`
	Expires protocol.Timestamp `json:"expires"`
	Length  int64              `json:"length"`
	SHA256  protocol.Digest    `json:"sha256"`
}

// Start asks for an attempt at a job. Key is the provider attempt key, used
// once for ever; the same key with the same bytes is a replay.
type Start struct {
	Key   string      `json:"key"` // [protocol.CheckPurpose]
	Job   string      `json:"job"`
	Kind  string      `json:"kind"`
	Store protocol.ID `json:"store"`
	Lane  int         `json:"lane"` // 0 …
	Input Identity    `json:"input"`
}

// Admission answers a start. Attempt and job state are those of now, so that a
// replay after the end says so.
type Admission struct {
	Attempt     string             `json:"attempt"`
	Key         string             `json:"key"`
	Job         string             `json:"job"`
	State       AttemptState       `json:"state"`
	JobState    JobState           `json:"job_state"`
	Admitted    protocol.Timestamp `json:"admitted"`
	LeaseMillis int64              `json:"lease_ms"`
	Replayed    bool               `json:"replayed"`
}

// Attempt is a provider's view of one of its attempts; it never holds terminal
// bytes, and reading it is never a confirmation (I29).
type Attempt struct {
	Attempt      string              `json:"attempt"`
	Key          string              `json:"key"`
	Job          string              `json:"job"`
	Kind         string              `json:"kind"`
	State        AttemptState        `json:"state"`
	JobState     JobState            `json:"job_state"`
	Quiet        bool                `json:"quiet"` // in progress with a lapsed lease
	Admitted     protocol.Timestamp  `json:"admitted"`
	LeaseExpires protocol.Timestamp  `json:"lease_expires"`
	Ended        *protocol.Timestamp `json:"ended"`
	ObservedAt   protocol.Timestamp  `json:"observed_at"` // when this was read, by the database's clock
}

// Inventory is one page of a provider's attempts: a live walk, not a snapshot.
type Inventory struct {
	State      AttemptState `json:"state"`
	Limit      int          `json:"limit"`
	Attempts   []Attempt    `json:"attempts"`
	NextCursor *string      `json:"next_cursor"`
}

// Phase is how far an attempt is.
type Phase string

// The phases. Either may be first; a phase never goes back.
const (
	PhasePreparing Phase = "preparing"
	PhaseRunning   Phase = "running"
)

// Progress is one heartbeat; it renews the attempt's lease.
type Progress struct {
	Store     protocol.ID `json:"store"`
	Seq       int64       `json:"seq"` // 1 … 2⁵³−1, the highest wins
	Phase     Phase       `json:"phase"`
	Condition *Condition  `json:"condition"`
}

// ProgressAnswer is the heartbeat that stands: the request's, or the one with a
// higher Seq. An equal Seq gets the original ObservedAt, also after the end.
type ProgressAnswer struct {
	Attempt     string             `json:"attempt"`
	Seq         int64              `json:"seq"`
	Phase       Phase              `json:"phase"`
	Condition   *Condition         `json:"condition"`
	ObservedAt  protocol.Timestamp `json:"observed_at"`
	LeaseMillis int64              `json:"lease_ms"`
}

// Complete ends an attempt with a result: the exact bytes and their identity.
type Complete struct {
	Attempt    string          `json:"attempt"`
	Schema     string          `json:"schema"`
	Length     int64           `json:"length"`
	SHA256     protocol.Digest `json:"sha256"`
	Data       Bytes           `json:"data"`
	Provenance Provenance      `json:"provenance"`
}

// CompleteReceipt confirms a COMPLETE. Attempt, Schema, Length and SHA256 are
// compared with the retained request exactly (I29).
type CompleteReceipt struct {
	Attempt     string             `json:"attempt"`
	Schema      string             `json:"schema"`
	Length      int64              `json:"length"`
	SHA256      protocol.Digest    `json:"sha256"`
	CommittedAt protocol.Timestamp `json:"committed_at"`
	Replayed    bool               `json:"replayed"`
}

// Fail ends an attempt without a result.
type Fail struct {
	Attempt    string      `json:"attempt"`
	Code       FailureCode `json:"code"`
	Message    string      `json:"message"` // at most [MaxMessageScalars]; never normalised
	Next       string      `json:"next"`    // what the submitter may do; at most [MaxMessageScalars]
	Entered    bool        `json:"entered"` // execution entry was written: the work may have run
	Provenance *Provenance `json:"provenance"`
}

// FailReceipt confirms a FAIL. Attempt, Code and Message are compared with the
// retained request exactly (I29).
type FailReceipt struct {
	Attempt     string             `json:"attempt"`
	Code        FailureCode        `json:"code"`
	Message     string             `json:"message"`
	CommittedAt protocol.Timestamp `json:"committed_at"`
	Reopened    bool               `json:"reopened"` // the job is open again, the attempt not counted
	Replayed    bool               `json:"replayed"`
}

// Provenance says what produced an outcome. Everything but Claimed is the
// controller's own knowledge and the host's facts.
type Provenance struct {
	Controller     string           `json:"controller"` // version
	Agent          string           `json:"agent"`      // host agent's version
	Adapter        string           `json:"adapter"`
	InputSHA256    *protocol.Digest `json:"input_sha256"`    // of the bytes given to the adapter
	RequestSHA256  *protocol.Digest `json:"request_sha256"`  // of the bytes sent to the worker
	ResponseSHA256 *protocol.Digest `json:"response_sha256"` // of the bytes that the worker answered
	Executions     []Execution      `json:"executions"`      // 0 … [MaxExecutions], in order
	Claimed        []Claim          `json:"claimed"`         // the worker's own word
}

// Execution is one allocation of an attempt and its facts.
type Execution struct {
	Generation    protocol.ID      `json:"generation"`
	Number        protocol.Number  `json:"number"`
	Profile       string           `json:"profile"`
	ProfileDigest protocol.Digest  `json:"profile_digest"`
	ImageDigest   *protocol.Digest `json:"image_digest"`
	SpecDigest    *protocol.Digest `json:"spec_digest"`
	Entered       bool             `json:"entered"`
	Limits        *protocol.Limits `json:"limits"`
	Exit          *protocol.Exit   `json:"exit"`
	OOM           *protocol.OOM    `json:"oom"`
	Peaks         *protocol.Peaks  `json:"peaks"`
}

// Claim is one thing that a worker says of itself, for example its model.
type Claim struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// HostReceipts attaches signed host receipts to an attempt, before or after its
// end. Repeating one is a no-op; another leaf under a known index is refused.
type HostReceipts struct {
	Attempt  string        `json:"attempt"`
	Key      string        `json:"key"` // the host's verifier key, as announced
	Receipts []HostReceipt `json:"receipts"`
}

// HostReceipt is one leaf with its inclusion proof.
type HostReceipt struct {
	Leaf  Bytes  `json:"leaf"`  // canonical bytes as received from the host
	Proof string `json:"proof"` // tlog-proof text
}

// HostReceiptsAnswer counts what the attempt now has.
type HostReceiptsAnswer struct {
	Attempt  string `json:"attempt"`
	Added    int    `json:"added"`
	Total    int    `json:"total"`
	Verified int    `json:"verified"` // of Total: proved under a registered host key
}
