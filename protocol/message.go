package protocol

import "github.com/go-json-experiment/json/jsontext"

// Headers and media types of the private socket.
const (
	HeaderVersion    = "Quittance-Version" // the protocol version that a request speaks
	HeaderOwner      = "Quittance-Owner"   // the attempt store's id, on every controller request
	ContentJSON      = "application/json"
	ContentProblem   = "application/problem+json"
	ContentReceipts  = "application/x-ndjson"
	ContentProof     = "text/plain; charset=utf-8"
	UpgradeToChannel = "quittance-channel" // the Upgrade token of a channel hand-over
)

// Ceilings in bytes and counts that both ends enforce (I33).
const (
	MaxHeaderBytes        = 32 << 10
	MaxBodyBytes          = 64 << 10  // a request's body
	MaxAnswerBytes        = 4 << 20   // an answer's body, receipts aside
	MaxReceiptsPage       = 1000      // receipts in one answer
	MaxNoteBytes          = 512       // the note of a retirement
	MaxErrorBytes         = 1024      // an agent's message inside a receipt
	MaxLogCapture         = 256 << 10 // bytes of head and tail kept per allocation
	MaxConnectionsPerUID  = 64
	MaxWaitSeconds        = 60
	RequestTimeoutSeconds = 10
)

// State is an allocation's state; they are passed in this order, some skipped.
type State string

// The states. stuck is a mark beside retiring and exited, not a state.
const (
	StateAccepted State = "accepted"
	StateCreating State = "creating"
	StateStarted  State = "started"
	StateRetiring State = "retiring"
	StateExited   State = "exited"
	StateRetired  State = "retired"
	StateConsumed State = "consumed"
	StateReleased State = "released"
)

// Host answers GET host.
type Host struct {
	Generation      ID         `json:"generation"`
	HostKey         string     `json:"host_key"`
	Versions        Versions   `json:"versions"`
	BootID          ID         `json:"boot_id"`
	Engine          Engine     `json:"engine"`
	CgroupMode      CgroupMode `json:"cgroup_mode"`
	Frontiers       Frontiers  `json:"frontiers"`
	Index           IndexRange `json:"index"`
	Checkpoint      string     `json:"checkpoint"` // signed note of package tlog
	Slots           Slots      `json:"slots"`
	Devices         []Device   `json:"devices"` // that could be granted, held ones included; once for each name
	Draining        bool       `json:"draining"`
	Owner           *ID        `json:"owner"`            // null until the first allocation binds one
	OwnerHeard      *Timestamp `json:"owner_heard"`      // last request with the owner's id
	WitnessRequired bool       `json:"witness_required"` // until the owner presented one since this start
	Time            Timestamp  `json:"time"`
}

// Engine is the state of containerd as the agent sees it.
type Engine struct {
	Available bool   `json:"available"`
	Version   string `json:"version"`
	Detail    string `json:"detail"` // why it is unavailable
}

// Frontiers are the highest accepted and the highest released number.
type Frontiers struct {
	Accepted Number `json:"accepted"`
	Released Number `json:"released"`
}

// IndexRange is the receipts that can be served: First … Head, both inclusive.
type IndexRange struct {
	First Index `json:"first"`
	Head  Index `json:"head"`
}

// Slots counts allocations against the bounds.
type Slots struct {
	Max           int `json:"max"` // unconsumed allocations at once
	Used          int `json:"used"`
	Stuck         int `json:"stuck"`
	MaxUnreleased int `json:"max_unreleased"` // consumed, not yet released
	Unreleased    int `json:"unreleased"`
}

// ProfileList answers GET profiles.
type ProfileList struct {
	Profiles []ProfileInfo `json:"profiles"`
}

// ProfileInfo is what a controller may know of a profile.
type ProfileInfo struct {
	Name             string    `json:"name"`
	Digest           Digest    `json:"digest"` // "" where the file could not be read
	Available        bool      `json:"available"`
	Reason           string    `json:"reason"` // why it is unavailable, with the remedy
	ImageDigest      Digest    `json:"image_digest"`
	Ready            ReadyRule `json:"ready"`
	Limits           Limits    `json:"limits"`
	Devices          []string  `json:"devices"` // CDI kinds, repeated per count
	LeaseMillis      int64     `json:"lease_ms"`
	StopGraceMillis  int64     `json:"stop_grace_ms"`
	MaxLifetimeMilli int64     `json:"max_lifetime_ms"`
	MaxChannels      int       `json:"max_channels"`
	Spares           int       `json:"spares"`
}

// ReadyRule is applied by the controller over a channel. Connect means that a
// connect is enough; then the HTTP members are empty.
type ReadyRule struct {
	Connect        bool   `json:"connect"`
	HTTP           string `json:"http"`         // path of a GET
	Status         int    `json:"status"`       // the status that means ready
	JSONPointer    string `json:"json_pointer"` // "" or the member that must equal JSONValue
	JSONValue      string `json:"json_value"`
	TimeoutMillis  int64  `json:"timeout_ms"`
	IntervalMillis int64  `json:"interval_ms"`
}

// Allocation is the agent's current view of one number.
type Allocation struct {
	Number        Number         `json:"number"`
	State         State          `json:"state"`
	Stuck         *StuckBody     `json:"stuck"` // null unless stuck now
	Owner         ID             `json:"owner"`
	Purpose       string         `json:"purpose"`
	Profile       *string        `json:"profile"` // null for a burn
	ProfileDigest *Digest        `json:"profile_digest"`
	Limits        *Limits        `json:"limits"`
	Devices       []Device       `json:"devices"`
	Container     *Container     `json:"container"`
	Reason        *Reason        `json:"reason"` // once retirement is decided
	Exit          *Exit          `json:"exit"`
	OOM           *OOM           `json:"oom"`   // while it lives: read anew; then as in exited
	Peaks         *Peaks         `json:"peaks"` // likewise
	ReadAt        *Timestamp     `json:"read_at"`
	LogSink       *LogSinkState  `json:"log_sink"`
	Channels      int            `json:"channels"` // handed out since the agent started
	Step          string         `json:"step"`     // what its worker does now, for people
	StepError     string         `json:"step_error"`
	Receipts      []ReceiptEntry `json:"receipts"`
}

// ReceiptEntry points to one receipt of an allocation.
type ReceiptEntry struct {
	Index    Index     `json:"index"`
	Kind     Kind      `json:"kind"`
	LeafHash Digest    `json:"leaf_hash"`
	At       Timestamp `json:"at"`
}

// AllocationList answers GET allocations.
type AllocationList struct {
	Allocations []Allocation `json:"allocations"`
}

// AllocateRequest is the body of PUT allocations/{n}.
type AllocateRequest struct {
	Profile       string `json:"profile"`
	ProfileDigest Digest `json:"profile_digest"`
	Purpose       string `json:"purpose"`
}

// Validate implements [Validator].
func (r *AllocateRequest) Validate() error {
	if !ValidProfileName(r.Profile) {
		return &DecodeError{"/profile", "must be " + ProfileNamePattern}
	}
	if !r.ProfileDigest.Valid() {
		return &DecodeError{"/profile_digest", "must be sha256: and 64 lower-case hexadecimal digits"}
	}
	return purposeError(r.Purpose)
}

func purposeError(s string) error {
	if err := CheckPurpose(s); err != nil {
		return &DecodeError{"/purpose", "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -"}
	}
	return nil
}

// EffectAnswer answers an effect on an allocation: the receipt that records it
// and the current state.
type EffectAnswer struct {
	Disposition Disposition    `json:"disposition"`
	Receipt     jsontext.Value `json:"receipt"`   // the leaf's exact bytes; null where none is written yet (202)
	LeafHash    *Digest        `json:"leaf_hash"` // of that leaf
	Allocation  Allocation     `json:"allocation"`
}

// RetireRequest is the body of PUT allocations/{n}/retirement.
type RetireRequest struct {
	Purpose string `json:"purpose"`
	Note    string `json:"note"`
}

// Validate implements [Validator].
func (r *RetireRequest) Validate() error {
	if len(r.Note) > MaxNoteBytes {
		return &DecodeError{"/note", "is longer than 512 bytes"}
	}
	return purposeError(r.Purpose)
}

// ConsumeRequest is the body of PUT allocations/{n}/consumption.
type ConsumeRequest struct {
	Purpose  string `json:"purpose"`
	LeafHash Digest `json:"leaf_hash"` // of the retired receipt
}

// Validate implements [Validator].
func (r *ConsumeRequest) Validate() error {
	if !r.LeafHash.Valid() {
		return &DecodeError{"/leaf_hash", "must be sha256: and 64 lower-case hexadecimal digits"}
	}
	return purposeError(r.Purpose)
}

// ChannelRequest is the body of POST allocations/{n}/channel.
type ChannelRequest struct {
	Purpose string `json:"purpose"`
}

// Validate implements [Validator].
func (r *ChannelRequest) Validate() error { return purposeError(r.Purpose) }

// ReleaseRequest is the body of PUT release.
type ReleaseRequest struct {
	Frontier Number   `json:"frontier"`
	Except   []Number `json:"except"` // ascending
}

// Validate implements [Validator].
func (r *ReleaseRequest) Validate() error {
	if !r.Frontier.Valid() {
		return &DecodeError{"/frontier", ErrNumber.Error()}
	}
	for i, n := range r.Except {
		if !n.Valid() || n > r.Frontier || (i > 0 && n <= r.Except[i-1]) {
			return &DecodeError{"/except", "must be ascending numbers up to the frontier"}
		}
	}
	return nil
}

// ReleaseAnswer answers PUT release.
type ReleaseAnswer struct {
	Disposition Disposition    `json:"disposition"`
	Frontier    Number         `json:"frontier"` // released frontier now
	Carried     []Number       `json:"carried"`
	Receipt     jsontext.Value `json:"receipt"` // null where a lower frontier changed nothing
}

// Seen is the highest receipt that a witness holds.
type Seen struct {
	Index    Index  `json:"index"`
	LeafHash Digest `json:"leaf_hash"`
}

// WitnessRequest is the body of PUT witness. A store that holds nothing yet
// presents nulls.
type WitnessRequest struct {
	Checkpoint *string `json:"checkpoint"`
	Highest    *Seen   `json:"highest"`
}

// Validate implements [Validator].
func (r *WitnessRequest) Validate() error {
	if r.Highest != nil && (r.Highest.Index < 0 || !r.Highest.LeafHash.Valid()) {
		return &DecodeError{"/highest", "must be an index from 0 and a SHA-256 leaf hash"}
	}
	return nil
}

// WitnessAnswer proves that the log now extends the checkpoint presented.
type WitnessAnswer struct {
	Disposition Disposition `json:"disposition"`
	Checkpoint  string      `json:"checkpoint"`  // signed, now
	Consistency []string    `json:"consistency"` // base64 hashes, RFC 6962; [] from nothing or from the same size
}

// ConsistencyAnswer answers GET consistency?from=SIZE.
type ConsistencyAnswer struct {
	From        int64    `json:"from"`
	Checkpoint  string   `json:"checkpoint"`
	Consistency []string `json:"consistency"`
}

// DrainAnswer answers PUT and DELETE drain.
type DrainAnswer struct {
	Disposition Disposition    `json:"disposition"`
	Draining    bool           `json:"draining"`
	Active      int            `json:"active"` // allocations not yet retired
	Receipt     jsontext.Value `json:"receipt"`
}

// OwnerRequest is the body of PUT owner.
type OwnerRequest struct {
	Owner ID `json:"owner"`
}

// Validate implements [Validator].
func (r *OwnerRequest) Validate() error {
	if !r.Owner.Valid() {
		return &DecodeError{"/owner", "must be 32 lower-case hexadecimal digits"}
	}
	return nil
}

// OwnerAnswer answers PUT owner.
type OwnerAnswer struct {
	Disposition Disposition    `json:"disposition"`
	Owner       ID             `json:"owner"`
	Receipt     jsontext.Value `json:"receipt"` // null where the owner was this one already
}

// Log answers GET allocations/{n}/log: what the log sink captured,
// uninterpreted bytes in standard base64.
type Log struct {
	Number       Number `json:"number"`
	Head         []byte `json:"head"`
	Tail         []byte `json:"tail"`
	DroppedBytes int64  `json:"dropped_bytes"` // between head and tail
	TotalBytes   int64  `json:"total_bytes"`
}

// Health answers GET /healthz.
type Health struct {
	Status string `json:"status"` // "ok"; it confers nothing (I3)
}
