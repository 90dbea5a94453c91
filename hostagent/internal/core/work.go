package core

import (
	"fmt"

	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// work takes in a worker's result.
func (x *stepper) work(e Event) {
	switch e := e.(type) {
	case WorkCreated:
		x.workCreated(e)
	case WorkCreateFailed:
		a, r := x.live(e.Number, "create failed", phaseCreating)
		x.intendRetire(a, RetireBody{Reason: protocol.ReasonSetupFailed, Error: bound(e.Error)})
		x.remove(a, r, e.Unknown)
	case WorkStarted:
		x.workStarted(e)
	case WorkStartFailed:
		a, r := x.live(e.Number, "start failed", phaseStarting)
		x.intendRetire(a, RetireBody{Reason: protocol.ReasonSetupFailed, Error: bound(e.Error)})
		r.enter(phaseStopping)
		x.effect(StopEffect{Number: a.Number, Kill: true})
	case WorkRunning:
		x.workRunning(e)
	case WorkOOM:
		x.workOOM(e)
	case WorkExited:
		x.workExited(e)
	case WorkNeverRan:
		a, r := x.live(e.Number, "never ran", phaseInspecting, phaseStopping)
		x.unstick(a, r)
		x.intendRetire(a, RetireBody{Reason: protocol.ReasonAgentRecovery})
		x.remove(a, r, r.phase == phaseInspecting && a.Created == nil)
	case WorkProgress:
		x.workProgress(e)
	case WorkRemoved:
		a, r := x.live(e.Number, "removed", phaseRemoving)
		x.unstick(a, r)
		x.retired(a, e.Removal)
		delete(x.v.runs, a.Number)
		x.effect(ForgetEffect{Number: a.Number})
	default:
		panic(fmt.Sprintf("core: no step for a %T", e))
	}
}

// live finds the allocation that a worker's result is about, in one of the
// phases that have such a result.
func (x *stepper) live(n protocol.Number, what string, phases ...phase) (*Allocation, *run) {
	a, r := x.s.allocations[n], x.v.runs[n]
	if a == nil || r == nil {
		panic(fmt.Sprintf("core: %s for number %d, which has no worker", what, n))
	}
	for _, p := range phases {
		if r.phase == p {
			return a, r
		}
	}
	panic(fmt.Sprintf("core: %s for number %d while %s", what, n, r.phase))
}

func (x *stepper) workCreated(e WorkCreated) {
	a, r := x.live(e.Number, "created", phaseCreating)
	x.intend(intentCreated, a.Number, e.Body)
	if a.Retire != nil {
		x.remove(a, r, false)
		return
	}
	r.enter(phaseStarting)
	x.effect(StartEffect{Number: a.Number})
}

func (x *stepper) workStarted(e WorkStarted) {
	a, r := x.live(e.Number, "started", phaseStarting)
	x.receiptStarted(a, e.StartMillis)
	r.enter(phaseRunning)
	x.effect(WatchEffect{Number: a.Number})
	x.stopIfAsked(a, r)
}

func (x *stepper) workRunning(e WorkRunning) {
	a, r := x.live(e.Number, "running", phaseInspecting)
	if a.Started == nil {
		// The agent ended between the start and its receipt. How long the
		// start took is known only to be no longer than this.
		x.receiptStarted(a, x.boot().since(BootTime{BootID: a.Created.BootID, Millis: a.Created.StartTicks * millisPerTick}))
	}
	r.enter(phaseRunning)
	x.effect(WatchEffect{Number: a.Number})
	x.stopIfAsked(a, r)
}

// millisPerTick: /proc gives start times in clock ticks of the user interface,
// which Linux fixes at 100 a second.
const millisPerTick = 10

func (x *stepper) receiptStarted(a *Allocation, startMillis int64) {
	c := a.Created
	x.receipt(protocol.KindStarted, a.Number, protocol.StartedBody{
		Container: c.Container, PID: c.PID, StartTicks: c.StartTicks, BootID: c.BootID, Cgroup: c.Cgroup, Baseline: c.Baseline,
		Durations: protocol.CreateTook{CreateMillis: c.CreateMillis, StartMillis: startMillis},
	})
}

func (x *stepper) stopIfAsked(a *Allocation, r *run) {
	if a.Retire != nil {
		r.enter(phaseStopping)
		x.effect(StopEffect{Number: a.Number, Kill: a.Retire.Reason == protocol.ReasonOOM})
	}
}

// workOOM publishes a kill while the container lives. Without the kernel's
// group kill (cgroup v1) the agent ends what kill-group says must not live on.
func (x *stepper) workOOM(e WorkOOM) {
	a, r := x.live(e.Number, "oom", phaseRunning, phaseStopping)
	if suppressed, ok := r.oom.admit(x.now.BootMillis, a.OOMReceipts); ok {
		x.receipt(protocol.KindOOMObserved, a.Number, protocol.OOMObservedBody{Counters: e.Counters, Suppressed: suppressed})
	}
	if x.v.CgroupMode == protocol.CgroupV1 && a.Profile.Lifecycle.OOM == profiles.OOMKillGroup && r.phase == phaseRunning {
		x.intendRetire(a, RetireBody{Reason: protocol.ReasonOOM})
		r.enter(phaseStopping)
		x.effect(StopEffect{Number: a.Number, Kill: true})
	}
}

func (x *stepper) workExited(e WorkExited) {
	a, r := x.live(e.Number, "exited", phaseInspecting, phaseRunning, phaseStopping)
	x.unstick(a, r)
	reason := protocol.ReasonExited
	if e.Body.OOM.Verdict == protocol.VerdictKilled && a.Profile.Lifecycle.OOM == profiles.OOMKillGroup {
		reason = protocol.ReasonOOM
	}
	x.intendRetire(a, RetireBody{Reason: reason})
	x.intend(intentExited, a.Number, exitedBody{})
	x.receipt(protocol.KindExited, a.Number, e.Body)
	x.remove(a, r, false)
}

// intendRetire records why an allocation is retired, unless that stands (I14).
func (x *stepper) intendRetire(a *Allocation, b RetireBody) {
	if a.Retire == nil {
		x.intend(intentRetire, a.Number, b)
	}
}

func (x *stepper) remove(a *Allocation, r *run, unsettled bool) {
	r.enter(phaseRemoving)
	x.effect(removeEffect(a, unsettled))
}

// workProgress shows what a worker does and, once a step has failed for long
// enough, says durably what is seen (I19).
func (x *stepper) workProgress(e WorkProgress) {
	a, r := x.s.allocations[e.Number], x.v.runs[e.Number]
	if a == nil || r == nil {
		panic(fmt.Sprintf("core: progress for number %d, which has no worker", e.Number))
	}
	r.step, r.stepError = e.Step, bound(e.Error)
	if e.Error == "" {
		// A step that begins does not end the mark: after a restart the steps
		// before the one that fails are gone through again.
		return
	}
	if e.SinceMillis < x.v.Bounds.StuckAfterMillis || r.phase == phaseCreating || r.phase == phaseStarting {
		return
	}
	if a.Stuck != nil && a.Stuck.Step == e.Step {
		return // already said
	}
	suppressed, ok := r.stuck.admit(x.now.BootMillis, a.StuckReceipts)
	if !ok {
		return
	}
	r.stuckFrom = x.now.BootMillis - e.SinceMillis
	x.receipt(protocol.KindStuck, a.Number, protocol.StuckBody{
		Step: e.Step, ProcessState: e.ProcessState, WaitChannel: bound(e.WaitChannel), Detail: bound(e.Error),
		SinceMillis: e.SinceMillis, Suppressed: suppressed,
	})
}

// unstick withdraws the mark once what was waited for has happened.
func (x *stepper) unstick(a *Allocation, r *run) {
	if a.Stuck == nil {
		return
	}
	stuck := a.Stuck.SinceMillis
	if r.stuckFrom != 0 {
		stuck = x.now.BootMillis - r.stuckFrom
	}
	x.receipt(protocol.KindUnstuck, a.Number, protocol.UnstuckBody{StuckMillis: stuck})
	r.stuckFrom = 0
}

// allAbsent is the removal of an allocation that never had anything.
var allAbsent = protocol.Removal{
	Task: protocol.RemovedAbsent, Container: protocol.RemovedAbsent, Snapshot: protocol.RemovedAbsent,
	Cgroup: protocol.RemovedAbsent, LogSink: protocol.RemovedAbsent, Devices: protocol.RemovedAbsent,
}

// nothingRead is the OOM fact of an allocation whose counters were never read:
// not even that nothing was killed is claimed (I22).
var nothingRead = protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone}

// retired writes the receipt that proves the end (I16).
func (x *stepper) retired(a *Allocation, removal protocol.Removal) {
	b := protocol.RetiredBody{
		Dispatched: a.dispatched(), Reason: protocol.ReasonRequested, OOM: nothingRead, LogSink: protocol.LogSinkOK, Removal: removal,
	}
	if a.Retire != nil {
		b.Reason, b.RequestedBy, b.Note, b.Error = a.Retire.Reason, a.Retire.RequestedBy, a.Retire.Note, a.Retire.Error
	} else if a.Burn() {
		requestedBy := requestedByController
		b.RequestedBy = &requestedBy
	}
	if a.Created != nil {
		b.Container = &a.Created.Container
	}
	if len(a.Accepted.Devices) > 0 {
		b.Removal.Devices = protocol.RemovedByUs // by this receipt: see State.leases
	}
	from := a.RetireAt
	if a.Exited != nil {
		b.Exit, b.OOM, b.Peaks, b.LogSink = &a.Exited.Exit, a.Exited.OOM, a.Exited.Peaks, a.Exited.LogSink
		b.Durations.StopMillis = a.RetireAt.since(a.ExitedAt)
		from = a.ExitedAt
	}
	if from.BootID != "" {
		b.Durations.RemoveMillis = from.since(x.boot())
	}
	x.receipt(protocol.KindRetired, a.Number, b)
}
