package ledger

import (
	"iter"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/protocol"
)

// Format is the version of the ledger's content that this program writes, and
// the newest that it reads.
const Format = 1

// Bounds of what is written and read (I33).
const (
	// MaxPayload bounds one receipt's or intent's payload.
	MaxPayload = 128 << 10
	// MaxGroup bounds the records of one Append together, as they lie on disk.
	MaxGroup = 1 << 20
	// MaxBase bounds a base's payload. One that does not fit into a segment of
	// the usual size gets a longer one.
	MaxBase = 64 << 20
	// DefaultSegment is the default size of a segment file.
	DefaultSegment = 4 << 20
	// MinSegment and MaxSegment bound Options.Segment.
	MinSegment = 64 << 10
	MaxSegment = 64 << 20
	// DefaultQueue is the default bound of the bytes that wait for the disk.
	DefaultQueue = 64 << 20
	// DefaultAttestAfter is the default idleness before an attest record.
	DefaultAttestAfter = 50 * time.Millisecond
)

// Kind says what a record is. The ledger itself writes bases and attests.
type Kind uint8

// The record kinds.
const (
	KindReceipt Kind = 1 // a leaf of the receipt log
	KindIntent  Kind = 2 // known to the agent alone
	KindBase    Kind = 3 // the folded state at a release; first in its segment
	KindAttest  Kind = 4 // no payload: attests what was before it
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindReceipt:
		return "receipt"
	case KindIntent:
		return "intent"
	case KindBase:
		return "base"
	case KindAttest:
		return "attest"
	}
	return "unknown"
}

// Position says where a record lies. It stays valid, over restarts too, until
// a release removes the segment. The zero Position is no record.
type Position uint64

// Record is what is appended: KindReceipt or KindIntent and 0 to [MaxPayload]
// bytes. The ledger keeps the payload until it has called done; the caller
// must not change it.
type Record struct {
	Kind    Kind
	Payload []byte
}

// Entry is a record that is in the log.
type Entry struct {
	Sequence uint64 // contiguous from 1, attests counted
	Kind     Kind
	Position Position
	Payload  []byte
}

// Options configure Create and Open. Zero values mean the defaults.
type Options struct {
	// Generation is written by Create; Open refuses another one with
	// *GenerationError unless it is empty.
	Generation protocol.ID
	// Segment is the size of new segment files in bytes, a multiple of 4096
	// from MinSegment to MaxSegment. Existing files
	// keep their size.
	Segment int64
	// Reserve is the number of bytes for records that stay preallocated ahead
	// of the write position, rounded up to whole segments; one more is kept
	// for a release to begin.
	Reserve int64
	// Ballast is the size of a file that is given up first when the disk is
	// full, so that the engine can still remove containers; 0: none. With one
	// the free space is looked at every second, and Space tells of a full disk
	// before a write finds out.
	Ballast int64
	// Queue bounds the bytes that wait for the disk.
	Queue int64
	// AttestAfter is the idleness after which the last record is attested.
	AttestAfter time.Duration
	// Marker is the path of the file that remembers that there was a ledger,
	// and its generation, when the ledger's directory is lost; by default the
	// directory's own path with ".created" behind it. Its directory must exist.
	Marker string
	// Logger gets what an operator should know: cuts, space, failure.
	Logger hclog.Logger
	// FS replaces the operating system's file system in tests.
	FS FS
}

// Recovered is what Open found.
type Recovered struct {
	// Base is the payload of the newest valid base, nil if none was written.
	Base []byte
	// BaseSequence is that base's sequence, 0 if none was written.
	BaseSequence uint64
	// Records gives every receipt and intent after the base, in order; attests
	// are left out. It reads from the files and may be ranged over once or
	// more, at any time before a Release. An error ends it.
	Records iter.Seq2[Entry, error]
	// Last is the highest sequence in the log.
	Last uint64
	// CutBytes is the length of the unattested bad tail that was cut, 0 if the
	// log ended cleanly. What is cut was never acknowledged, or was lost by
	// the disk, which the witness shows.
	CutBytes int64
}

// Release starts a new segment whose first records are Base and Records, and
// then removes what is not needed any more.
type Release struct {
	// Base is the folded state of everything appended before this release.
	Base []byte
	// Records follow the base in the same group: the released receipt first.
	Records []Record
	// Keep is the lowest sequence that must stay readable through Read, 0 if
	// nothing before the base must. Whole older segments are removed.
	Keep uint64
}

// Space says how much can be written without new disk space.
type Space struct {
	// Room is the number of bytes of records that fit into what is
	// preallocated besides a release's segment, counted so that groups of
	// MaxPayload fit for certain.
	Room int64
	// AfterRelease is the part of Room that a release leaves: it begins a segment
	// and gives up the rest of the present one.
	AfterRelease int64
	// Release is the size of the largest release, base and records as they lie
	// on disk, that fits into a preallocated segment; 0 while none is there.
	Release int64
	// Full is true while preallocation fails for want of disk space: new work
	// should be refused (I36).
	Full bool
}

// Size is the number of bytes that a record of n payload bytes takes on disk.
func Size(n int) int64 { return (recordHeader + int64(n) + 7) &^ 7 }
