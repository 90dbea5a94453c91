package executor

import (
	"context"
	"errors"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/outcome"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/worker"
	"github.com/quittance/quittance/protocol"
)

// limits maps the causes of the job's own limits to their codes. Only the
// limit's own timer or counter leads here.
var limits = []struct {
	cause error
	code  api.FailureCode
}{
	{errWorkTime, api.FailWorkTime},
	{errSelectionTime, api.FailSelectionTime},
	{errInputCalls, api.FailInputCalls},
	{provider.ErrUploadBytes, api.FailUploadBytes},
	{provider.ErrUploadRequests, api.FailUploadRequests},
}

var classCodes = map[worker.Class]api.FailureCode{
	worker.InvalidInput:  api.FailInvalidInput,
	worker.WorkerFailed:  api.FailWorkerFailed,
	worker.WorkerTimeout: api.FailWorkerTimeout,
	worker.WorkerLost:    api.FailWorkerLost,
	worker.WorkerOOM:     api.FailWorkerOOM,
	worker.Protocol:      api.FailProtocol,
	worker.Unavailable:   api.FailUnavailable,
}

// failed turns the end of a step into what the submitter is told. A stop, and
// a record that could not be written, are told apart from failures.
func (r *run) failed(ctx context.Context, err error) (*outcome.Result, *outcome.Failure, error) {
	if record, bad := errors.AsType[recordError](err); bad {
		return nil, nil, record.error
	}
	f := &outcome.Failure{Entered: attempt.WasEntered(r.Journal.Record()), Cause: err}
	if r.Observer.Stopped() != nil {
		f.Code = api.FailInterrupted // never chosen: Run returns the stop
		return nil, f, nil
	}
	cause := context.Cause(ctx)
	for _, limit := range limits {
		if errors.Is(err, limit.cause) || cause != nil && errors.Is(cause, limit.cause) {
			f.Code = limit.code
			return nil, f, nil
		}
	}
	if w, ok := errors.AsType[*worker.Failure](err); ok {
		f.Code, f.Detail, f.Worker = classCodes[w.Class], w.Detail, w.Evidence
		return nil, f, nil
	}
	if problem, ok := errors.AsType[*protocol.Problem](err); ok {
		f.Code, f.Detail = api.FailUnavailable, "the host refused: "+string(problem.Code)
		return nil, f, nil
	}
	if burnt, ok := errors.AsType[*host.BurntError](err); ok {
		f.Code, f.Detail = api.FailUnavailable, "the host's answer was lost"
		r.number = burnt.Number
		return nil, f, nil
	}
	// Operational failures of our own side never become the job's fault.
	f.Code, f.Detail = api.FailInterrupted, "the node could not go on"
	return nil, f, nil
}

// oomClasses are the failures that a kernel kill explains.
var oomClasses = map[api.FailureCode]bool{
	api.FailWorkerLost: true, api.FailWorkerFailed: true, api.FailUnavailable: true, api.FailProtocol: true,
}

// replaceable reports whether a failure may be followed by the one replacement
// execution: only of a pure offering, only after entry, only for what may be
// the worker's bad luck.
func (r *run) replaceable(f *outcome.Failure) bool {
	record := r.Journal.Record()
	if !r.Offering.Pure || !r.entered || len(attempt.ExecutionsOf(record)) >= attempt.OriginOf(record).MaxExecutions {
		return false
	}
	switch f.Code {
	case api.FailWorkerFailed, api.FailWorkerTimeout, api.FailWorkerLost:
		return true
	case api.FailWorkerOOM:
		return r.Offering.OnOOM != offering.OnOOMFail
	}
	return false
}

// afterFailure learns the worker's end, bounded, and names a kill for memory
// by the host's facts alone (I22). A worker that does not end by itself is
// retired: the attempt needs it no longer. It reports whether the attempt's
// number is settled: while it is not, nothing may be chosen.
func (r *run) afterFailure(f *outcome.Failure) (settled bool, err error) {
	executions := attempt.ExecutionsOf(r.Journal.Record())
	if len(executions) == 0 {
		return true, nil
	}
	last := executions[len(executions)-1]
	if last.Settlement.Settled() {
		return true, nil // the first execution's: a replacement was refused
	}
	settled, err = r.learnEnd(last, f)
	if a, known := r.facts[last.Number]; known && oomClasses[f.Code] && outcome.Killed(a) {
		f.Code, f.Detail = api.FailWorkerOOM, oomDetail(a)
	}
	return settled, err
}

func (r *run) learnEnd(e attempt.Execution, f *outcome.Failure) (settled bool, err error) {
	ctx := context.WithoutCancel(r.Observer.Context())
	settled = r.number != 0 // the allocation was accepted
	var a protocol.Allocation
	if settled {
		waited, cancel := context.WithTimeout(ctx, r.ExitWait)
		a, err = r.wait(waited, e.Number, protocol.StateExited)
		cancel()
	}
	if !settled || err != nil {
		stopping, cancel := context.WithTimeout(ctx, r.StopWait)
		defer cancel()
		err = r.Host.Retire(stopping, e.Generation, e.Number, r.Journal.Key(), string(f.Code))
		if errors.Is(err, host.ErrNotOurs) {
			return true, r.Journal.Apply(ctx, attempt.Unallocated{Generation: e.Generation, Number: e.Number})
		}
		if err == nil {
			settled = true
			a, err = r.wait(stopping, e.Number, protocol.StateExited)
		}
	}
	if err != nil {
		// The facts stay unknown; retirement, which follows, asks again.
		r.Log.Warn("the worker's end is not known yet", "attempt", r.Journal.Key(), "allocation", e.Number, "error", err)
		return settled, nil
	}
	r.facts[e.Number] = a
	return settled, nil
}

// afterSuccess takes one fresh reading of the counters; a kill inside the
// allocation is a failure where the offering says so (FR-31). Where the
// offering says so and nothing can be read of the running worker, its end says
// it: the worker has answered and is needed no longer. What is still unknown
// then is not a kill (I22).
func (r *run) afterSuccess() *outcome.Failure {
	ctx, cancel := context.WithTimeout(r.Observer.Context(), r.StopWait)
	a, err := r.wait(ctx, r.number, protocol.StateStarted)
	cancel()
	if r.Offering.FailOnOOM && (err != nil || !judged(a)) && r.Observer.Stopped() == nil {
		r.Log.Warn("no fresh reading of the counters; the worker's end is awaited", "attempt", r.Journal.Key(), "allocation", r.number, "error", err)
		if ended, endErr := r.endAnswered(); endErr == nil {
			a, err = ended, nil
		} else if err == nil {
			r.Log.Warn("the worker's end is not known yet", "attempt", r.Journal.Key(), "allocation", r.number, "error", endErr)
		} else {
			err = errors.Join(err, endErr)
		}
	}
	if err != nil {
		r.Log.Warn("whether the kernel killed for memory is not known", "attempt", r.Journal.Key(), "allocation", r.number, "error", err)
		// What was read before the work says nothing of it (I22).
		if a, known := r.facts[r.number]; known && a.OOM != nil && a.OOM.Verdict == protocol.VerdictNotKilled {
			oom := *a.OOM
			oom.Verdict = protocol.VerdictUnknown
			a.OOM = &oom
			r.facts[r.number] = a
		}
		return nil
	}
	r.facts[r.number] = a
	if r.Offering.FailOnOOM && outcome.Killed(a) {
		return &outcome.Failure{Code: api.FailWorkerOOM, Detail: oomDetail(a), Entered: true}
	}
	return nil
}

// errOther: the agent began another generation, where the number is another
// attempt's.
var errOther = errors.New("executor: the agent shows another attempt's allocation under this number")

// wait reads an allocation of this attempt. What is read of another attempt's is
// no fact of this one (I22).
func (r *run) wait(ctx context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error) {
	a, err := r.Host.Wait(ctx, n, until)
	if err == nil && (a.Number != n || a.Purpose != r.Journal.Key()) {
		return protocol.Allocation{}, errOther
	}
	return a, err
}

// judged reports whether the host's facts say if the kernel killed for memory.
func judged(a protocol.Allocation) bool {
	return a.OOM != nil && a.OOM.Verdict != protocol.VerdictUnknown
}

// endAnswered retires a worker that has answered and waits, bounded, for its
// end.
func (r *run) endAnswered() (protocol.Allocation, error) {
	executions := attempt.ExecutionsOf(r.Journal.Record())
	if len(executions) == 0 {
		return protocol.Allocation{}, errors.New("executor: the record names no allocation")
	}
	last := executions[len(executions)-1]
	ctx, cancel := context.WithTimeout(r.Observer.Context(), r.StopWait)
	defer cancel()
	if err := r.Host.Retire(ctx, last.Generation, last.Number, r.Journal.Key(), "the worker has answered"); err != nil {
		return protocol.Allocation{}, err
	}
	return r.wait(ctx, last.Number, protocol.StateExited)
}

func oomDetail(a protocol.Allocation) string {
	detail := "scope unknown"
	if a.OOM.Scope != nil {
		detail = "scope " + string(*a.OOM.Scope)
	}
	if a.Limits != nil {
		detail += ", limit " + mebibytes(a.Limits.MemoryBytes)
	}
	if a.Peaks != nil && a.Peaks.MemoryBytes != nil {
		detail += ", peak " + mebibytes(*a.Peaks.MemoryBytes)
	}
	return detail
}

var _ Observer = (*observer.Observer)(nil)
