// Package lane is one independent execution slot: it takes one attempt at a
// time through the steps of its lifecycle and nothing else until that attempt
// holds the lane no more. It owns the order of the steps and the pace between
// failed ones. It must not decide within a step or repeat one by itself.
//
//	idle ──selected──► start ──► execute ──► settle ──► retire ──► publish ──► attach ──► idle
//	  ▲                  │          │           ▲                      │
//	  │                  │          └──stop─────┘                      └──held──► waits for a person
//	  │                  └──refused──► idle
//	  └──recovered record enters at the step that its state names
package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/executor"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/publisher"
	"github.com/quittance/quittance/controller/internal/recovery"
	"github.com/quittance/quittance/controller/internal/retirement"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/starter"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// Selection is a job that admission chose for a lane.
type Selection struct {
	Job      api.FeedJob
	Offering *offering.Offering
	Profile  protocol.ProfileInfo
	Larger   *protocol.ProfileInfo // that the offering's on_oom names, where the host has it
	Agent    string                // version of the host's agent
	// Release tells admission that the job is this lane's no more, and how its
	// worker fared.
	Release func(breaker.End)
}

// Admission gives a lane its next job.
type Admission interface {
	// Next waits until a job may be started in the lane, or ctx ends.
	Next(ctx context.Context, lane int) (Selection, error)
}

// Offerings finds the offering of a recovered attempt.
type Offerings interface {
	Offering(kind string) (*offering.Offering, bool)
}

// Contexts are the ends of a lane's work, in the order in which they come.
type Contexts struct {
	Take  context.Context // ends: nothing new is taken
	Work  context.Context // ends: a running attempt is stopped
	Final context.Context // ends: what is not settled stays as its record says
}

// Lane is one lane.
type Lane struct {
	Number    int
	Admission Admission
	Offerings Offerings
	Starter   *starter.Starter
	Executor  executor.Config
	Publisher *publisher.Publisher
	Recovery  *recovery.Recovery
	Host      retirement.Host
	Observed  observer.API
	Interval  time.Duration // of observations
	Gap       time.Duration // observation gap
	Pace      retry.Policy  // pauses between failed steps; its window is not used
	Store     interface {
		Get(key string) (store.Entry, bool)
	}
	Desk *desk.Desk // nil: nobody decides
	Log  hclog.Logger
}

// Run finishes the recovered attempts, then takes jobs until c.Take ends. It
// returns nil once nothing of the lane is in flight, or the failure of the
// store, after which nothing more may be assumed.
func (l *Lane) Run(c Contexts, recovered []*journal.Attempt) error {
	if err := l.recover(c, recovered); err != nil {
		return ended(c, err)
	}
	for refused := 0; c.Take.Err() == nil; {
		selection, err := l.Admission.Next(c.Take, l.Number)
		if err != nil {
			return ended(c, err)
		}
		end, err := l.attempt(c, selection)
		selection.Release(end)
		if _, failed := errors.AsType[*store.FailedError](err); errors.Is(err, errNotBegun) && !failed {
			// Nothing was written or sent; the other lanes' attempts go on.
			refused++
			wait := l.Pace.Ceiling(refused)
			l.Log.Warn("attempt not begun", "lane", l.Number, "job", selection.Job.Job, "wait", wait, "error", err)
			select {
			case <-c.Take.Done():
			case <-time.After(wait):
			}
			continue
		}
		if err != nil {
			return ended(c, err)
		}
		refused = 0
	}
	return nil
}

// errNotBegun: the store refused the attempt's first record (full, or no disk
// space since admission looked); nothing was sent.
var errNotBegun = errors.New("the attempt was not begun")

// recover finishes every recovered attempt. They do not wait for each other: one
// that needs a person must not hold back another's outcome.
func (l *Lane) recover(c Contexts, recovered []*journal.Attempt) error {
	results := make(chan error, len(recovered))
	for _, j := range recovered {
		go func() {
			err := l.finish(c, j, recovery.Case{})
			l.discard(j, func() error { return executor.Discard(l.Executor.InputsDir, j.Key()) })
			results <- err
		}()
	}
	var all []error
	for range recovered {
		all = append(all, <-results)
	}
	return errors.Join(all...)
}

// ended drops errors that only say that a context has ended.
func ended(c Contexts, err error) error {
	if _, failed := errors.AsType[*store.FailedError](err); failed {
		return err
	}
	if c.Take.Err() != nil {
		return nil
	}
	return err
}

// worker is how an attempt's worker fared.
func worker(r executor.Result) breaker.End {
	switch {
	case !r.Chosen:
		return breaker.Neutral
	case r.Code == "":
		return breaker.Good
	case r.Code == api.FailUnavailable || r.Code == api.FailWorkerLost || r.Code == api.FailProtocol:
		return breaker.Bad
	}
	return breaker.Neutral
}

func (l *Lane) attempt(c Contexts, s Selection) (breaker.End, error) {
	executions := 1
	if s.Offering.Pure {
		executions = attempt.MaxExecutions
	}
	j, err := l.Starter.Begin(c.Work, l.Number, s.Job, executions)
	if err != nil {
		return breaker.Neutral, fmt.Errorf("lane %d: %w: %w", l.Number, errNotBegun, err)
	}
	l.Log.Info("attempt begun", "lane", l.Number, "attempt", j.Key(), "job", s.Job.Job, "kind", s.Job.Kind)
	for failed := 1; ; failed++ {
		err := l.Starter.Send(c.Work, j)
		if err == nil {
			break
		}
		asked, end := l.pause(c, j, "start", failed, err)
		if end != nil {
			j.Close()
			return breaker.Neutral, end
		}
		if asked != nil {
			asked.Settle(nil) // resume is all that is offered: START is sent again
		}
	}
	known := recovery.Case{Agent: s.Agent, Adapter: s.Offering.Adapter}
	if _, ok := j.Record().(attempt.Acknowledged); !ok {
		return breaker.Neutral, l.finish(c, j, known)
	}
	o := observer.Start(c.Work, l.Observed, observer.Options{
		Reference: j.Reference(), Interval: l.Interval, Gap: l.Gap,
		Allowed: func(state api.JobState) bool { return s.Offering.MayGoOn(offering.JobState(state)) },
		Notice: func(n observer.Notice) {
			if n.Err == nil {
				l.Log.Info("attempt observed again", "attempt", j.Key(), "tries", n.Failed)
				return
			}
			l.Log.Warn("attempt not observed", append(provider.Fields(n.Err), "attempt", j.Key(), "job", s.Job.Job, "reference", j.Reference(), "tries", n.Failed, "gap_left", n.Left, "error", n.Err)...)
		},
	})
	result, err := l.execute(executor.Job{Journal: j, Observer: o, Offering: s.Offering, Profile: s.Profile, Agent: s.Agent}, s.Larger)
	o.Close()
	if err != nil {
		// The record says what is durable; the same code as after a restart
		// settles it from there.
		l.Log.Error("attempt's run ended by its record", "attempt", j.Key(), "error", err)
	}
	known.Stop, known.Candidate, known.Facts = result.Stop, result.Candidate, result.Facts
	if known.Stop != nil {
		l.Log.Warn("attempt stops", "attempt", j.Key(), "reason", known.Stop.Reason, "error", known.Stop)
	} else if err != nil {
		known.Stop = &observer.Stop{Reason: observer.Interrupted, Cause: err}
	}
	end := worker(result)
	err = l.finish(c, j, known)
	l.discard(j, result.Discard)
	return end, err
}

// discard removes an attempt's private files where its allocations are settled;
// what a worker may still use is left to the next start.
func (l *Lane) discard(j *journal.Attempt, remove func() error) {
	if !attempt.HostSettled(j.Record()) {
		return
	}
	if err := remove(); err != nil {
		l.Log.Warn("an attempt's private files were not removed", "attempt", j.Key(), "error", err)
	}
}

// execute runs the attempt and, where the offering allows it, its one
// replacement: only after the first allocation is retired and consumed (I27).
// The first failure is reported even where the second execution succeeds.
func (l *Lane) execute(job executor.Job, larger *protocol.ProfileInfo) (executor.Result, error) {
	result, err := executor.Run(l.Executor, job)
	if err != nil || result.Failed == nil {
		return result, err
	}
	l.Log.Warn("execution failed; a replacement may follow", "attempt", job.Journal.Key(), "class", result.Failed.Code, "error", result.Failed.Cause)
	first := result
	job.Earlier = &first
	err = l.retireFirst(job, first.Facts)
	if err == nil {
		err = job.Observer.Fresh() // no new acceptance without an allowed observation
	}
	if stop := job.Observer.Stopped(); stop != nil || err != nil {
		if stop == nil {
			stop = &observer.Stop{Reason: observer.Interrupted, Cause: err}
		}
		first.Stop = stop
		return first, nil
	}
	failpoint.Hit(failpoint.LaneReplacement)
	possible := true
	for _, e := range attempt.ExecutionsOf(job.Journal.Record()) {
		possible = possible && e.Settlement == attempt.SettlementConsumed
	}
	if job.Offering.OnOOM != offering.OnOOMSame && result.Failed.Code == api.FailWorkerOOM {
		possible = possible && larger != nil
		if larger != nil {
			job.Profile = *larger
		}
	}
	if !possible {
		return executor.Conclude(l.Executor, job)
	}
	return executor.Run(l.Executor, job)
}

// retireFirst settles the first allocation before a replacement and adds its
// facts. What fails is taken up again until it is done or the attempt must stop:
// a lost answer of the host is no reason to give the replacement up. An
// allocation whose end only a person can tell is: the attempt is interrupted,
// and its end waits where that person can decide.
func (l *Lane) retireFirst(job executor.Job, facts map[protocol.Number]protocol.Allocation) error {
	ctx := job.Observer.Context()
	for failed := 1; ; failed++ {
		ends, err := retirement.Run(ctx, l.Host, job.Journal, "a replacement follows", l.Log)
		for _, end := range ends {
			if end.Allocation.Number != 0 {
				facts[end.Number] = end.Allocation
			}
		}
		_, unproved := errors.AsType[*retirement.UnprovedError](err)
		if err == nil || unproved || fatal(err) {
			return err
		}
		wait := l.Pace.Ceiling(failed)
		l.Log.Warn("a replacement waits for the first allocation's end", append(host.Fields(err), "lane", l.Number, "attempt", job.Journal.Key(), "wait", wait, "error", err)...)
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

// fatal reports whether no repetition can help: the store has failed, or our
// own program has a fault.
func fatal(err error) bool {
	if _, failed := errors.AsType[*store.FailedError](err); failed {
		return true
	}
	_, fault := errors.AsType[*attempt.TransitionError](err)
	return fault
}

// finish drives the record from whatever state it is in until it holds the
// lane no more. It is the one path of steady state and of recovery (I15).
func (l *Lane) finish(c Contexts, j *journal.Attempt, known recovery.Case) error {
	defer j.Close()
	if o, ok := l.Offerings.Offering(attempt.OriginOf(j.Record()).Kind); ok {
		known.Adapter, known.Hold = o.Adapter, o.OnRestart == offering.RestartHold
	}
	for failed := 1; ; failed++ {
		step, err := l.step(c.Final, j, known)
		if err == nil && step == "" {
			return nil
		}
		if err == nil {
			failed = 0
			continue
		}
		asked, end := l.pause(c, j, step, failed, err)
		if end != nil {
			return end
		}
		if asked != nil {
			asked.Settle(decide(context.WithoutCancel(c.Final), j, asked.Decision, &known, err))
		}
	}
}

// errHeld: a person must look at the record.
var errHeld = errors.New("somebody else acted under this attempt's identity: look at it, then run `agentctl attempts resolve`")

// step does the one thing that the record's state calls for; "" when nothing
// is left.
func (l *Lane) step(ctx context.Context, j *journal.Attempt, known recovery.Case) (string, error) {
	record := j.Record()
	switch record.(type) {
	case attempt.StartPending:
		return "start", l.Starter.Send(ctx, j)
	case attempt.Acknowledged:
		return "settle", l.Recovery.Settle(ctx, j, known)
	}
	if !attempt.HostSettled(record) {
		_, err := retirement.Run(ctx, l.Host, j, "the outcome is chosen", l.Log)
		return "retire", err
	}
	if record.State() == attempt.StateTerminalPending {
		return "publish", l.Publisher.Publish(ctx, j)
	}
	if len(attempt.ExecutionsOf(record)) > 0 && attempt.AnswerOf(record) == nil {
		return "attach", l.Publisher.Attach(ctx, j)
	}
	if entry, ok := l.Store.Get(j.Key()); ok && attempt.HoldsLane(entry.Record) {
		return "hold", errHeld
	}
	return "", nil
}

// pause waits before a failed step is taken up again, or until an operator
// decides, which the caller settles. A step that the service refused in a way
// that permits no repeat is not taken up again by itself. It returns an error
// when the lane must end: the store has failed, or what is not settled stays.
func (l *Lane) pause(c Contexts, j *journal.Attempt, step string, failed int, err error) (*desk.Request, error) {
	if fatal(err) {
		return nil, err
	}
	now, wait := time.Now(), l.Pace.Ceiling(failed)
	again, until := time.After(wait), protocol.TimestampOf(now.Add(wait))
	notice := []any{"lane", l.Number, "attempt", j.Key(), "job", attempt.OriginOf(j.Record()).Job, "reference", j.Reference(), "state", j.Record().State(), "step", step, "error", err}
	if effect := host.Fields(err); effect != nil {
		notice = append(effect, notice...)
	} else {
		notice = append(provider.Fields(err), notice...)
	}
	held := permitsNoRepeat(err)
	if held {
		again, until = nil, 0
	}
	switch {
	case c.Final.Err() != nil:
	case held:
		l.Log.Error("lane is held: nothing is sent again before the cause is mended and `agentctl attempts resume` or a restart", notice...)
	default:
		l.Log.Warn("lane is held", append(notice, "wait", wait)...)
	}
	var stopped <-chan struct{} // nothing runs yet; a restart replays START
	if step == "start" {
		stopped = c.Work.Done()
	}
	if step == "start" && c.Work.Err() != nil {
		return nil, errors.Join(context.Cause(c.Work), err)
	}
	place := l.Desk.Wait(j.Key(), desk.Waiting{
		Step: step, Reason: err.Error(), Since: protocol.TimestampOf(now), Until: until, Offers: offers(err),
	})
	defer place.Leave()
	select {
	case <-c.Final.Done():
		return nil, errors.Join(context.Cause(c.Final), err)
	case <-stopped:
		return nil, errors.Join(context.Cause(c.Work), err)
	case <-again:
		return nil, nil
	case asked := <-place.Decisions():
		return &asked, nil
	}
}

// permitsNoRepeat reports whether the step ended with an answer after which the
// same request is never sent again by itself: the peer is not the service, it
// does not accept who we are, or it answers what nobody asked. A missing hello
// is mended by the next one.
func permitsNoRepeat(err error) bool {
	end, ok := errors.AsType[*retry.Error](err)
	if !ok || end.Cause != retry.CauseFinal {
		return false
	}
	f, ok := errors.AsType[*provider.Failure](end.Latest)
	if !ok || f.Repeat || f.Code == api.CodeHelloRequired {
		return false
	}
	switch f.Class {
	case provider.ClassRefused, provider.ClassTLS, provider.ClassTopology, provider.ClassMalformed, provider.ClassMismatch:
		return true
	}
	return false
}
