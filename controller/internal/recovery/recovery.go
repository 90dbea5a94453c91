// Package recovery settles an admitted attempt that will not execute any
// further: after a stop and after a restart alike (I15). The worker's end comes
// first, then a fresh reading of the attempt, then the one outcome that is left.
// It never makes anything run (I27). It must not publish.
//
//	reading of the attempt   candidate   record becomes
//	in progress              –           TerminalPending, FAIL cancelled or interrupted
//	in progress              yes         TerminalPending, FAIL, the candidate beside it
//	over or not visible      –           Ended
//	over or not visible      yes         Suppressed
package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/observer"
	"github.com/quittance/quittance/controller/internal/outcome"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retirement"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/controller/internal/starter"
	"github.com/quittance/quittance/protocol"
)

// API is what this package needs of the job service.
type API interface {
	Attempt(ctx context.Context, reference string) (observer.Reading, error)
}

// Journal is the attempt's record.
type Journal interface {
	Key() string
	Record() attempt.Record
	Apply(ctx context.Context, event attempt.Event) error
}

// Recovery settles attempts. It may be used by every lane.
type Recovery struct {
	API        API
	Host       retirement.Host
	Reads      retry.Policy
	Log        hclog.Logger
	Controller string // version
}

// Case is what is known of the attempt beside its record.
type Case struct {
	Agent     string // version of the host's agent, "" where unknown
	Adapter   string
	Stop      *observer.Stop // nil after a restart
	Candidate *attempt.Outcome
	Facts     map[protocol.Number]protocol.Allocation // nil after a restart
	// Hold keeps an attempt that was entered before a restart for a person.
	Hold bool
}

// ErrHold: the offering says that a person decides about this attempt.
var ErrHold = errors.New("recovery: execution was entered before a restart and the offering says hold; a person decides: `agentctl attempts resume` or `resolve`")

// Settle brings an Acknowledged record to its end. An error leaves it
// Acknowledged, with whatever was learned of its allocations written down; the
// same call goes on from there.
func (r *Recovery) Settle(ctx context.Context, j Journal, c Case) error {
	record, ok := j.Record().(attempt.Acknowledged)
	if !ok {
		return nil
	}
	if c.Facts == nil {
		c.Facts = map[protocol.Number]protocol.Allocation{}
	}
	ends, err := retirement.Run(ctx, r.Host, j, "the attempt stops", r.Log)
	for _, end := range ends {
		if end.Allocation.Number != 0 {
			c.Facts[end.Number] = end.Allocation
		}
	}
	if err != nil {
		return fmt.Errorf("recovery: %w", err)
	}
	if c.Hold && c.Stop == nil && attempt.WasEntered(record) {
		return ErrHold
	}
	reading, err := r.read(ctx, j.Key(), record.Admission.Reference)
	if err != nil {
		return fmt.Errorf("recovery: %w", err)
	}
	event, err := r.decide(j.Record(), c, reading)
	if err != nil {
		return err
	}
	// What was decided on a settled reading is written to its end.
	return j.Apply(context.WithoutCancel(ctx), event)
}

func (r *Recovery) read(ctx context.Context, key, reference string) (reading observer.Reading, err error) {
	err = r.Reads.Do(ctx, func(ctx context.Context) (err error) {
		reading, err = r.API.Attempt(ctx, reference)
		return err
	}, provider.Repeatable, func(n retry.Notice) {
		r.Log.Warn("attempt not readable", append(provider.Fields(n.Err), "attempt", key, "reference", reference, "tries", n.Tries, "wait", n.Wait, "error", n.Err)...)
	})
	return reading, err
}

// decide is pure: the table of the package comment.
func (r *Recovery) decide(record attempt.Record, c Case, reading observer.Reading) (attempt.Event, error) {
	at := protocol.TimestampOf(time.Now())
	admission, _ := attempt.AdmissionOf(record)
	origin := outcome.Origin{
		Reference: admission.Reference, Controller: r.Controller, Agent: c.Agent, Adapter: c.Adapter,
		Executions: attempt.ExecutionsOf(record), Facts: c.Facts,
	}
	failure := outcome.Failure{Code: api.FailInterrupted, Entered: attempt.WasEntered(record)}
	switch {
	case reading.JobState == api.JobCancelled:
		failure.Code = api.FailCancelled
	case c.Stop == nil:
		failure.Detail = "the controller was restarted"
	default:
		failure.Detail, failure.Cause = string(c.Stop.Reason), c.Stop
	}
	var candidate *attempt.Candidate
	if c.Candidate != nil {
		candidate = &attempt.Candidate{Operation: c.Candidate.Operation, Body: c.Candidate.Body}
	}
	if reading.Visible && reading.State == api.AttemptInProgress {
		chosen, err := outcome.Fail(origin, failure, candidate)
		if err != nil {
			return nil, err
		}
		return attempt.OutcomeChosen{Outcome: chosen, At: at}, nil
	}
	reason := endOf(reading)
	if candidate != nil && attempt.WasEntered(record) {
		return attempt.CandidateSuppressed{Candidate: *candidate, Evidence: outcome.Evidence(origin, &failure), Why: reason, Reply: reading.Reply, At: at}, nil
	}
	return attempt.Over{Reason: reason, Reply: reading.Reply, At: at}, nil
}

func endOf(reading observer.Reading) attempt.EndReason {
	switch {
	case !reading.Visible:
		return attempt.EndNotVisible
	case reading.JobState == api.JobCancelled:
		return attempt.EndCancelled
	}
	return starter.EndOf(reading.State)
}
