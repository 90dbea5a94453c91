package core

import (
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Effect is one thing to be done outside, begun only after every entry that
// was decided before it is durable. Effects of one number are begun in order.
// Each ends in exactly one result, StopEffect, WatchEffect, ForgetEffect,
// SweepEffect and DiscardEffect excepted.
type Effect interface{ effect() }

// The effects.
type (
	// CreateEffect makes cgroup and container, without starting the process.
	// Ends in [WorkCreated] or [WorkCreateFailed].
	CreateEffect struct {
		Number  protocol.Number
		Nonce   protocol.ID
		Profile *profiles.Profile
		// Devices are leased: exactly these are injected, by specs with this
		// digest, or the creation fails. CDIDigest is nil where there are none.
		Devices   []protocol.Device
		CDIDigest *protocol.Digest
	}
	// StartEffect starts the process. Ends in [WorkStarted] or [WorkStartFailed].
	StartEffect struct{ Number protocol.Number }
	// WatchEffect watches a running process until it ends, with [WorkOOM]
	// while it lives and [WorkExited] at its end.
	WatchEffect struct{ Number protocol.Number }
	// StopEffect stops the process: stop signal, grace, SIGKILL; with Kill
	// SIGKILL at once. It repeats until the process is gone, which ends in
	// [WorkExited], or in [WorkNeverRan] where no process had been started.
	StopEffect struct {
		Number protocol.Number
		Kill   bool
	}
	// InspectEffect finds out what an earlier life of the agent left. Ends in
	// [WorkRunning], [WorkExited] or [WorkNeverRan].
	InspectEffect struct {
		Number  protocol.Number
		Nonce   protocol.ID
		Profile *profiles.Profile
		Created *CreatedBody // nil where no container is known to have been made
		// Ran says that the started receipt is written.
		Ran bool
		// Rebooted says that the machine was started since Created; nothing of
		// it runs.
		Rebooted bool
	}
	// RemoveEffect removes everything that the allocation has, in the order of
	// the design, each step until it is done. Ends in [WorkRemoved].
	RemoveEffect struct {
		Number  protocol.Number
		Nonce   protocol.ID
		Profile *profiles.Profile
		Created *CreatedBody
		// Unsettled says that a create may still land: its absence is believed
		// only after the longest engine deadline (I11).
		Unsettled bool
	}
	// ForgetEffect ends the allocation's worker; nothing of it is left.
	ForgetEffect struct{ Number protocol.Number }
	// SweepEffect removes a container of a number that is already retired and
	// that appeared afterwards.
	SweepEffect struct {
		ID     string
		Nonce  protocol.ID
		Number protocol.Number
	}
	// DiscardEffect removes what was captured of a released allocation's output.
	DiscardEffect struct {
		Number protocol.Number
		Nonce  protocol.ID
	}
)

func (DiscardEffect) effect() {}
func (CreateEffect) effect()  {}
func (StartEffect) effect()   {}
func (WatchEffect) effect()   {}
func (StopEffect) effect()    {}
func (InspectEffect) effect() {}
func (RemoveEffect) effect()  {}
func (ForgetEffect) effect()  {}
func (SweepEffect) effect()   {}

// Reply answers one request, with a problem or with a body.
type Reply struct {
	ID      RequestID
	Status  int
	Body    any // one of the protocol's answers, *AllocationView, []AllocationView, *HostView or *ChannelGrant
	Problem *protocol.Problem
}

// AllocationView is an allocation as it is shown. Live is set while its
// counters can be read anew. Nonce is nil for a burn.
type AllocationView struct {
	protocol.Allocation
	Live  *protocol.StartedBody
	Nonce *protocol.ID
}

// HostView is what the core contributes to protocol.Host.
type HostView struct {
	Generation      protocol.ID
	HostKey         string
	BootID          protocol.ID
	Engine          protocol.Engine
	CgroupMode      protocol.CgroupMode
	Frontiers       protocol.Frontiers
	Slots           protocol.Slots
	Devices         []protocol.Device // that could be granted to somebody, held ones included
	Draining        bool
	Owner           *protocol.ID
	OwnerHeard      *protocol.Timestamp
	WitnessRequired bool
}

// ChannelGrant says where a reserved channel is dialled.
type ChannelGrant struct {
	Number  protocol.Number
	Network string // "tcp" or "unix"
	Address string // inside the container
}

// Output is what one event leads to.
type Output struct {
	Entries []Entry
	// Base is set where Entries begins with a released receipt: the state
	// before that receipt's index is counted, to be made into the first record
	// of a new segment.
	Base    *ReleaseBase
	Effects []Effect
	Replies []Reply
}

// ReleaseBase is what the journal needs to prune.
type ReleaseBase struct {
	// Encode makes the base record around the receipt log's snapshot.
	Encode func(tree []byte) []byte
	// Size is the number of leaves that the snapshot covers; the released
	// receipt has this index.
	Size int64
	// Kept are the receipts below the new first index that stay readable.
	Kept []Written
	// WitnessSize is the size of the last checkpoint that the owner presented:
	// leaf hashes from there on must stay. 0: all must stay.
	WitnessSize int64
}
