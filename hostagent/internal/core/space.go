package core

import (
	"encoding/base64"

	"github.com/quittance/quittance/protocol"
)

// BytesPerAllocation is what the journal keeps free for each live allocation, so
// that it can be retired, consumed and released with the disk full (I36): the
// receipts and intents of its whole life, at their ceilings where a container
// could provoke them.
const BytesPerAllocation = 256 << 10

// ReserveBytes is what the journal is to keep free for so many allocations that
// live at once and as many numbers that are held altogether.
func ReserveBytes(slots, held int64) int64 {
	return slots*BytesPerAllocation + held*consumptionBytes + burnBytes
}

// Of what is not an allocation with a life: what a burnt number writes up to its
// consumption, and what is left of that once it, or an allocation, is retired.
const (
	burnBytes        = 16 << 10
	consumptionBytes = 1 << 10
)

// Space is what the journal can take for certain, whatever happens to the disk.
type Space struct {
	Room         int64 // bytes of entries, besides a release
	AfterRelease int64 // of Room, what a release leaves
	Release      int64 // bytes of the largest release, its base included; 0 while none can begin
	Full         bool  // the disk has no space for more than that
}

// owed bounds what all numbers that are held still write up to their consumption.
func (s *State) owed() (bytes int64) {
	for _, a := range s.allocations {
		switch {
		case a.Retired == nil:
			bytes += BytesPerAllocation
		case !a.Consumed:
			bytes += consumptionBytes
		}
	}
	return bytes
}

// BaseBytesPerAllocation bounds what one unreleased allocation adds to a base,
// the receipt log's snapshot included, at the life that a profile and a
// controller ordinarily make: the longest purpose and note, eight OOM
// observations, all devices that one acceptance may list. A segment that holds
// this much for each allocation that may be unreleased takes every such base
// without new disk space (I36).
const BaseBytesPerAllocation = 56 << 10

// BaseBytes bounds the base of so many allocations, the records that go with it
// included.
func BaseBytes(allocations int64) int64 { return allocations*BaseBytesPerAllocation + 4096 }

// baseBytes bounds the base that a release would write now, the records that go
// with it included, whatever lives the allocations had. witnessed is the number
// of leaves that the owner has seen: of the others the log keeps every hash.
func (s *State) baseBytes(witnessed int64) int64 {
	tree := 4096 + max(int64(s.Next)-witnessed, 0)*2*storedHash
	for _, a := range s.allocations {
		for _, e := range a.entries {
			if e.Receipt {
				tree += int64(len(e.Payload)) + 32*storedHash + storedHash + 12
			}
		}
	}
	return int64(len(EncodeBase(s, nil))+base64.StdEncoding.EncodedLen(int(tree))) + 4096
}

// storedHash is the size of a hash with its place, as a snapshot of the log has
// it; a proof in a log of 2³² leaves has 32 of them.
const storedHash = 8 + 32

// roomFor refuses one more number while what is prepared does not take what it
// may write, what every other one still may, and a release (I36): the disk may be
// full from now on.
func (x *stepper) roomFor(what string, bytes int64) *protocol.Problem {
	if x.v.Space.Release > 0 && x.v.Space.Room >= x.s.owed()+bytes {
		return nil
	}
	return x.notPrepared(what)
}

// roomToRelease refuses a release while it might have to wait for disk space, as
// all that is queued behind it would, or leave too little for what is owed.
func (x *stepper) roomToRelease() *protocol.Problem {
	space := x.v.Space
	if space.Release > 0 && space.AfterRelease >= x.s.owed() && (!space.Full || x.s.baseBytes(x.v.witnessSize) <= space.Release) {
		return nil
	}
	return x.notPrepared("a release")
}

func (x *stepper) notPrepared(what string) *protocol.Problem {
	p := protocol.NewProblem(protocol.CodeNoSpace, "the ledger has no prepared space for "+what,
		"send this again; if that does not help, an operator frees space on the state directory's file system")
	p.RetryAfterMillis = preparedMillis
	if x.v.Space.Full {
		p.RetryAfterMillis = 1000
	}
	return p
}

// preparedMillis is after how long to look again for space that is prepared at
// the moment.
const preparedMillis = 20
