// Package observer watches one attempt from its admission to its outcome: it
// heartbeats, reads the attempt, and decides from the readings alone whether
// the attempt may go on. It owns the observation gap and the order of the
// attempt's API effects. It must not know workers, hosts or records.
//
// # States
//
//	allowed ──reading shows it over, or its job in a state not permitted──► stopped
//	   │                                                                      ▲
//	   └── no reading and heartbeat succeeded for longer than the gap ────────┘
//
// Stopped is final: the observer's context ends with a *[Stop] as its cause and
// nothing makes it allowed again.
package observer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
)

// API is what this package needs of the job service.
type API interface {
	Attempt(ctx context.Context, reference string) (Reading, error)
	Progress(ctx context.Context, reference string, phase api.Phase, condition *api.Condition) error
}

// Reading is a fresh state of the attempt with the reply that showed it. A
// service that does not know the attempt is a Reading with Visible false.
type Reading struct {
	Visible  bool
	State    api.AttemptState
	JobState api.JobState
	Reply    attempt.Reply
}

// Reason says why an attempt must stop.
type Reason string

// The reasons.
const (
	Cancelled   Reason = "cancelled"   // the job was cancelled
	NotAllowed  Reason = "not_allowed" // the job is in a state that the offering does not permit
	Over        Reason = "over"        // the attempt is no longer in progress
	GapExpired  Reason = "gap_expired" // the service could not be observed for the whole gap
	Interrupted Reason = "interrupted" // the controller stops
)

// Stop is the cause with which an observer's context ends.
type Stop struct {
	Reason Reason
	Last   *Reading // that showed it; nil for gap_expired and interrupted
	Cause  error    // the first failure of the gap, or the controller's own stop
}

func (s *Stop) Error() string {
	if s.Cause != nil {
		return fmt.Sprintf("stop: %s: %v", s.Reason, s.Cause)
	}
	return "stop: " + string(s.Reason)
}

func (s *Stop) Unwrap() error { return s.Cause }

// Options of an observer.
type Options struct {
	Reference string
	Allowed   func(api.JobState) bool // job states in which the attempt may go on
	Interval  time.Duration           // between two observations
	Gap       time.Duration           // longest time without a good one
	Notice    func(Notice)            // told of each failed observation and of the good one after them; nil: nobody
}

// Notice is a failed observation, or the good one after failed ones.
type Notice struct {
	Failed int           // in a row
	Left   time.Duration // of the gap
	Err    error         // nil: observed again
}

// Observer is the one observer of an attempt.
type Observer struct {
	api  API
	opts Options

	ctx    context.Context // ends with a *Stop
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the loop has returned

	effects chan struct{} // one token: whoever has it may have an API effect

	mu        sync.Mutex // guards what follows
	phase     api.Phase
	condition *api.Condition
	gap       *time.Timer // runs from the last good observation
	good      time.Time   // when that was
	failure   error       // the first failure since then
	failures  int         // since then
}

// Start observes until ctx ends or [Observer.Close] is called. The admission
// counts as the first good observation.
func Start(ctx context.Context, service API, opts Options) *Observer {
	o := &Observer{api: service, opts: opts, done: make(chan struct{}), effects: make(chan struct{}, 1), phase: api.PhasePreparing, good: time.Now()}
	if o.opts.Notice == nil {
		o.opts.Notice = func(Notice) {}
	}
	o.ctx, o.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	release := context.AfterFunc(ctx, func() {
		o.cancel(&Stop{Reason: Interrupted, Cause: context.Cause(ctx)})
	})
	o.gap = time.AfterFunc(opts.Gap, o.expire)
	go func() {
		defer close(o.done)
		defer release()
		defer o.gap.Stop()
		o.loop()
	}()
	return o
}

// Context ends with a *[Stop] as its cause when the attempt must stop.
func (o *Observer) Context() context.Context { return o.ctx }

// Stopped is the stop, or nil while the attempt may go on.
func (o *Observer) Stopped() *Stop {
	stop, _ := context.Cause(o.ctx).(*Stop)
	return stop
}

// errClosed ends the context of an observer that was closed without a stop.
var errClosed = fmt.Errorf("observer: closed")

// Close ends the observation and waits for what is in flight.
func (o *Observer) Close() {
	o.cancel(errClosed)
	<-o.done
}

func (o *Observer) loop() {
	tick := time.NewTicker(o.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return
		case <-tick.C:
		}
		// A failed observation is noted and judged by the gap alone.
		_ = o.observe()
	}
}

// expire ends the attempt at once; a read that is in flight settles after the
// worker was stopped.
func (o *Observer) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cancel(&Stop{Reason: GapExpired, Cause: o.failure})
}

// observe heartbeats and reads once.
func (o *Observer) observe() error {
	if err := o.lock(o.ctx); err != nil {
		return err
	}
	defer o.unlock()
	o.mu.Lock()
	phase, condition := o.phase, o.condition
	o.mu.Unlock()
	beat := o.api.Progress(o.ctx, o.opts.Reference, phase, condition)
	// The reading is made even after a refused heartbeat: it says why.
	reading, err := o.api.Attempt(o.ctx, o.opts.Reference)
	if err != nil {
		return o.failed(err)
	}
	if stop := o.judge(reading); stop != nil {
		o.cancel(stop)
		return stop
	}
	if beat != nil {
		return o.failed(beat)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := context.Cause(o.ctx); err != nil {
		return err // the gap ended while this was on its way
	}
	o.gap.Reset(o.opts.Gap)
	if o.failures > 0 {
		o.opts.Notice(Notice{Failed: o.failures, Left: o.opts.Gap})
	}
	o.good, o.failure, o.failures = time.Now(), nil, 0
	return nil
}

// judge is pure: what a reading means for the attempt.
func (o *Observer) judge(r Reading) *Stop {
	switch {
	case !r.Visible, r.State != api.AttemptInProgress:
		return &Stop{Reason: Over, Last: &r}
	case r.JobState == api.JobCancelled:
		return &Stop{Reason: Cancelled, Last: &r}
	case !o.opts.Allowed(r.JobState):
		return &Stop{Reason: NotAllowed, Last: &r}
	}
	return nil
}

func (o *Observer) failed(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure == nil {
		o.failure = err
	}
	if o.ctx.Err() == nil { // a stop, which is noticed as such, cuts the observation in flight
		o.failures++
		o.opts.Notice(Notice{Failed: o.failures, Left: max(0, o.opts.Gap-time.Since(o.good)), Err: err})
	}
	return err
}

// Fresh makes one observation now and returns nil if it was good. Where nothing
// was learned it tries again, until the gap ends the attempt; then, and when
// the reading itself says so, the error is a *[Stop].
func (o *Observer) Fresh() error {
	for {
		err := o.observe()
		if err == nil {
			return nil
		}
		select {
		case <-o.ctx.Done():
			return context.Cause(o.ctx)
		case <-time.After(o.opts.Interval):
		}
	}
}

// Enter sets the phase and returns once a heartbeat with it was acknowledged
// and a fresh reading allows the attempt.
func (o *Observer) Enter(phase api.Phase) error {
	o.mu.Lock()
	o.phase, o.condition = phase, nil
	o.mu.Unlock()
	return o.Fresh()
}

// Report tells the service what the attempt waits for, awaited.
func (o *Observer) Report(condition api.Condition) error {
	o.mu.Lock()
	o.condition = &condition
	o.mu.Unlock()
	return o.Fresh()
}

// Do runs another API effect of the attempt, serialised with the observer's.
func (o *Observer) Do(ctx context.Context, effect func(ctx context.Context) error) error {
	if err := o.lock(ctx); err != nil {
		return err
	}
	defer o.unlock()
	return effect(ctx)
}

func (o *Observer) lock(ctx context.Context) error {
	select {
	case o.effects <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o *Observer) unlock() { <-o.effects }
