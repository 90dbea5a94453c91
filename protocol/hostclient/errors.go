package hostclient

import (
	"errors"
	"fmt"

	"github.com/quittance/quittance/protocol"
)

// UnreachableError means that nothing was sent: the agent is not listening, or
// the caller's context ended before a connection was there.
type UnreachableError struct {
	Op  string // "PUT allocations/7"
	Err error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("%s: hostagent cannot be reached (is it running, and may this user open its socket?): %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// LostError means that the request was sent and that its effect is unknown: the
// answer did not come, broke off, was malformed, or said itself that it does not
// know. Read the truth before anything else. For a read it only means that
// nothing was learned.
type LostError struct {
	Op  string
	Err error
	// Problem is the agent's own answer of disposition unknown; else nil. It is
	// not part of the error chain, so that it is never taken for a refusal.
	Problem *protocol.Problem
}

func (e *LostError) Error() string {
	if e.Problem != nil {
		return fmt.Sprintf("%s: effect unknown: %v", e.Op, e.Problem)
	}
	return fmt.Sprintf("%s: effect unknown: %v", e.Op, e.Err)
}

// Unwrap returns the cause, nil where the agent answered.
func (e *LostError) Unwrap() error { return e.Err }

// errFirstByte is the cause of a lost answer that never began.
var errFirstByte = errors.New("no answer began in time")

// errBody is the cause of a lost answer that began and never ended.
var errBody = errors.New("answer did not arrive whole in time")

// DispositionOf says what is known of the effect of the request that returned
// err: done for nil, unknown for a lost answer and for every error that is not
// of this package's making, refused otherwise.
func DispositionOf(err error) protocol.Disposition {
	if err == nil {
		return protocol.Done
	}
	if _, ok := errors.AsType[*LostError](err); ok {
		return protocol.Unknown
	}
	if _, ok := errors.AsType[*UnreachableError](err); ok {
		return protocol.Refused
	}
	if _, ok := errors.AsType[*protocol.DecodeError](err); ok {
		return protocol.Refused
	}
	if p, ok := errors.AsType[*protocol.Problem](err); ok {
		return p.Disposition
	}
	return protocol.Unknown
}

// IsCode reports whether err is a refusal with the given code.
func IsCode(err error, code protocol.Code) bool {
	p, ok := errors.AsType[*protocol.Problem](err)
	return ok && p.Code == code
}
