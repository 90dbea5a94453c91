package provider

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Class names what ended an exchange without success; see the package
// comment's table.
type Class string

// The classes.
const (
	ClassNotSent     Class = "not_sent"
	ClassUnreachable Class = "unreachable"
	ClassTLS         Class = "tls"
	ClassTimeout     Class = "timeout"
	ClassLost        Class = "lost"
	ClassStopped     Class = "stopped"
	ClassUnavailable Class = "unavailable"
	ClassServer      Class = "server"
	ClassClockSkew   Class = "clock_skew"
	ClassBusy        Class = "busy"
	ClassRefused     Class = "refused"
	ClassTopology    Class = "topology"
	ClassMalformed   Class = "malformed"
	ClassMismatch    Class = "mismatch"
)

// Failure is a settled exchange that did not succeed. Its text holds no text
// of the service: known codes have our own words, the original is in Reply.
type Failure struct {
	Operation   string // the route's name
	Class       Class
	Disposition protocol.Disposition
	Repeat      bool // the same request may be sent again, freshly signed

	Status    int       // HTTP status, 0 where no head was received
	Code      api.Code  // of a well-formed problem, or ""
	RequestID string    // the service's, or ""
	Date      time.Time // the head's Date, zero where there was none
	Expires   time.Time // of this send's signature; zero where it was not signed

	// Reply is the answer as received, cut at attempt.MaxReplyBytes; for
	// protected evidence only.
	Reply attempt.Reply

	Cause error // of our own side, or nil
}

func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s (%s)", f.Operation, f.Class, f.Disposition)
	if f.Status != 0 {
		fmt.Fprintf(&b, ", status %d", f.Status)
	}
	if f.Code != "" {
		fmt.Fprintf(&b, ", code %s", f.Code)
	}
	if f.RequestID != "" {
		fmt.Fprintf(&b, ", request %s", f.RequestID)
	}
	if f.Cause != nil {
		fmt.Fprintf(&b, ": %v", f.Cause)
	}
	return b.String()
}

// Unwrap is the cause of our own side.
func (f *Failure) Unwrap() error { return f.Cause }

// Repeatable reports whether err is a [*Failure] that permits a repeat; it is
// the permission that retry policies ask for.
func Repeatable(err error) bool {
	f, ok := errors.AsType[*Failure](err)
	return ok && f.Repeat
}

// StartRefused reports whether err is a START that the service refused without
// effect because the job is not to be had. It speaks of this send only (I11).
func StartRefused(err error) (*Failure, bool) {
	f, ok := errors.AsType[*Failure](err)
	if !ok || f.Class != ClassRefused {
		return nil, false
	}
	switch f.Code {
	case api.CodeJobNotOpen, api.CodeJobBusy, api.CodeAttemptLimit, api.CodeProviderLimit,
		api.CodeKindMismatch, api.CodeInputMismatch, api.CodeNotFound:
		return f, true
	}
	return nil, false
}

// RefusedForGood reports whether err is a COMPLETE or FAIL that can never
// succeed, and why (I28).
func RefusedForGood(err error) (attempt.HoldReason, *Failure, bool) {
	f, ok := errors.AsType[*Failure](err)
	if !ok || f.Class != ClassRefused {
		return "", nil, false
	}
	switch f.Code {
	case api.CodeAttemptExpired, api.CodeAttemptOver:
		return attempt.HoldExpired, f, true
	case api.CodeOppositeOutcome:
		return attempt.HoldOppositeOutcome, f, true
	case api.CodeOutcomeConflict:
		return attempt.HoldMismatch, f, true
	case api.CodeNotFound:
		return attempt.HoldNotVisible, f, true
	}
	return "", nil, false
}

// errNotPeer marks a failure of the TLS handshake or of the peer's
// certificate.
var errNotPeer = errors.New("the service did not prove its identity")

// classifyTransport classifies an exchange that got no whole answer.
// sent says whether a byte of the request was written.
func classifyTransport(parent, bounded context.Context, sent bool, err error) (Class, protocol.Disposition, bool) {
	disposition := protocol.Refused
	if sent {
		disposition = protocol.Unknown
	}
	var dns *net.DNSError
	var timeout net.Error
	var record tls.RecordHeaderError
	switch {
	case parent.Err() != nil:
		return ClassStopped, disposition, false
	case bounded.Err() != nil:
		return ClassTimeout, disposition, true
	case errors.As(err, &dns):
		return ClassUnreachable, protocol.Refused, dns.Temporary() || dns.Timeout()
	case errors.Is(err, errNotPeer), errors.As(err, &record):
		return ClassTLS, disposition, false
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, syscall.ETIMEDOUT):
		return ClassTimeout, disposition, true
	case !sent:
		return ClassUnreachable, protocol.Refused, true
	}
	return ClassLost, disposition, true
}
