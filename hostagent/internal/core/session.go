package core

import (
	"fmt"
	"math"

	"github.com/quittance/quittance/protocol"
)

// Now is what the clocks said when an event was taken in.
type Now struct {
	BootMillis int64              // boot-time clock
	Wall       protocol.Timestamp // for people only (I25)
}

// Bounds are the configured limits that [Step] enforces.
type Bounds struct {
	MaxSlots         int   // unconsumed allocations
	MaxUnreleased    int   // consumed allocations whose history is not released
	MemoryBudget     int64 // bytes of all unretired allocations' limits; 0: no budget
	StuckAfterMillis int64 // a step that fails for longer is reported as stuck
}

// receiptBurst is how many receipts of a kind that a container can provoke are
// written one by one. Then at least receiptIntervalMillis lie before the next,
// and twice as much before each further one: of the longest life some twenty
// more are written, so that they are bounded (I33) and their space is (I36).
const (
	receiptBurst          = 8
	receiptIntervalMillis = 60_000
)

// Session is what only this life of the agent knows. [Step] changes it; a
// restart begins with [NewSession].
type Session struct {
	BootID     protocol.ID
	CgroupMode protocol.CgroupMode
	Bounds     Bounds
	// Space is what the journal can take now. A new session has plenty; whoever
	// steps says how much there is.
	Space Space

	started     int64 // boot-time milliseconds of the Started event
	engine      protocol.Engine
	profiles    map[string]Loaded
	order       []string          // of the profiles, by name
	devices     []protocol.Device // as they were last found; shown, never granted from
	witnessed   bool              // the owner presented what it holds since the start
	witnessSize int64             // of the last checkpoint that was presented
	listed      bool              // the engine's containers were compared with the ledger since the start
	engineAhead string            // what the engine held that the ledger lacks (I9), for the agent's life; "" for nothing
	foreign     string            // what the engine holds of other generations, by its last listing; "" for nothing
	ownerAhead  string            // likewise what the owner presented last
	heardAt     int64             // boot-time milliseconds of the owner's last request, 0 for none
	heardWall   protocol.Timestamp
	runs        map[protocol.Number]*run
	waiters     []waiter
}

// NewSession begins a life of the agent.
func NewSession(bootID protocol.ID, mode protocol.CgroupMode, bounds Bounds) *Session {
	return &Session{
		BootID: bootID, CgroupMode: mode, Bounds: bounds,
		Space:    Space{Room: math.MaxInt64, AfterRelease: math.MaxInt64, Release: math.MaxInt64},
		profiles: map[string]Loaded{}, runs: map[protocol.Number]*run{},
		engine: protocol.Engine{Detail: "the agent has not reached the engine since it started"},
	}
}

// phase is what an allocation's worker is doing; see the package comment.
type phase int

const (
	phaseInspecting phase = iota + 1
	phaseCreating
	phaseStarting
	phaseRunning
	phaseStopping
	phaseRemoving
)

// String names the phase for people.
func (p phase) String() string {
	switch p {
	case phaseInspecting:
		return "inspecting"
	case phaseCreating:
		return "creating"
	case phaseStarting:
		return "starting"
	case phaseRunning:
		return "running"
	case phaseStopping:
		return "stopping"
	case phaseRemoving:
		return "removing"
	}
	return fmt.Sprintf("phase %d", int(p))
}

// run is the part of an unretired allocation that a restart forgets.
type run struct {
	phase     phase
	step      string
	stepError string
	channels  int64 // reserved and handed out, of earlier lives too
	handed    int64 // of these, those that were handed out
	oom       bounded
	stuck     bounded
	stuckFrom int64 // boot-time milliseconds at which the failing step began
}

// enter begins a phase; the step of the one before is over.
func (r *run) enter(p phase) { r.phase, r.step, r.stepError = p, "", "" }

// bounded limits one kind of receipt of one allocation.
type bounded struct {
	lastMillis int64
	suppressed int64
}

// admit reports whether one more receipt may be written now, given how many
// there are, and how many were left out since the last.
func (b *bounded) admit(now, written int64) (suppressed int64, ok bool) {
	if beyond := written - receiptBurst; beyond >= 0 && now-b.lastMillis < receiptIntervalMillis<<min(beyond, 32) {
		b.suppressed++
		return 0, false
	}
	suppressed, b.suppressed, b.lastMillis = b.suppressed, 0, now
	return suppressed, true
}

// waiter is a request whose reply waits for a state or a deadline.
type waiter struct {
	id             RequestID
	number         protocol.Number
	until          protocol.State
	deadlineMillis int64
	effect         bool // answer as a retirement
}
