package core

import (
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Event is anything that [Step] decides on: one of the types of this file.
type Event interface{ event() }

// RequestID correlates a request with its reply within this life of the agent.
type RequestID uint64

// Caller is who asks, as the socket proved it.
type Caller struct {
	Operator bool        // acts as an operator: no owner, no owner check
	Owner    protocol.ID // of a controller; "" for operators and for readers that sent none
	UID      int64
}

// Requests. Each is answered by exactly one [Reply] with its ID, unless it is
// withdrawn by [Cancel].
type (
	// Allocate asks for a number. Nonce is a fresh random identity for the
	// container, used if the number is accepted. NoSpace says that the state
	// directory's file system is too full for new work, whatever the journal
	// has prepared (I36). Devices are those
	// that the host has now; they matter only to a profile that asks for some.
	Allocate struct {
		ID      RequestID
		Caller  Caller
		Number  protocol.Number
		Body    protocol.AllocateRequest
		Nonce   protocol.ID
		NoSpace bool
		Devices []Offered
	}
	// GetAllocation reads one number. With Until it waits for that state to be
	// reached or passed, at most to DeadlineMillis of the boot-time clock.
	GetAllocation struct {
		ID             RequestID
		Number         protocol.Number
		Until          protocol.State
		DeadlineMillis int64
	}
	// ListAllocations reads every number held, or those in State.
	ListAllocations struct {
		ID    RequestID
		State protocol.State
	}
	// GetHost reads what [Step] knows of protocol.Host.
	GetHost struct{ ID RequestID }
	// GetProfiles lists the profiles.
	GetProfiles struct{ ID RequestID }
	// Retire asks for a retirement, or for a burn of the next number. With
	// DeadlineMillis above 0 the reply waits for the retired receipt till then.
	Retire struct {
		ID             RequestID
		Caller         Caller
		Number         protocol.Number
		Body           protocol.RetireRequest
		DeadlineMillis int64
	}
	// Consume acknowledges a retired receipt.
	Consume struct {
		ID     RequestID
		Caller Caller
		Number protocol.Number
		Body   protocol.ConsumeRequest
	}
	// Release moves the released frontier.
	Release struct {
		ID     RequestID
		Caller Caller
		Body   protocol.ReleaseRequest
	}
	// TakeChannel reserves one of the allocation's channels; the reply says
	// what to dial. A dial that failed gives it back by [ReturnChannel].
	TakeChannel struct {
		ID     RequestID
		Caller Caller
		Number protocol.Number
		Body   protocol.ChannelRequest
	}
	// HandChannel says that a reserved channel was dialled and is about to be
	// handed out: once it is answered, every later life of the agent counts it.
	HandChannel struct {
		ID     RequestID
		Number protocol.Number
	}
	// Witness reports the outcome of comparing what the owner presented with
	// the receipt log: Size is the presented checkpoint's, 0 for none. Behind
	// says what the ledger lacks, "" where it lacks nothing.
	Witness struct {
		ID     RequestID
		Caller Caller
		Size   int64
		Behind string
	}
	// Drain starts or ends the refusal of new allocations.
	Drain struct {
		ID     RequestID
		Caller Caller
		On     bool
	}
	// SetOwner makes the generation obey another controller.
	SetOwner struct {
		ID     RequestID
		Caller Caller
		Owner  protocol.ID
	}
)

// Notices are not answered.
type (
	// Cancel withdraws a request whose client is gone. It proves nothing about
	// what the request did (I13).
	Cancel struct{ ID RequestID }
	// ReturnChannel gives back a channel that could not be handed out.
	ReturnChannel struct{ Number protocol.Number }
	// Heard says that a request with this owner's id arrived.
	Heard struct{ Owner protocol.ID }
	// Tick says that a deadline may have passed; see [NextDeadline].
	Tick struct{}
	// Started opens this life of the agent. It is the first event.
	Started struct{ Versions protocol.Versions }
	// EngineChanged reports the engine's health.
	EngineChanged struct{ Engine protocol.Engine }
	// EngineListed reports every container in our namespace that carries our
	// labels, after the engine became available.
	EngineListed struct{ Containers []Listed }
	// ProfilesLoaded replaces the table of profiles, and what is shown of the
	// host's devices. Nothing is granted by it: see [Allocate].
	ProfilesLoaded struct {
		Profiles []Loaded
		Devices  []protocol.Device
	}
)

// Listed is one labelled container that the engine has.
type Listed struct {
	ID         string
	Generation protocol.ID
	Nonce      protocol.ID
	Number     protocol.Number // 0 where the label is missing or malformed
}

// Loaded is one profile of the profile directory. Profile is nil where the
// file could not be read; Info says why.
type Loaded struct {
	Info    protocol.ProfileInfo
	Profile *profiles.Profile
	// LacksDevices says that it is unavailable only because the host's devices
	// did not suffice when they were last looked at; a request's own look
	// decides.
	LacksDevices bool
}

// Results of an allocation's worker, in the order of its phases.
type (
	// WorkCreated says that the container exists and its process does not run.
	WorkCreated struct {
		Number protocol.Number
		Body   CreatedBody
	}
	// WorkCreateFailed says that the container could not be made. With Unknown
	// it may still come to be; removal looks again after the longest deadline.
	WorkCreateFailed struct {
		Number  protocol.Number
		Error   string // the agent's own words
		Unknown bool
	}
	// WorkStarted says that the process runs.
	WorkStarted struct {
		Number      protocol.Number
		StartMillis int64
	}
	// WorkStartFailed says that the start was refused or its outcome is
	// unknown; the process may run.
	WorkStartFailed struct {
		Number protocol.Number
		Error  string
	}
	// WorkRunning says that a container of an earlier life runs and is watched
	// as before (adoption).
	WorkRunning struct{ Number protocol.Number }
	// WorkOOM reports that the kernel's counters rose while the container lives.
	WorkOOM struct {
		Number   protocol.Number
		Counters protocol.Counters // deltas against the baseline
	}
	// WorkExited says that the process is gone, after the last counter read.
	WorkExited struct {
		Number protocol.Number
		Body   protocol.ExitedBody
	}
	// WorkNeverRan says that no process was started and none can be any more.
	WorkNeverRan struct{ Number protocol.Number }
	// WorkProgress names the step that the worker is in. Error is the step's
	// last failure, "" when it has just begun; SinceMillis is how long the
	// step has been failing.
	WorkProgress struct {
		Number       protocol.Number
		Step         string
		Error        string
		ProcessState string
		WaitChannel  string
		SinceMillis  int64
	}
	// WorkRemoved says that nothing of the allocation is left, all of it
	// observed (I16).
	WorkRemoved struct {
		Number  protocol.Number
		Removal protocol.Removal
	}
)

func (Allocate) event()         {}
func (GetAllocation) event()    {}
func (ListAllocations) event()  {}
func (GetHost) event()          {}
func (GetProfiles) event()      {}
func (Retire) event()           {}
func (Consume) event()          {}
func (Release) event()          {}
func (TakeChannel) event()      {}
func (HandChannel) event()      {}
func (Witness) event()          {}
func (Drain) event()            {}
func (SetOwner) event()         {}
func (Cancel) event()           {}
func (ReturnChannel) event()    {}
func (Heard) event()            {}
func (Tick) event()             {}
func (Started) event()          {}
func (EngineChanged) event()    {}
func (EngineListed) event()     {}
func (ProfilesLoaded) event()   {}
func (WorkCreated) event()      {}
func (WorkCreateFailed) event() {}
func (WorkStarted) event()      {}
func (WorkStartFailed) event()  {}
func (WorkRunning) event()      {}
func (WorkOOM) event()          {}
func (WorkExited) event()       {}
func (WorkNeverRan) event()     {}
func (WorkProgress) event()     {}
func (WorkRemoved) event()      {}
