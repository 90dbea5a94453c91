package protocol

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Version is the version of the private protocol that this package speaks.
const Version = 1

// MaxReceiptBytes bounds one receipt's canonical bytes.
const MaxReceiptBytes = 16 << 10

// Kind names a receipt kind. A reader keeps and shows kinds it does not know.
type Kind string

// The receipt kinds, one per durable step of the agent.
const (
	KindGenesis      Kind = "genesis"
	KindAgentStarted Kind = "agent_started"
	KindAccepted     Kind = "accepted"
	KindStarted      Kind = "started"
	KindOOMObserved  Kind = "oom_observed"
	KindExited       Kind = "exited"
	KindStuck        Kind = "stuck"
	KindUnstuck      Kind = "unstuck"
	KindRetired      Kind = "retired"
	KindConsumed     Kind = "consumed"
	KindReleased     Kind = "released"
	KindDrained      Kind = "drained"
	KindUndrained    Kind = "undrained"
	KindOwnerChanged Kind = "owner_changed"
)

// Kinds are the receipt kinds of this version, in the order of a life.
func Kinds() []Kind {
	return []Kind{
		KindGenesis, KindAgentStarted, KindAccepted, KindStarted, KindOOMObserved, KindExited, KindStuck, KindUnstuck,
		KindRetired, KindConsumed, KindReleased, KindDrained, KindUndrained, KindOwnerChanged,
	}
}

// Receipt is the decoded form of one leaf of the receipt log. The leaf's bytes
// are what is signed for and hashed; this form is for reading them.
type Receipt struct {
	V          int            `json:"v"`
	Generation ID             `json:"generation"`
	Index      Index          `json:"index"`
	Kind       Kind           `json:"kind"`
	Number     *Number        `json:"number"` // null for kinds that concern no allocation
	At         Timestamp      `json:"at"`     // wall clock, for people
	Body       jsontext.Value `json:"body"`
}

// EncodeReceipt makes the canonical bytes of a receipt, its leaf. number is
// zero for kinds that concern no allocation. body is one of the *Body types.
func EncodeReceipt(generation ID, index Index, kind Kind, number Number, at Timestamp, body any) []byte {
	r := Receipt{V: Version, Generation: generation, Index: index, Kind: kind, At: at, Body: AppendCanonical(nil, body)}
	if number != 0 {
		r.Number = &number
	}
	return AppendCanonical(nil, r)
}

// DecodeReceipt reads a leaf and refuses one that is not in canonical form,
// down to the body where its kind is known. A body of an unknown kind is kept
// as it is. Errors are *[DecodeError].
func DecodeReceipt(leaf []byte) (Receipt, error) {
	var r Receipt
	if err := DecodeStrict(leaf, MaxReceiptBytes, &r); err != nil {
		return Receipt{}, err
	}
	if r.V != Version {
		return Receipt{}, &DecodeError{"/v", fmt.Sprintf("is version %d; this program reads version %d", r.V, Version)}
	}
	if !r.Generation.Valid() || r.Index < 0 || (r.Number != nil && !r.Number.Valid()) {
		return Receipt{}, &DecodeError{"", "is not a receipt: generation, index or number is out of form"}
	}
	if body := newBody(r.Kind); body != nil {
		if err := decodeBody(r.Body, body); err != nil {
			return Receipt{}, err
		}
	}
	if !bytes.Equal(AppendCanonical(nil, r), leaf) {
		return Receipt{}, &DecodeError{"", "is not in canonical form"}
	}
	return r, nil
}

func decodeBody(raw jsontext.Value, body any) error {
	if err := json.Unmarshal(raw, body, strictOptions); err != nil {
		e := decodeError(err)
		e.Field = "/body" + e.Field
		return e
	}
	if !bytes.Equal(AppendCanonical(nil, body), raw) {
		return &DecodeError{"/body", "is not in canonical form"}
	}
	return nil
}

// BodyOf decodes a receipt's body as its kind's type, for example
// BodyOf[RetiredBody](r). The caller has checked the kind.
func BodyOf[T any](r Receipt) (T, error) {
	var body T
	err := decodeBody(r.Body, &body)
	return body, err
}

func newBody(k Kind) any {
	switch k {
	case KindGenesis:
		return new(GenesisBody)
	case KindAgentStarted:
		return new(AgentStartedBody)
	case KindAccepted:
		return new(AcceptedBody)
	case KindStarted:
		return new(StartedBody)
	case KindOOMObserved:
		return new(OOMObservedBody)
	case KindExited:
		return new(ExitedBody)
	case KindStuck:
		return new(StuckBody)
	case KindUnstuck:
		return new(UnstuckBody)
	case KindRetired:
		return new(RetiredBody)
	case KindConsumed:
		return new(ConsumedBody)
	case KindReleased:
		return new(ReleasedBody)
	case KindDrained, KindUndrained:
		return new(DrainBody)
	case KindOwnerChanged:
		return new(OwnerChangedBody)
	}
	return nil
}

// Versions says what an agent is and speaks.
type Versions struct {
	Agent    string `json:"agent"`    // the program's version, for people
	Protocol []int  `json:"protocol"` // versions of this protocol, newest first
}

// GenesisBody opens a generation.
type GenesisBody struct {
	HostKey   string             `json:"host_key"` // verifier key of package tlog
	BootID    ID                 `json:"boot_id"`
	Versions  Versions           `json:"versions"`
	Abandoned *AbandonedPrevious `json:"abandoned"` // null unless an older generation was abandoned
}

// AbandonedPrevious names the generation that this one replaces, all of whose
// containers were stopped and verified gone. Index and LeafHash are of its last
// receipt, null where its ledger was gone or could not be read. Also are the
// other generations of this node of which nothing is left either: that of a
// state directory that was made in between, and those whose containers were
// ended with them; at most [MaxAlsoAbandoned], the latest first.
type AbandonedPrevious struct {
	Generation ID      `json:"generation"`
	Index      *Index  `json:"index"`
	LeafHash   *Digest `json:"leaf_hash"`
	Also       []ID    `json:"also"`
}

// MaxAlsoAbandoned bounds what one genesis names.
const MaxAlsoAbandoned = 64

// Names reports whether a generation is one of those that are gone.
func (a *AbandonedPrevious) Names(generation ID) bool {
	return a != nil && (a.Generation == generation || slices.Contains(a.Also, generation))
}

// AgentStartedBody marks each start of the agent.
type AgentStartedBody struct {
	BootID   ID       `json:"boot_id"`
	Versions Versions `json:"versions"`
}

// Limits are the resources that an allocation was accepted with.
type Limits struct {
	MemoryBytes int64 `json:"memory_bytes"`
	SwapBytes   int64 `json:"swap_bytes"`
	CPUMillis   int64 `json:"cpu_millis"` // thousandths of a core; 0: no limit
	PIDs        int64 `json:"pids"`
}

// AcceptedBody is the durable promise of one number and the intent to create.
// A burn (a number retired without ever being dispatched) has null Nonce,
// Profile, ProfileDigest and Limits, so a late request for a profile under the
// same number never matches it.
type AcceptedBody struct {
	Owner         ID       `json:"owner"`
	Purpose       string   `json:"purpose"`
	Nonce         *ID      `json:"nonce"`
	Profile       *string  `json:"profile"`
	ProfileDigest *Digest  `json:"profile_digest"`
	ImageDigest   *Digest  `json:"image_digest"`
	Limits        *Limits  `json:"limits"`
	Devices       []Device `json:"devices"`
	CDIDigest     *Digest  `json:"cdi_digest"`
}

// Device is one name of one CDI device. A device that has several names is
// listed once for each, with the same nodes; the first is the one injected.
type Device struct {
	Name  string   `json:"name"`  // fully qualified CDI name
	Nodes []string `json:"nodes"` // the paths of its own device nodes, its identity
}

// DistinctDevices leaves one entry of each device: that of its first name.
func DistinctDevices(all []Device) []Device {
	distinct := []Device{}
	for _, d := range all {
		if !slices.ContainsFunc(distinct, func(o Device) bool { return slices.Equal(o.Nodes, d.Nodes) }) {
			distinct = append(distinct, d)
		}
	}
	return distinct
}

// CDIDigest is the cdi_digest of an acceptance whose devices are defined by
// spec files with these digests: the file's where there is one, so that it can
// be compared with sha256sum, else that of all of them in ascending order, each
// once and on a line of its own.
func CDIDigest(specs []Digest) Digest {
	specs = slices.Compact(slices.Sorted(slices.Values(specs)))
	if len(specs) == 1 {
		return specs[0]
	}
	var lines []byte
	for _, d := range specs {
		lines = append(append(lines, d...), '\n')
	}
	return DigestOf(lines)
}

// Container identifies exactly one container of ours.
type Container struct {
	ID            string    `json:"id"` // "q-" and the nonce
	Nonce         ID        `json:"nonce"`
	Created       Timestamp `json:"created"` // as the engine recorded it
	ImageDigest   Digest    `json:"image_digest"`
	SpecDigest    Digest    `json:"spec_digest"`
	Profile       string    `json:"profile"`
	ProfileDigest Digest    `json:"profile_digest"`
}

// CgroupMode says which cgroup version holds the memory controller.
type CgroupMode string

// The cgroup modes.
const (
	CgroupV1 CgroupMode = "v1"
	CgroupV2 CgroupMode = "v2"
)

// StartedBody records the started process and where its counters are.
type StartedBody struct {
	Container  Container  `json:"container"`
	PID        int64      `json:"pid"`
	StartTicks int64      `json:"start_ticks"` // field 22 of /proc/PID/stat: with the boot id it proves the process
	BootID     ID         `json:"boot_id"`
	Cgroup     CgroupRef  `json:"cgroup"`
	Baseline   Counters   `json:"baseline"`
	Durations  CreateTook `json:"durations"`
}

// CgroupRef names the allocation's own cgroup so that a later reader can tell
// whether the counters there are still its own.
type CgroupRef struct {
	Mode  CgroupMode `json:"mode"`
	Path  string     `json:"path"`  // below the memory controller's mount
	Inode int64      `json:"inode"` // of that directory; another inode later means the counters are not ours
}

// CreateTook are durations on the boot-time clock.
type CreateTook struct {
	CreateMillis int64 `json:"create_ms"`
	StartMillis  int64 `json:"start_ms"`
}

// Counters are the kernel's raw counts, each null where the kernel has none.
type Counters struct {
	OOM          *int64 `json:"oom"`
	OOMKill      *int64 `json:"oom_kill"`
	OOMGroupKill *int64 `json:"oom_group_kill"`
	Max          *int64 `json:"max"`
	FailCnt      *int64 `json:"failcnt"`
}

// Peaks are the highest values that the kernel recorded, each null where it
// has no such counter.
type Peaks struct {
	MemoryBytes *int64 `json:"memory_bytes"`
	PIDs        *int64 `json:"pids"`
	CPUMicros   *int64 `json:"cpu_usec"`
}

// OOMObservedBody is written while the container lives. The first eight are
// each recorded; then a minute lies before the next, and twice as long before each
// further one, which has the count of those left out.
type OOMObservedBody struct {
	Counters   Counters `json:"counters"`
	Suppressed int64    `json:"suppressed"`
}

// ExitSource says who saw the exit.
type ExitSource string

// The sources of an exit. A status that the engine made up is never given
// source engine: it is recorded from the pidfd, with code unknown (I23).
const (
	ExitFromEngine ExitSource = "engine"
	ExitFromPIDFD  ExitSource = "pidfd"
	ExitFromReboot ExitSource = "reboot"
	ExitFromNone   ExitSource = "none"
)

// Exit is how the container's first process ended. The code is what was
// observed. Signal is only a reading of it: runtimes report a death by signal N
// as code 128 + N, and a process that exits with such a code by itself reads the
// same. Nothing is decided by it; whether the kernel killed is [OOM]'s to say.
type Exit struct {
	Source ExitSource `json:"source"`
	Code   *int64     `json:"code"`   // null: unknown
	Signal *int64     `json:"signal"` // code - 128 where that could be one, of source engine; null otherwise
	At     *Timestamp `json:"at"`
}

// Verdict answers whether the kernel killed for memory (I22).
type Verdict string

// The verdicts.
const (
	VerdictKilled    Verdict = "killed"
	VerdictNotKilled Verdict = "not_killed"
	VerdictUnknown   Verdict = "unknown"
)

// Scope says whose limit a kill was for.
type Scope string

// The scopes of a kill.
const (
	ScopeContainer Scope = "container" // the allocation's own limit
	ScopeHost      Scope = "host"      // the machine, or a cgroup above ours
	ScopeDaemon    Scope = "daemon"    // a userspace OOM daemon left its mark
	ScopeUnknown   Scope = "unknown"   // killed, and nothing says for whose limit
)

// CounterSource says where counters were read.
type CounterSource string

// The counter sources.
const (
	CountersFromV2   CounterSource = "cgroup_v2"
	CountersFromV1   CounterSource = "cgroup_v1"
	CountersFromNone CounterSource = "none"
)

// OOM is the verdict with the raw counters beside it (I24), as deltas against
// the baseline in the started receipt.
type OOM struct {
	Verdict  Verdict       `json:"verdict"`
	Scope    *Scope        `json:"scope"` // null unless killed
	Source   CounterSource `json:"source"`
	Counters Counters      `json:"counters"`
	OOMD     bool          `json:"oomd"` // a userspace OOM daemon left its mark
}

// LogSinkState says how the log sink fared.
type LogSinkState string

// The log sink states.
const (
	LogSinkOK   LogSinkState = "ok"
	LogSinkLost LogSinkState = "lost" // the worker may have got SIGPIPE for it
)

// Reason says why an allocation was retired; the first one stands.
type Reason string

// The reasons.
const (
	ReasonRequested     Reason = "requested"
	ReasonExited        Reason = "exited"
	ReasonSetupFailed   Reason = "setup_failed"
	ReasonOOM           Reason = "oom"
	ReasonMaxLifetime   Reason = "max_lifetime"
	ReasonLeaseExpired  Reason = "lease_expired"
	ReasonDrain         Reason = "drain"
	ReasonOperator      Reason = "operator"
	ReasonAgentRecovery Reason = "agent_recovery"
)

// ExitedBody is durable before anything is removed (I18) and never amended.
type ExitedBody struct {
	Exit      Exit         `json:"exit"`
	OOM       OOM          `json:"oom"`
	Peaks     Peaks        `json:"peaks"`
	LogSink   LogSinkState `json:"log_sink"`
	RunMillis *int64       `json:"run_ms"` // from start to the observed exit, boot-time clock; null over a restart of the machine
}

// StuckBody says what was seen when a container could not be stopped or
// removed in time.
type StuckBody struct {
	Step         string `json:"step"`
	ProcessState string `json:"process_state"` // the letter of /proc/PID/stat, or ""
	WaitChannel  string `json:"wait_channel"`
	Detail       string `json:"detail"` // the last error of the step, bounded
	SinceMillis  int64  `json:"since_ms"`
	Suppressed   int64  `json:"suppressed"`
}

// UnstuckBody says how long the allocation was stuck.
type UnstuckBody struct {
	StuckMillis int64 `json:"stuck_ms"`
}

// Removed says how one part of an allocation was found at its removal.
type Removed string

// The removal outcomes: taken away by us, or not there when looked for.
const (
	RemovedByUs   Removed = "removed"
	RemovedAbsent Removed = "absent"
)

// Removal lists the parts of a retired allocation.
type Removal struct {
	Task      Removed `json:"task"`
	Container Removed `json:"container"`
	Snapshot  Removed `json:"snapshot"`
	Cgroup    Removed `json:"cgroup"`
	LogSink   Removed `json:"log_sink"`
	Devices   Removed `json:"devices"`
}

// RetiredBody proves that the exact container was stopped and removed and its
// grants freed, all of it observed (I16).
type RetiredBody struct {
	Dispatched  bool         `json:"dispatched"` // false: no process was ever started
	Reason      Reason       `json:"reason"`
	RequestedBy *string      `json:"requested_by"` // "controller" or "operator"; null when the agent decided
	Note        string       `json:"note"`
	Container   *Container   `json:"container"` // null where none was ever made
	Exit        *Exit        `json:"exit"`      // null unless dispatched
	OOM         OOM          `json:"oom"`
	Peaks       Peaks        `json:"peaks"`
	LogSink     LogSinkState `json:"log_sink"`
	Durations   RetireTook   `json:"durations"`
	Removal     Removal      `json:"removal"`
	Error       string       `json:"error"` // for setup_failed: the agent's own bounded message; else ""
}

// RetireTook are durations on the boot-time clock.
type RetireTook struct {
	StopMillis   int64 `json:"stop_ms"`   // from the request to the exit
	RemoveMillis int64 `json:"remove_ms"` // from the exit to everything gone
}

// ConsumedBody names the exact retirement receipt that was consumed (I20).
type ConsumedBody struct {
	RetiredIndex Index  `json:"retired_index"`
	RetiredLeaf  Digest `json:"retired_leaf"`
}

// ReleasedBody moves the released frontier.
type ReleasedBody struct {
	Frontier Number   `json:"frontier"`
	Except   []Number `json:"except"` // stuck allocations that are carried along
}

// DrainBody says who drained or undrained.
type DrainBody struct {
	UID int64 `json:"uid"`
}

// OwnerChangedBody says who now obeys whom.
type OwnerChangedBody struct {
	From *ID   `json:"from"`
	To   ID    `json:"to"`
	UID  int64 `json:"uid"`
}
