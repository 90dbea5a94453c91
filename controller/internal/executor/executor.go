// Package executor takes an admitted attempt to its outcome: input, allocation,
// readiness, preparation, entry, execution, choice. It owns these steps' order
// and what each failure becomes. It must not know START, retirement or
// publication, and it never runs an attempt whose entry was written before.
//
//	admitted ─► input ─► allocation ─► ready ─► prepared ─► entered ─► executed ─► chosen
//	   │          │           │          │          │           │          │
//	   └──────────┴───────────┴──────────┴──────────┴───────────┴──────────┴─► failed ─► chosen (FAIL)
//	                                                                        └─► stopped (nothing chosen)
package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/outcome"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/worker"
	"github.com/quittance/quittance/protocol"
)

// API is what this package needs of the job service.
type API interface {
	Input(ctx context.Context, job string, want api.Identity) (api.Input, error)
	Uploads(ctx context.Context, job string) (api.Uploads, error)
	Grant(ctx context.Context, job string, member api.UploadMember, reference string) (api.Grant, error)
	Fetch(ctx context.Context, grant api.Grant, dir string, budget *provider.Budget) (*provider.PrivateFile, error)
}

// Host is what this package needs of the node's agent.
type Host interface {
	Allocate(ctx context.Context, req protocol.AllocateRequest, intent host.Intent) (protocol.Allocation, error)
	Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error
	Wait(ctx context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error)
	Channel(ctx context.Context, n protocol.Number, purpose string) (net.Conn, error)
}

// Journal is the attempt's record.
type Journal interface {
	Key() string
	Record() attempt.Record
	Apply(ctx context.Context, event attempt.Event) error
}

// Observer is the attempt's observer.
type Observer interface {
	Context() context.Context
	Stopped() *observer.Stop
	Fresh() error
	Enter(phase api.Phase) error
	Report(condition api.Condition) error
	Do(ctx context.Context, effect func(ctx context.Context) error) error
}

// Config is what does not change from attempt to attempt.
type Config struct {
	API        API
	Host       Host
	Log        hclog.Logger
	InputsDir  string        // private files of inputs, mode 0700
	Reads      retry.Policy  // of reads of the job service
	Capacity   retry.Policy  // of allocations refused for want of room
	ExitWait   time.Duration // for the host's exited after a loss or failure, before retirement is asked
	StopWait   time.Duration // for the worker's end once retirement is asked
	Controller string        // version
}

// Job is one attempt's work.
type Job struct {
	Journal  Journal
	Observer Observer
	Offering *offering.Offering
	Profile  protocol.ProfileInfo // as admission read it, or a larger one for a replacement
	Agent    string               // version of the host's agent
	// Earlier is the first run's result where this is the replacement execution.
	Earlier *Result
}

// Result is how a run ended without a fatal error.
type Result struct {
	// Chosen says that the outcome was written: COMPLETE where Code is "".
	Chosen bool
	Code   api.FailureCode
	// Stop is set where nothing was chosen because the attempt must stop.
	Stop *observer.Stop
	// Candidate is an outcome that had been reached and may not be published
	// any more; nil where there was none.
	Candidate *attempt.Outcome
	// Failed is set where nothing was chosen because the offering allows a
	// replacement execution: retire and consume the first allocation, then run
	// again with this result as Earlier, or [Conclude] with the failure.
	Failed *outcome.Failure
	// Facts are the host's views of the attempt's allocations.
	Facts map[protocol.Number]protocol.Allocation
	// Discard removes the attempt's private files; call it once the allocation
	// is retired. Never nil.
	Discard func() error

	input worker.Input // frozen for a replacement
	began time.Time    // the job's work_time counts from here, a replacement included
}

// run is one attempt in progress. It belongs to the goroutine of Run.
type run struct {
	Config
	Job
	input   worker.Input
	discard []func() error
	number  protocol.Number
	facts   map[protocol.Number]protocol.Allocation
	entered bool
	began   time.Time
}

// Run takes the attempt to a chosen outcome (the record is then TerminalPending)
// or to a stop. An error means that a record could not be written: nothing may
// be assumed of the attempt but what the record says.
func Run(cfg Config, job Job) (Result, error) {
	r := newRun(cfg, job)
	done, failure, err := r.work()
	result := r.result()
	if err != nil {
		return result, err
	}
	if failure == nil {
		failure = r.afterSuccess()
	} else if r.Observer.Stopped() == nil {
		settled, err := r.afterFailure(failure)
		if err != nil {
			return result, err
		}
		if !settled {
			// Recovery settles the number first, however long that takes.
			result.Stop = &observer.Stop{Reason: observer.Interrupted, Cause: failure.Cause}
			return result, nil
		}
	}
	if stop := r.Observer.Stopped(); stop != nil && failure != nil {
		result.Stop = stop
		return result, nil
	}
	if failure != nil && r.replaceable(failure) {
		result.Failed = failure
		return result, r.Journal.Apply(context.WithoutCancel(r.Observer.Context()), attempt.ExecutionFailed{Class: string(failure.Code)})
	}
	return r.choose(result, done, failure)
}

// Conclude chooses FAIL for a run whose replacement is not possible.
func Conclude(cfg Config, job Job) (Result, error) {
	r := newRun(cfg, job)
	failure := *job.Earlier.Failed
	return r.choose(r.result(), nil, &failure)
}

func newRun(cfg Config, job Job) *run {
	r := &run{Config: cfg, Job: job, facts: map[protocol.Number]protocol.Allocation{}, began: time.Now()}
	if job.Earlier != nil {
		r.input, r.began = job.Earlier.input, job.Earlier.began
		maps.Copy(r.facts, job.Earlier.Facts)
		r.discard = append(r.discard, job.Earlier.Discard)
	}
	return r
}

func (r *run) result() Result {
	return Result{Facts: r.facts, Discard: r.discardAll, input: r.input, began: r.began}
}

// choose writes the one outcome, after a last allowed observation.
func (r *run) choose(result Result, done *outcome.Result, failure *outcome.Failure) (Result, error) {
	var chosen attempt.Outcome
	var err error
	if failure != nil {
		chosen, err = outcome.Fail(r.origin(), *failure, nil)
	} else {
		chosen, err = outcome.Complete(r.origin(), *done)
	}
	if err != nil {
		return result, err
	}
	if err := r.Observer.Fresh(); err != nil {
		if stop := r.Observer.Stopped(); stop != nil {
			result.Stop, result.Candidate = stop, &chosen
			return result, nil
		}
		return result, err
	}
	failpoint.Hit(failpoint.ExecutorOutcome)
	// The choice is written to its end: a stop that comes now comes after it.
	if err := r.Journal.Apply(context.WithoutCancel(r.Observer.Context()), attempt.OutcomeChosen{Outcome: chosen, At: now()}); err != nil {
		return result, err
	}
	result.Chosen = true
	if failure != nil {
		result.Code = failure.Code
	}
	return result, nil
}

func now() protocol.Timestamp { return protocol.TimestampOf(time.Now()) }

func (r *run) discardAll() error {
	var all []error
	for _, f := range r.discard {
		all = append(all, f())
	}
	return errors.Join(all...)
}

func (r *run) origin() outcome.Origin {
	record := r.Journal.Record()
	admission, _ := attempt.AdmissionOf(record)
	o := outcome.Origin{
		Reference: admission.Reference, Controller: r.Controller, Agent: r.Agent, Adapter: r.Offering.Adapter,
		Executions: attempt.ExecutionsOf(record), Facts: r.facts,
	}
	if r.input.SHA256 != "" {
		o.Input = &r.input.SHA256
	}
	return o
}

// errWorkTime is the cause of the job's work_time limit's own timer.
var errWorkTime = errors.New("the job's limit on work is reached")

// work goes through the steps up to the worker's answer. A failure is what the
// submitter will be told; an error is fatal for this attempt's run.
func (r *run) work() (*outcome.Result, *outcome.Failure, error) {
	ctx := r.Observer.Context()
	if limit := r.Offering.Limits.WorkTime; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.began.Add(limit), errWorkTime)
		defer cancel()
	}
	// A replacement gets the same frozen bytes.
	if r.Earlier == nil {
		if err := r.fetchInput(ctx); err != nil {
			return r.failed(ctx, err)
		}
	}
	allocation, err := r.allocate(ctx)
	if err != nil {
		return r.failed(ctx, err)
	}
	adapter := worker.New(r.Offering, r.dialer(), r.Journal.Key())
	defer adapter.Close()
	if err := worker.Ready(ctx, r.dialer(), r.Profile.Ready, r.report); err != nil {
		return r.failed(ctx, err)
	}
	handle, err := adapter.Prepare(ctx, r.input, r.report)
	if err != nil {
		return r.failed(ctx, err)
	}
	if err := r.enter(ctx, handle, allocation); err != nil {
		return r.failed(ctx, err)
	}
	failpoint.Hit(failpoint.ExecutorEntered)
	answer, err := adapter.Execute(ctx, handle, r.report)
	if err != nil {
		return r.failed(ctx, err)
	}
	failpoint.Hit(failpoint.ExecutorAnswered)
	if answer.Warnings > 0 {
		r.Log.Warn("the worker warned beside its answer", "attempt", r.Journal.Key(), "allocation", r.number, "warnings", answer.Warnings)
	}
	result := &outcome.Result{Schema: answer.ContentType, Data: answer.Body, Request: handle.Digest}
	for _, c := range answer.Claims {
		result.Claimed = append(result.Claimed, api.Claim{Name: c.Name, Value: c.Value})
	}
	return result, nil, nil
}

func (r *run) report(_ context.Context, condition string) error {
	return r.Observer.Report(api.Condition(condition))
}

// enter writes the entry between an acknowledged heartbeat and a fresh allowed
// reading (I27).
func (r *run) enter(ctx context.Context, handle worker.Handle, a protocol.Allocation) error {
	prepared := attempt.Preparation{PreparedSHA256: handle.Digest, ImageDigest: r.Profile.ImageDigest, SpecDigest: a.Container.SpecDigest}
	if err := r.apply(ctx, attempt.Prepared{Preparation: prepared}); err != nil {
		return err
	}
	if err := r.Observer.Enter(api.PhaseRunning); err != nil {
		return err
	}
	if err := r.apply(ctx, attempt.Entered{At: now()}); err != nil {
		return err
	}
	r.entered = true
	return r.Observer.Fresh()
}

// recordError marks a failure to write the record, which ends the run.
type recordError struct{ error }

func (e recordError) Unwrap() error { return e.error }

func (r *run) apply(ctx context.Context, event attempt.Event) error {
	err := r.Journal.Apply(ctx, event)
	if err != nil && context.Cause(ctx) == nil {
		return recordError{err}
	}
	return err
}

// Propose implements [host.Intent].
func (r *run) Propose(ctx context.Context, generation protocol.ID, n protocol.Number) error {
	if err := r.apply(ctx, attempt.Allocated{Generation: generation, Number: n, Profile: r.Profile.Name, ProfileDigest: r.Profile.Digest}); err != nil {
		return err
	}
	failpoint.Hit(failpoint.ExecutorProposed)
	return nil
}

// Withdraw implements [host.Intent].
func (r *run) Withdraw(ctx context.Context, generation protocol.ID, n protocol.Number) error {
	if err := r.Journal.Apply(ctx, attempt.Unallocated{Generation: generation, Number: n}); err != nil {
		return recordError{err}
	}
	return nil
}

// roomCodes are refusals that may pass by themselves.
var roomCodes = map[protocol.Code]api.Condition{
	protocol.CodeCapacity:          api.ConditionWaitingForCapacity,
	protocol.CodeBudget:            api.ConditionWaitingForCapacity,
	protocol.CodeHistoryFull:       api.ConditionWaitingForCapacity,
	protocol.CodeDeviceUnavailable: api.ConditionWaitingForDevice,
	protocol.CodeEngineUnavailable: api.ConditionWaitingForCapacity,
	protocol.CodeNumberConflict:    api.ConditionWaitingForCapacity,
	protocol.CodeSequenceGap:       api.ConditionWaitingForCapacity,
}

func (r *run) allocate(ctx context.Context) (protocol.Allocation, error) {
	request := protocol.AllocateRequest{Profile: r.Profile.Name, ProfileDigest: r.Profile.Digest, Purpose: r.Journal.Key()}
	var a protocol.Allocation
	err := r.Capacity.Do(ctx, func(ctx context.Context) (err error) {
		a, err = r.Host.Allocate(ctx, request, r)
		return err
	}, func(err error) bool {
		if _, bad := errors.AsType[recordError](err); bad {
			return false
		}
		problem, refused := errors.AsType[*protocol.Problem](err)
		if !refused {
			return false
		}
		condition, passes := roomCodes[problem.Code]
		return passes && r.Observer.Report(condition) == nil
	}, func(n retry.Notice) {
		r.Log.Info("allocation refused", "attempt", r.Journal.Key(), "tries", n.Tries, "wait", n.Wait, "error", n.Err)
	})
	if err != nil {
		return a, err
	}
	r.number = a.Number
	failpoint.Hit(failpoint.ExecutorAllocated)
	if err := r.Observer.Report(api.ConditionStartingWorker); err != nil {
		return a, err
	}
	if a, err = r.wait(ctx, a.Number, protocol.StateStarted); err != nil {
		return a, err
	}
	r.facts[a.Number] = a
	if a.State != protocol.StateStarted || a.Container == nil {
		return a, notStarted(a)
	}
	return a, nil
}

// notStarted says why an allocation that has passed started does not run.
func notStarted(a protocol.Allocation) error {
	f := &worker.Failure{Class: worker.Unavailable, Detail: "the worker's container did not start"}
	switch {
	case a.Exit != nil:
		f.Detail = "the worker ended before it was ready"
	case a.Reason != nil && *a.Reason != protocol.ReasonSetupFailed:
		f.Detail = "the worker was retired before it was ready: " + string(*a.Reason)
	}
	f.Cause = fmt.Errorf("allocation %d is %s; step %q: %s", a.Number, a.State, a.Step, a.StepError)
	return f
}

// dialer opens channels of the run's allocation.
func (r *run) dialer() worker.Dialer { return dialer{r.Host, r.number, r.Journal.Key()} }

type dialer struct {
	host    Host
	number  protocol.Number
	purpose string
}

// Channel implements [worker.Dialer].
func (d dialer) Channel(ctx context.Context) (net.Conn, error) {
	conn, err := d.host.Channel(ctx, d.number, d.purpose)
	problem, refused := errors.AsType[*protocol.Problem](err)
	if !refused {
		return conn, err
	}
	switch problem.Code {
	case protocol.CodeNotConnectable:
		return nil, errors.Join(worker.ErrNotConnectable, err)
	case protocol.CodeExited, protocol.CodeRetiring, protocol.CodeReleased, protocol.CodeNotFound:
		return nil, errors.Join(worker.ErrGone, err)
	}
	return nil, fmt.Errorf("channel: %w", err)
}
