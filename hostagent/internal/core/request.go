package core

import (
	"fmt"
	"slices"

	"github.com/quittance/quittance/protocol"
)

// Who asked for a retirement, as the retired receipt says it.
const (
	requestedByController = "controller"
	requestedByOperator   = "operator"
)

// allocate accepts a number or says why not; see the package comment's table.
func (x *stepper) allocate(e Allocate) {
	if p := x.checkOwner(e.Caller); p != nil {
		x.refuse(e.ID, p)
		return
	}
	if e.Number <= x.s.Accepted {
		a, p := x.open(e.Number)
		switch {
		case p != nil:
			x.refuse(e.ID, p)
		case a.Burn() || a.Accepted.Owner != e.Caller.Owner || a.Accepted.Purpose != e.Body.Purpose ||
			*a.Accepted.Profile != e.Body.Profile || *a.Accepted.ProfileDigest != e.Body.ProfileDigest:
			x.refuse(e.ID, conflict(e.Number))
		default:
			x.effectReply(e.ID, 200, a, protocol.KindAccepted)
		}
		return
	}
	if p := x.checkNext(e.Number); p != nil {
		x.refuse(e.ID, p)
		return
	}
	loaded, p := x.acceptable(e)
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	profile := loaded.Profile
	devices, cdiDigest, p := x.lease(profile, e.Devices)
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	digest, imageDigest := loaded.Info.Digest, loaded.Info.ImageDigest
	limits := loaded.Info.Limits
	// The profile goes first: an acceptance without it would not fold.
	x.intend(intentProfile, e.Number, profileBody{Profile: profile.Canonical()})
	x.receipt(protocol.KindAccepted, e.Number, protocol.AcceptedBody{
		Owner: e.Caller.Owner, Purpose: e.Body.Purpose, Nonce: &e.Nonce, Profile: &profile.Name, ProfileDigest: &digest,
		ImageDigest: &imageDigest, Limits: &limits, Devices: devices, CDIDigest: cdiDigest,
	})
	x.heard(e.Caller.Owner)
	a := x.s.allocations[e.Number]
	x.v.runs[e.Number] = &run{phase: phaseCreating}
	x.effect(CreateEffect{Number: e.Number, Nonce: e.Nonce, Profile: a.Profile, Devices: devices, CDIDigest: cdiDigest})
	x.effectReply(e.ID, 201, a, protocol.KindAccepted)
}

// checkOwner refuses another owner's effects. Operators are not owner-checked.
func (x *stepper) checkOwner(c Caller) *protocol.Problem {
	if c.Operator || x.s.Owner == nil || *x.s.Owner == c.Owner {
		return nil
	}
	return protocol.NewProblem(protocol.CodeOtherOwner,
		"this generation obeys another controller's attempt store",
		"use the controller whose store owns the generation, or let an operator set the owner")
}

// open finds a number that was accepted and is not released.
func (x *stepper) open(n protocol.Number) (*Allocation, *protocol.Problem) {
	if a := x.s.allocations[n]; a != nil {
		return a, nil
	}
	if n <= x.s.Released {
		p := protocol.NewProblem(protocol.CodeReleased,
			fmt.Sprintf("the history of number %d was released", n), "nothing can be done with a released number")
		p.Frontier = &x.s.Released
		return nil, p
	}
	p := protocol.NewProblem(protocol.CodeNotFound,
		fmt.Sprintf("number %d was never accepted", n), "allocate the expected number first")
	p.Expected = x.s.Accepted + 1
	return nil, p
}

func conflict(n protocol.Number) *protocol.Problem {
	return protocol.NewProblem(protocol.CodeNumberConflict,
		fmt.Sprintf("number %d was accepted for something else", n),
		"read the allocation; this number can never serve this request")
}

// checkNext refuses whatever makes frontier + 1 unusable for an allocation and
// for a burn alike: numbering, a ledger that is behind, the witness, and the
// bound of history.
func (x *stepper) checkNext(n protocol.Number) *protocol.Problem {
	if x.s.Accepted == protocol.MaxNumber {
		return protocol.NewProblem(protocol.CodeExhausted, "every number of this generation was used",
			"an operator begins a new generation: hostagent ledger abandon")
	}
	if expected := x.s.Accepted + 1; n != expected {
		p := protocol.NewProblem(protocol.CodeSequenceGap,
			fmt.Sprintf("number %d leaves a gap: %d is next", n, expected), "settle the expected number first")
		p.Expected = expected
		return p
	}
	for _, ahead := range []string{x.v.ownerAhead, x.v.engineAhead, x.v.foreign} {
		if ahead != "" {
			return protocol.NewProblem(protocol.CodeLedgerBehind, ahead,
				"an operator follows the runbook ledger_behind; existing allocations can still be retired")
		}
	}
	if !x.v.listed {
		p := protocol.NewProblem(protocol.CodeEngineUnavailable,
			"since the agent started, what the engine holds has not been compared with the ledger", "send this again later")
		p.RetryAfterMillis = 1000
		return p
	}
	if !x.v.witnessed {
		return protocol.NewProblem(protocol.CodeWitnessRequired,
			"since the agent started, the owner has not presented the receipts that it holds", "PUT witness, then send this again")
	}
	slots := x.slots()
	if slots.Unreleased >= x.v.Bounds.MaxUnreleased {
		return protocol.NewProblem(protocol.CodeHistoryFull,
			fmt.Sprintf("%d consumed allocations are not released; max_unreleased is %d", slots.Unreleased, slots.MaxUnreleased),
			"release history, then send this again")
	}
	// Burns take no slot, so max_slots alone does not bound them.
	if held, most := len(x.s.allocations), x.v.Bounds.MaxSlots+x.v.Bounds.MaxUnreleased; held >= most {
		return protocol.NewProblem(protocol.CodeHistoryFull,
			fmt.Sprintf("%d numbers are not released, %d of them not consumed; max_slots and max_unreleased together are %d", held, slots.Used, most),
			"consume what is retired and release history, then send this again")
	}
	return nil
}

// acceptable refuses what cannot be accepted now and would consume no number.
func (x *stepper) acceptable(e Allocate) (Loaded, *protocol.Problem) {
	retryLater := func(p *protocol.Problem) (Loaded, *protocol.Problem) {
		p.RetryAfterMillis = 1000
		return Loaded{}, p
	}
	if x.s.Draining {
		return retryLater(protocol.NewProblem(protocol.CodeDraining, "an operator drains this node", "use another node, or wait for the end of the drain"))
	}
	loaded, known := x.v.profiles[e.Body.Profile]
	switch {
	case !known:
		return Loaded{}, protocol.NewProblem(protocol.CodeProfileUnknown, "the profile directory has no profile of this name", "use one that GET profiles lists")
	case loaded.Info.Digest != "" && loaded.Info.Digest != e.Body.ProfileDigest:
		return Loaded{}, protocol.NewProblem(protocol.CodeProfileChanged, "the profile is not the one that the request's digest names", "read GET profiles and decide anew")
	case !x.v.engine.Available:
		return retryLater(protocol.NewProblem(protocol.CodeEngineUnavailable, "the container engine is unavailable: "+x.v.engine.Detail, "send this again later"))
	case !loaded.Info.Available && !loaded.LacksDevices || loaded.Profile == nil:
		return retryLater(protocol.NewProblem(protocol.CodeProfileUnavailable, "the profile is unavailable: "+loaded.Info.Reason, "an operator mends the profile; then send this again"))
	case e.NoSpace || x.v.Space.Full:
		return retryLater(protocol.NewProblem(protocol.CodeNoSpace, "the state directory's file system is nearly full", "an operator frees space; existing allocations can still be retired"))
	}
	slots := x.slots()
	if slots.Used >= slots.Max {
		return retryLater(protocol.NewProblem(protocol.CodeCapacity,
			fmt.Sprintf("%d unconsumed allocations; max_slots is %d", slots.Used, slots.Max), "consume a retired allocation, or wait"))
	}
	if budget := x.v.Bounds.MemoryBudget; budget > 0 {
		used := loaded.Info.Limits.MemoryBytes
		for _, a := range x.s.allocations {
			if a.Retired == nil && a.Accepted.Limits != nil {
				used += a.Accepted.Limits.MemoryBytes
			}
		}
		if used > budget {
			return retryLater(protocol.NewProblem(protocol.CodeBudget,
				fmt.Sprintf("the limits of all allocations would be %d bytes; memory_budget is %d", used, budget), "wait for a retirement"))
		}
	}
	return loaded, x.roomFor("one more allocation", BytesPerAllocation)
}

// retire asks the worker to stop, repeats what is known, or burns a number.
func (x *stepper) retire(e Retire) {
	if p := x.checkOwner(e.Caller); p != nil {
		x.refuse(e.ID, p)
		return
	}
	if e.Number > x.s.Accepted {
		x.burn(e)
		return
	}
	a, p := x.open(e.Number)
	if p == nil && a.Accepted.Purpose != e.Body.Purpose {
		p = conflict(e.Number)
	}
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	if a.Retired != nil {
		x.effectReply(e.ID, 200, a, protocol.KindRetired)
		return
	}
	if a.Retire == nil {
		reason, by := protocol.ReasonRequested, requestedByController
		if e.Caller.Operator {
			reason, by = protocol.ReasonOperator, requestedByOperator
		}
		x.stop(a, RetireBody{Reason: reason, RequestedBy: &by, Note: e.Body.Note})
	}
	if e.DeadlineMillis > x.now.BootMillis {
		x.v.waiters = append(x.v.waiters, waiter{
			id: e.ID, number: e.Number, until: protocol.StateRetired, deadlineMillis: e.DeadlineMillis, effect: true,
		})
		return
	}
	x.effectReply(e.ID, 202, a, "")
}

// stop intends a retirement and, where a process runs, has it stopped. Where
// none runs yet or any more, the phase's own result leads to the removal.
func (x *stepper) stop(a *Allocation, b RetireBody) {
	x.intendRetire(a, b)
	if r := x.v.runs[a.Number]; r != nil && r.phase == phaseRunning {
		r.enter(phaseStopping)
		x.effect(StopEffect{Number: a.Number, Kill: b.Reason == protocol.ReasonOOM})
	}
}

// burn accepts the next number and retires it as never dispatched.
func (x *stepper) burn(e Retire) {
	p := x.checkNext(e.Number)
	if p == nil && e.Caller.Operator {
		p = protocol.NewProblem(protocol.CodeForbidden, "only the owner may burn a number", "let the controller settle it")
	}
	if p == nil {
		p = x.roomFor("a burn", burnBytes)
	}
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	x.receipt(protocol.KindAccepted, e.Number, protocol.AcceptedBody{
		Owner: e.Caller.Owner, Purpose: e.Body.Purpose, Devices: []protocol.Device{},
	})
	by := requestedByController
	x.intend(intentRetire, e.Number, RetireBody{Reason: protocol.ReasonRequested, RequestedBy: &by, Note: e.Body.Note})
	a := x.s.allocations[e.Number]
	x.retired(a, allAbsent)
	x.heard(e.Caller.Owner)
	x.effectReply(e.ID, 200, a, protocol.KindRetired)
}

// consume settles the controller's side of one retired receipt (I20).
func (x *stepper) consume(e Consume) {
	p := x.checkOwner(e.Caller)
	var a *Allocation
	if p == nil {
		a, p = x.open(e.Number)
	}
	if p == nil && a.Accepted.Purpose != e.Body.Purpose {
		p = conflict(e.Number)
	}
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	w := a.Receipt(protocol.KindRetired)
	switch {
	case w == nil:
		x.refuse(e.ID, protocol.NewProblem(protocol.CodeNotRetired,
			fmt.Sprintf("number %d is not retired", e.Number), "retire it and wait for the receipt"))
	case w.Entry.LeafHash != e.Body.LeafHash:
		x.refuse(e.ID, protocol.NewProblem(protocol.CodeOtherReceipt,
			fmt.Sprintf("the retired receipt of number %d has another leaf hash", e.Number), "read the retired receipt and name its leaf hash"))
	default:
		if !a.Consumed {
			x.receipt(protocol.KindConsumed, e.Number, protocol.ConsumedBody{RetiredIndex: w.Entry.Index, RetiredLeaf: w.Entry.LeafHash})
		}
		x.effectReply(e.ID, 200, a, protocol.KindConsumed)
	}
}

// release moves the released frontier, stuck allocations excepted (I21).
func (x *stepper) release(e Release) {
	if p := x.checkOwner(e.Caller); p != nil {
		x.refuse(e.ID, p)
		return
	}
	frontier := e.Body.Frontier
	if frontier < x.s.Released {
		x.reply(e.ID, 200, x.releaseAnswer(nil))
		return
	}
	if p := x.releasable(e.Body); p != nil {
		x.refuse(e.ID, p)
		return
	}
	if frontier == x.s.Released && len(x.carried()) == len(e.Body.Except) {
		x.reply(e.ID, 200, x.releaseAnswer(nil))
		return
	}
	if p := x.roomToRelease(); p != nil {
		x.refuse(e.ID, p)
		return
	}
	size := int64(x.s.Next)
	except := e.Body.Except
	if except == nil {
		except = []protocol.Number{}
	}
	for _, n := range x.s.Numbers() {
		if a := x.s.allocations[n]; n <= frontier && a.Accepted.Nonce != nil && !slices.Contains(except, n) {
			x.effect(DiscardEffect{Number: n, Nonce: *a.Accepted.Nonce})
		}
	}
	x.receipt(protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: frontier, Except: except})
	encode := baseEncoder(x.s, protocol.Index(size))
	x.out.Base = &ReleaseBase{Encode: encode, Size: size, Kept: x.s.Kept(), WitnessSize: min(x.v.witnessSize, size)}
	leaf := x.out.Entries[len(x.out.Entries)-1].Payload
	x.reply(e.ID, 200, x.releaseAnswer(leaf))
}

// carried lists the open numbers at or below the released frontier.
func (x *stepper) carried() []protocol.Number {
	carried := []protocol.Number{}
	for _, n := range x.s.Numbers() {
		if n <= x.s.Released {
			carried = append(carried, n)
		}
	}
	return carried
}

func (x *stepper) releasable(b protocol.ReleaseRequest) *protocol.Problem {
	if len(b.Except) > x.v.Bounds.MaxSlots {
		p := protocol.NewProblem(protocol.CodeBadRequest,
			fmt.Sprintf("except names more than max_slots (%d) numbers", x.v.Bounds.MaxSlots), "release up to a lower frontier")
		p.Field = "/except"
		return p
	}
	for _, n := range b.Except {
		if a := x.s.allocations[n]; a == nil || a.Stuck == nil {
			p := protocol.NewProblem(protocol.CodeNotStuck,
				fmt.Sprintf("number %d is not stuck: only stuck allocations can be excepted", n), "leave it out; it must be consumed first")
			p.Blocker = n
			return p
		}
	}
	for _, n := range x.s.Numbers() {
		if n <= b.Frontier && !x.s.allocations[n].Consumed && !slices.Contains(b.Except, n) {
			return notConsumed(n)
		}
	}
	if b.Frontier > x.s.Accepted {
		return notConsumed(x.s.Accepted + 1)
	}
	return nil
}

func notConsumed(n protocol.Number) *protocol.Problem {
	p := protocol.NewProblem(protocol.CodeNotConsumed,
		fmt.Sprintf("number %d is the first that is not consumed", n), "release up to the number before it, or consume it first")
	p.Blocker = n
	return p
}

func (x *stepper) releaseAnswer(leaf []byte) *protocol.ReleaseAnswer {
	return &protocol.ReleaseAnswer{Disposition: protocol.Done, Frontier: x.s.Released, Carried: x.carried(), Receipt: leaf}
}

// takeChannel reserves a channel of a running, unretired allocation.
func (x *stepper) takeChannel(e TakeChannel) {
	p := x.checkOwner(e.Caller)
	var a *Allocation
	if p == nil {
		a, p = x.open(e.Number)
	}
	if p == nil && a.Accepted.Purpose != e.Body.Purpose {
		p = conflict(e.Number)
	}
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	r := x.v.runs[e.Number]
	switch {
	case a.Exited != nil || a.Retired != nil:
		p = protocol.NewProblem(protocol.CodeExited, fmt.Sprintf("the worker of number %d has ended", e.Number), "read its exit and retire it")
	case a.Retire != nil:
		p = protocol.NewProblem(protocol.CodeRetiring, fmt.Sprintf("number %d is being retired", e.Number), "wait for its retired receipt")
	case a.Started == nil || r.phase != phaseRunning:
		p = protocol.NewProblem(protocol.CodeNotConnectable, fmt.Sprintf("the worker of number %d does not run yet", e.Number), "wait for its started receipt")
		p.RetryAfterMillis = 100
	case r.channels >= a.Profile.Channel.MaxChannels:
		p = protocol.NewProblem(protocol.CodeChannelLimit,
			fmt.Sprintf("%d channels were handed out, the profile's max_channels", r.channels), "reuse a channel")
	}
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	r.channels++
	x.reply(e.ID, 200, &ChannelGrant{Number: e.Number, Network: a.Profile.Channel.Network, Address: a.Profile.Channel.Address})
}

// handChannel counts a channel for good before it leaves (I33).
func (x *stepper) handChannel(e HandChannel) {
	a, r := x.s.allocations[e.Number], x.v.runs[e.Number]
	if r == nil {
		x.refuse(e.ID, protocol.NewProblem(protocol.CodeExited, fmt.Sprintf("the worker of number %d has ended", e.Number), "read its exit and retire it"))
		return
	}
	r.handed++
	if r.handed > a.Channels {
		x.intend(intentChannels, a.Number, channelsBody{Reserved: reserveChannels(r.handed, a.Profile.Channel.MaxChannels)})
	}
	x.reply(e.ID, 200, nil)
}

// witness takes note of what the owner holds (I9).
func (x *stepper) witness(e Witness) {
	if p := x.checkOwner(e.Caller); p != nil {
		x.refuse(e.ID, p)
		return
	}
	if e.Behind != "" {
		x.v.ownerAhead, x.v.witnessed = e.Behind, false
		head := x.s.Next - 1
		p := protocol.NewProblem(protocol.CodeLedgerBehind, e.Behind, "an operator follows the runbook ledger_behind")
		p.Head = &head
		x.refuse(e.ID, p)
		return
	}
	x.v.ownerAhead, x.v.witnessed, x.v.witnessSize = "", true, max(x.v.witnessSize, e.Size)
	x.heard(e.Caller.Owner)
	x.reply(e.ID, 200, nil)
}

// drain starts or ends the refusal of new work; doing so again changes nothing.
func (x *stepper) drain(e Drain) {
	var leaf []byte
	if e.On != x.s.Draining {
		kind := protocol.KindDrained
		if !e.On {
			kind = protocol.KindUndrained
		}
		x.receipt(kind, 0, protocol.DrainBody{UID: e.Caller.UID})
		leaf = x.out.Entries[len(x.out.Entries)-1].Payload
	}
	active := 0
	for _, a := range x.s.allocations {
		if a.Retired == nil {
			active++
		}
	}
	x.reply(e.ID, 200, &protocol.DrainAnswer{Disposition: protocol.Done, Draining: x.s.Draining, Active: active, Receipt: leaf})
}

// setOwner makes the generation obey another controller, which has to present
// its own receipts before it allocates.
func (x *stepper) setOwner(e SetOwner) {
	answer := &protocol.OwnerAnswer{Disposition: protocol.Done, Owner: e.Owner}
	if x.s.Owner == nil || *x.s.Owner != e.Owner {
		x.receipt(protocol.KindOwnerChanged, 0, protocol.OwnerChangedBody{From: x.s.Owner, To: e.Owner, UID: e.Caller.UID})
		x.v.witnessed, x.v.heardAt, x.v.heardWall = false, x.now.BootMillis, 0
		answer.Receipt = x.out.Entries[len(x.out.Entries)-1].Payload
	}
	x.reply(e.ID, 200, answer)
}
