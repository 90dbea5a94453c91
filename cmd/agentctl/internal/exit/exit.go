// Package exit is the closed list of agentctl's exit codes and decides which
// one an error means.
//
// It owns the mapping from the errors of both clients to codes. It must not
// print and must not know commands.
package exit

import (
	"errors"
	"net/http"

	"github.com/quittance/quittance/cmd/agentctl/internal/jobclient"
	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Code is the program's exit status.
type Code int

// The exit codes. Those from 10 on are verdicts of "jobs watch" and
// "jobs submit --wait": the command worked, the job did not.
const (
	Done        Code = 0
	Failure     Code = 1
	Usage       Code = 2
	Refused     Code = 3 // the other side said no; nothing changed
	NotFound    Code = 4
	Unavailable Code = 5 // nobody answered, or not now; nothing changed
	Unknown     Code = 6 // the effect may have happened: read before repeating

	JobFailed    Code = 10
	JobOOM       Code = 11 // failed because the kernel killed for memory
	JobCancelled Code = 12
	JobExpired   Code = 13
)

// Error carries its code.
type Error struct {
	Code Code
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// With gives err a code; nil stays nil.
func With(code Code, err error) error {
	if err == nil {
		return nil
	}
	return &Error{code, err}
}

// Reading marks err as one of a pure read: a lost answer means unavailable,
// because there is no effect that could be unknown.
func Reading(err error) error {
	_, lostHost := errors.AsType[*hostclient.LostError](err)
	_, lostJobs := errors.AsType[*jobclient.LostError](err)
	if lostHost || lostJobs {
		return With(Unavailable, err)
	}
	return err
}

// Of is the code that err means; nil is [Done].
func Of(err error) Code {
	if err == nil {
		return Done
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if p, ok := errors.AsType[*protocol.Problem](err); ok {
		return ofStatus(p.Status, p.Disposition == protocol.Unknown)
	}
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return ofStatus(p.Status, p.Effect == api.EffectUnknown)
	}
	if _, ok := errors.AsType[*hostclient.UnreachableError](err); ok {
		return Unavailable
	}
	if _, ok := errors.AsType[*hostclient.LostError](err); ok {
		return Unknown
	}
	if _, ok := errors.AsType[*jobclient.UnreachableError](err); ok {
		return Unavailable
	}
	if _, ok := errors.AsType[*jobclient.LostError](err); ok {
		return Unknown
	}
	if _, ok := errors.AsType[*protocol.DecodeError](err); ok {
		return Usage
	}
	return Failure
}

func ofStatus(status int, unknown bool) Code {
	switch {
	case unknown:
		return Unknown
	case status == http.StatusNotFound || status == http.StatusGone:
		return NotFound
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		return Unavailable
	}
	return Refused
}
