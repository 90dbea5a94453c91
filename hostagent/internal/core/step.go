package core

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/quittance/quittance/protocol"
)

// stepper is one call of [Step]: everything that its methods decide goes
// through emit, effect and reply.
type stepper struct {
	s   *State
	v   *Session
	now Now
	out Output
}

// Step decides what an event means. The entries of its output are already
// folded into the state; they, the effects and the replies are the caller's to
// carry out in the order that [Core] keeps. Step does no I/O, reads no clock
// and is deterministic.
func Step(s *State, v *Session, now Now, e Event) Output {
	x := &stepper{s: s, v: v, now: now}
	switch e := e.(type) {
	case Allocate:
		x.allocate(e)
	case GetAllocation:
		x.getAllocation(e)
	case ListAllocations:
		x.listAllocations(e)
	case GetHost:
		x.reply(e.ID, 200, x.host())
	case GetProfiles:
		x.getProfiles(e)
	case Retire:
		x.retire(e)
	case Consume:
		x.consume(e)
	case Release:
		x.release(e)
	case TakeChannel:
		x.takeChannel(e)
	case HandChannel:
		x.handChannel(e)
	case Witness:
		x.witness(e)
	case Drain:
		x.drain(e)
	case SetOwner:
		x.setOwner(e)
	case Cancel:
		x.cancel(e)
	case ReturnChannel:
		if r := v.runs[e.Number]; r != nil && r.channels > r.handed {
			r.channels--
		}
	case Heard:
		x.heard(e.Owner)
	case Tick:
	case Started:
		x.started(e)
	case EngineChanged:
		v.engine = e.Engine
	case EngineListed:
		x.engineListed(e)
	case ProfilesLoaded:
		v.setProfiles(e.Profiles)
		v.devices = e.Devices
	default:
		x.work(e)
	}
	x.timers()
	x.settleWaiters()
	return x.out
}

// emit folds one entry and hands it to the journal. Our own entries fold by
// construction; one that does not is a fault of this program.
func (x *stepper) emit(e Entry) {
	if err := Apply(x.s, e); err != nil {
		panic(fmt.Sprintf("core: an entry of our own does not fold: %v", err))
	}
	x.out.Entries = append(x.out.Entries, e)
}

// latestTimestamp is the end of the year 9999, the last that a timestamp's form
// can show.
const latestTimestamp protocol.Timestamp = 253_402_300_799_999_999

// receipt writes a receipt; n is 0 for kinds that concern no allocation.
func (x *stepper) receipt(kind protocol.Kind, n protocol.Number, body any) {
	// A clock that went mad must not end the agent: it is for people only.
	at := min(max(x.now.Wall, 0), latestTimestamp)
	x.emit(Entry{Receipt: true, Payload: protocol.EncodeReceipt(x.s.Generation, x.s.Next, kind, n, at, body)})
}

// intend writes an intent.
func (x *stepper) intend(kind intentKind, n protocol.Number, body any) {
	x.emit(encodeIntent(kind, n, x.boot(), body))
}

func (x *stepper) effect(e Effect) { x.out.Effects = append(x.out.Effects, e) }

func (x *stepper) reply(id RequestID, status int, body any) {
	x.out.Replies = append(x.out.Replies, Reply{ID: id, Status: status, Body: body})
}

func (x *stepper) refuse(id RequestID, p *protocol.Problem) {
	x.out.Replies = append(x.out.Replies, Reply{ID: id, Status: p.Status, Problem: p})
}

// boot is now on the boot-time clock of this boot.
func (x *stepper) boot() BootTime { return BootTime{BootID: x.v.BootID, Millis: x.now.BootMillis} }

// Genesis is the first entry of a new ledger.
func Genesis(generation protocol.ID, at protocol.Timestamp, body protocol.GenesisBody) Entry {
	return Entry{Receipt: true, Payload: protocol.EncodeReceipt(generation, 0, protocol.KindGenesis, 0, at, body)}
}

// bound cuts a message of the agent to what a receipt may hold, at a character.
func bound(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= protocol.MaxErrorBytes {
		return s
	}
	s = s[:protocol.MaxErrorBytes]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// started opens a life of the agent: every allocation that is not retired is
// taken up where the ledger says that it stands (I15).
func (x *stepper) started(e Started) {
	x.v.started = x.now.BootMillis
	rebooted := map[protocol.Number]bool{}
	for _, n := range x.s.Numbers() {
		a := x.s.allocations[n]
		rebooted[n] = a.Created != nil && a.Created.BootID != x.v.BootID
	}
	x.receipt(protocol.KindAgentStarted, 0, protocol.AgentStartedBody{BootID: x.v.BootID, Versions: e.Versions})
	for _, n := range x.s.Numbers() {
		a := x.s.allocations[n]
		switch {
		case a.Retired != nil:
		case a.Burn():
			// The batch of a burn was cut between its two receipts.
			x.retired(a, allAbsent)
		case a.Exited != nil:
			x.v.runs[n] = &run{phase: phaseRemoving}
			x.effect(removeEffect(a, false))
		default:
			x.v.runs[n] = &run{phase: phaseInspecting, channels: a.Channels, handed: a.Channels}
			x.effect(InspectEffect{
				Number: n, Nonce: *a.Accepted.Nonce, Profile: a.Profile, Created: a.Created, Ran: a.Started != nil,
				Rebooted: rebooted[n],
			})
		}
	}
}

func removeEffect(a *Allocation, unsettled bool) RemoveEffect {
	return RemoveEffect{Number: a.Number, Nonce: *a.Accepted.Nonce, Profile: a.Profile, Created: a.Created, Unsettled: unsettled}
}

// engineListed compares what the engine has with what the ledger knows (I9).
// Containers of retired numbers that appeared late are swept; what the ledger
// cannot know stops new work: for as long as it is there where another
// generation made it, and for the agent's life where this one did, since then
// the ledger is behind whoever removes the container.
func (x *stepper) engineListed(e EngineListed) {
	var others []protocol.ID
	example := map[protocol.ID]string{}
	for _, c := range e.Containers {
		a := x.s.ByNonce(c.Nonce)
		switch {
		case c.Generation != x.s.Generation:
			if example[c.Generation] == "" {
				others = append(others, c.Generation)
				example[c.Generation] = c.ID
			}
		case a != nil && a.Retired == nil:
		case a != nil || (c.Number.Valid() && c.Number <= x.s.Released):
			x.effect(SweepEffect{ID: c.ID, Nonce: c.Nonce, Number: c.Number})
		default:
			x.v.engineAhead = fmt.Sprintf("the engine holds container %s, which the ledger does not know: it was restored from an older copy; put the newest one back, or stop the agent and run `hostagent ledger abandon %s`", c.ID, x.s.Generation)
		}
	}
	x.v.listed, x.v.foreign = true, foreign(others, example)
}

// shownGenerations bounds how many of the engine's generations a refusal names.
const shownGenerations = 8

// foreign says whose containers block new work and the way out, "" for none.
func foreign(others []protocol.ID, example map[protocol.ID]string) string {
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	var held, names []string
	for _, id := range others[:min(len(others), shownGenerations)] {
		held = append(held, fmt.Sprintf("container %s of generation %s", example[id], id))
		names = append(names, string(id))
	}
	return fmt.Sprintf("the engine holds %s: stop the agent and run `hostagent ledger abandon %s`, or put the state directory back that they belong to",
		strings.Join(held, ", "), strings.Join(names, " "))
}

// heard starts the leases anew when the owner asks for anything.
func (x *stepper) heard(owner protocol.ID) {
	if x.s.Owner != nil && *x.s.Owner == owner {
		x.v.heardAt, x.v.heardWall = x.now.BootMillis, x.now.Wall
	}
}

func (x *stepper) cancel(e Cancel) {
	kept := x.v.waiters[:0]
	for _, w := range x.v.waiters {
		if w.id != e.ID {
			kept = append(kept, w)
		}
	}
	x.v.waiters = kept
}

func (v *Session) setProfiles(loaded []Loaded) {
	v.profiles, v.order = map[string]Loaded{}, nil
	for _, l := range loaded {
		v.profiles[l.Info.Name] = l
		v.order = append(v.order, l.Info.Name)
	}
}
