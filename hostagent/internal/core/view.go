package core

import (
	"github.com/quittance/quittance/protocol"
)

// stateOf is the state of an allocation as the protocol names it.
func (x *stepper) stateOf(a *Allocation) protocol.State {
	switch {
	case a.Consumed:
		return protocol.StateConsumed
	case a.Retired != nil:
		return protocol.StateRetired
	case a.Exited != nil:
		return protocol.StateExited
	case a.Retire != nil:
		return protocol.StateRetiring
	case a.Started != nil:
		return protocol.StateStarted
	case x.v.runs[a.Number] != nil:
		return protocol.StateCreating
	}
	return protocol.StateAccepted
}

// reached reports whether an allocation has reached or passed a state.
func reached(a *Allocation, until protocol.State) bool {
	switch until {
	case protocol.StateStarted:
		return a.Started != nil || a.Exited != nil || a.Retired != nil
	case protocol.StateExited:
		// One that never started has no exited: its retired is the end.
		return a.Exited != nil || a.Retired != nil
	case protocol.StateRetired:
		return a.Retired != nil
	case protocol.StateConsumed:
		return a.Consumed
	}
	return true
}

func (x *stepper) view(a *Allocation) AllocationView {
	v := AllocationView{Allocation: protocol.Allocation{
		Number: a.Number, State: x.stateOf(a), Stuck: a.Stuck, Owner: a.Accepted.Owner, Purpose: a.Accepted.Purpose,
		Profile: a.Accepted.Profile, ProfileDigest: a.Accepted.ProfileDigest, Limits: a.Accepted.Limits, Devices: a.Accepted.Devices,
	}, Nonce: a.Accepted.Nonce}
	if v.Devices == nil {
		v.Devices = []protocol.Device{}
	}
	if a.Created != nil {
		v.Container = &a.Created.Container
	}
	if a.Retire != nil {
		v.Reason = &a.Retire.Reason
	} else if a.Retired != nil {
		v.Reason = &a.Retired.Reason
	}
	if a.Exited != nil {
		v.Exit, v.OOM, v.Peaks, v.LogSink = &a.Exited.Exit, &a.Exited.OOM, &a.Exited.Peaks, &a.Exited.LogSink
	} else if a.Started != nil && a.Retired == nil {
		v.Live = a.Started
	}
	if r := x.v.runs[a.Number]; r != nil {
		v.Channels, v.Step, v.StepError = int(r.channels), r.step, r.stepError
		if v.Step == "" {
			v.Step = r.phase.String()
		}
	}
	v.Receipts = make([]protocol.ReceiptEntry, 0, len(a.receipts))
	for _, w := range a.receipts {
		v.Receipts = append(v.Receipts, w.Entry)
	}
	return v
}

// effectReply answers an effect with the receipt of the given kind that
// records it, or without one where kind is "".
func (x *stepper) effectReply(id RequestID, status int, a *Allocation, kind protocol.Kind) {
	view := x.view(a)
	answer := &protocol.EffectAnswer{Disposition: protocol.Done, Allocation: view.Allocation}
	if kind != "" {
		w := a.Receipt(kind)
		answer.Receipt, answer.LeafHash = w.Leaf, &w.Entry.LeafHash
	}
	x.reply(id, status, answer)
}

func (x *stepper) slots() protocol.Slots {
	s := protocol.Slots{Max: x.v.Bounds.MaxSlots, MaxUnreleased: x.v.Bounds.MaxUnreleased}
	for _, a := range x.s.allocations {
		if a.Consumed {
			s.Unreleased++
		} else {
			s.Used++
		}
		if a.Stuck != nil {
			s.Stuck++
		}
	}
	return s
}

func (x *stepper) host() *HostView {
	h := &HostView{
		Generation: x.s.Generation, HostKey: x.s.HostKey, BootID: x.v.BootID, Engine: x.v.engine, CgroupMode: x.v.CgroupMode,
		Frontiers: protocol.Frontiers{Accepted: x.s.Accepted, Released: x.s.Released}, Slots: x.slots(), Devices: x.v.devices,
		Draining: x.s.Draining || x.s.Accepted == protocol.MaxNumber, Owner: x.s.Owner, WitnessRequired: !x.v.witnessed,
	}
	if h.Devices == nil {
		h.Devices = []protocol.Device{}
	}
	if x.v.heardWall != 0 {
		wall := x.v.heardWall
		h.OwnerHeard = &wall
	}
	return h
}

func (x *stepper) getAllocation(e GetAllocation) {
	a, p := x.open(e.Number)
	if p != nil {
		x.refuse(e.ID, p)
		return
	}
	if e.Until != "" && e.DeadlineMillis > x.now.BootMillis && !reached(a, e.Until) {
		x.v.waiters = append(x.v.waiters, waiter{id: e.ID, number: e.Number, until: e.Until, deadlineMillis: e.DeadlineMillis})
		return
	}
	v := x.view(a)
	x.reply(e.ID, 200, &v)
}

func (x *stepper) listAllocations(e ListAllocations) {
	list := []AllocationView{}
	for _, n := range x.s.Numbers() {
		if v := x.view(x.s.allocations[n]); e.State == "" || v.State == e.State {
			list = append(list, v)
		}
	}
	x.reply(e.ID, 200, list)
}

func (x *stepper) getProfiles(e GetProfiles) {
	list := &protocol.ProfileList{Profiles: []protocol.ProfileInfo{}}
	for _, name := range x.v.order {
		list.Profiles = append(list.Profiles, x.v.profiles[name].Info)
	}
	x.reply(e.ID, 200, list)
}

// settleWaiters answers those whose state is reached or whose time is over.
func (x *stepper) settleWaiters() {
	kept := x.v.waiters[:0]
	for _, w := range x.v.waiters {
		a, p := x.open(w.number)
		switch {
		case p != nil:
			x.refuse(w.id, p)
		case !reached(a, w.until) && x.now.BootMillis < w.deadlineMillis:
			kept = append(kept, w)
		case w.effect && a.Retired != nil:
			x.effectReply(w.id, 200, a, protocol.KindRetired)
		case w.effect:
			x.effectReply(w.id, 202, a, "")
		default:
			v := x.view(a)
			x.reply(w.id, 200, &v)
		}
	}
	x.v.waiters = kept
}
