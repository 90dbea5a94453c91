package core

import "github.com/quittance/quittance/protocol"

// noDeadline is later than every deadline.
const noDeadline = int64(1) << 62

// NextDeadline is the boot-time millisecond at which the next [Tick] is due;
// ok is false where nothing waits for time.
func NextDeadline(s *State, v *Session) (millis int64, ok bool) {
	next := noDeadline
	for _, w := range v.waiters {
		next = min(next, w.deadlineMillis)
	}
	for n := range v.runs {
		a := s.allocations[n]
		if a.Retire == nil {
			_, at := dueRetirement(v, a)
			next = min(next, at)
		}
	}
	return next, next != noDeadline
}

// dueRetirement is when the agent itself retires an allocation, and why. Both
// clocks are the boot-time clock; the lease counts from the last time that the
// owner was heard, and anew in full from the agent's start.
func dueRetirement(v *Session, a *Allocation) (protocol.Reason, int64) {
	reason, at := protocol.Reason(""), noDeadline
	if life := a.Profile.Lifecycle.MaxLifetimeMillis; life > 0 && a.Started != nil && a.Started.BootID == v.BootID {
		reason, at = protocol.ReasonMaxLifetime, a.Started.StartTicks*millisPerTick+life
	}
	if lease := a.Profile.Lifecycle.LeaseMillis; lease > 0 {
		from := max(v.started, v.heardAt)
		if a.AcceptedAt.BootID == v.BootID {
			from = max(from, a.AcceptedAt.Millis)
		}
		if from+lease < at {
			reason, at = protocol.ReasonLeaseExpired, from+lease
		}
	}
	return reason, at
}

// timers retires what is due.
func (x *stepper) timers() {
	for _, n := range x.s.Numbers() {
		r, a := x.v.runs[n], x.s.allocations[n]
		if r == nil || a.Retire != nil {
			continue
		}
		if reason, at := dueRetirement(x.v, a); at <= x.now.BootMillis {
			x.stop(a, RetireBody{Reason: reason})
		}
	}
}
