package provider

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
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

	Status    int         // HTTP status, 0 where no head was received
	Code      api.Code    // of a well-formed problem, or ""
	RequestID string      // the service's, or ""
	Owner     protocol.ID // with identity_in_use: the attempt store that holds the identity, or ""
	Date      time.Time   // the head's Date, zero where there was none
	Expires   time.Time   // of this send's signature; zero where it was not signed

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
	if f.Owner != "" {
		fmt.Fprintf(&b, ", held by attempt store %s", f.Owner)
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

// Fields are what a log line says of an exchange that failed, as keys and
// values: operation, class and disposition. There are none of another error,
// which is not of an exchange.
func Fields(err error) []any {
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		return nil
	}
	return []any{"operation", f.Operation, "class", string(f.Class), "disposition", string(f.Disposition)}
}

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
func classifyTransport(parent, bounded context.Context, got received, err error) (Class, protocol.Disposition, bool) {
	disposition := protocol.Refused
	if got.sent {
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
	case !got.sent:
		return ClassUnreachable, protocol.Refused, true
	case got.ended || broken(err):
		return ClassLost, disposition, true
	}
	return ClassMalformed, disposition, false // what came is not HTTP
}

// broken reports whether the connection failed, as opposed to carrying
// something that is not an answer.
func broken(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &errno)
}

// transportError shows a failure below HTTP in our own words: the library's
// own texts may quote what the peer sent (I37). It still unwraps to it.
type transportError struct {
	err   error
	ended bool // the connection ended while an answer was read
}

func (e transportError) Unwrap() error { return e.err }

func (e transportError) Error() string {
	var dns *net.DNSError
	var errno syscall.Errno
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(e.err, errContract):
		return e.err.Error() // our own text throughout
	case errors.As(e.err, &dns):
		return "the service's name could not be looked up"
	case errors.As(e.err, &authority):
		return "the service's certificate is signed by an unknown authority"
	case errors.As(e.err, &name):
		return "the service's certificate is for another name"
	case errors.As(e.err, &invalid):
		return "the service's certificate is not valid now or not for a server"
	case errors.Is(e.err, errNotPeer):
		return errNotPeer.Error()
	case errors.Is(e.err, context.Canceled):
		return "stopped"
	case errors.Is(e.err, context.DeadlineExceeded), errors.Is(e.err, os.ErrDeadlineExceeded):
		return "the time is over"
	case errors.As(e.err, &errno):
		return errno.Error()
	case e.ended:
		return "the connection ended before the answer did"
	}
	return fmt.Sprintf("the answer is not one of HTTP (%T)", e.err)
}
