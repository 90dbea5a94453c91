package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/quittance/quittance/protocol"
	"google.golang.org/grpc/status"
)

// EffectError is the failure of an effect on one container.
type EffectError struct {
	Op          string // what was tried, for people
	ID          string // the container's identifier
	Disposition protocol.Disposition
	Err         error
}

// Error names operation, container and disposition: whoever reads it in a log
// must see whether the effect may have happened (I11).
func (e *EffectError) Error() string {
	return fmt.Sprintf("%s %s: %s (%s)", e.Op, e.ID, e.Err, e.Disposition)
}

func (e *EffectError) Unwrap() error { return e.Err }

// DispositionOf says what became of an effect that returned err: done (nil),
// refused or unknown. An error of unknown origin is unknown.
func DispositionOf(err error) protocol.Disposition {
	if err == nil {
		return protocol.Done
	}
	if effect, ok := errors.AsType[*EffectError](err); ok {
		return effect.Disposition
	}
	return protocol.Unknown
}

// failed classifies an error of one remote call as the failure of an effect.
func failed(op, id string, err error) error {
	err = native(err)
	return &EffectError{Op: op, ID: id, Disposition: disposition(err), Err: err}
}

// refused is a failure that certainly had no effect.
func refused(op, id string, err error) error {
	return &EffectError{Op: op, ID: id, Disposition: protocol.Refused, Err: err}
}

// disposition of a single remote call: without the daemon's own answer nobody
// knows whether it acted.
func disposition(err error) protocol.Disposition {
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return protocol.Unknown
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNoTask), errors.Is(err, ErrExists), errors.Is(err, ErrOther),
		errors.Is(err, ErrRunning), errors.Is(err, ErrImage):
		return protocol.Refused
	case errdefs.IsNotFound(err), errdefs.IsAlreadyExists(err), errdefs.IsInvalidArgument(err),
		errdefs.IsFailedPrecondition(err), errdefs.IsPermissionDenied(err), errdefs.IsNotImplemented(err):
		return protocol.Refused
	}
	return protocol.Unknown
}

// native turns an error of the transport into one that can be told apart. The
// daemon's silence always wraps [ErrUnavailable]; the context's own end is kept.
func native(err error) error {
	if err == nil {
		return nil
	}
	// Much of the client library translates by itself; an error that is not of
	// the transport would lose its identity in a second translation.
	if _, ok := status.FromError(err); ok {
		err = errgrpc.ToNative(err)
	}
	if errdefs.IsUnavailable(err) && !errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// The daemon runs into the same deadline as we do, a moment earlier or later,
	// and what it then says is a text of the class unknown.
	for _, over := range []error{context.DeadlineExceeded, context.Canceled} {
		text := strings.TrimSuffix(err.Error(), ": "+errdefs.ErrUnknown.Error())
		if errdefs.IsUnknown(err) && !errors.Is(err, over) && strings.HasSuffix(text, over.Error()) {
			return fmt.Errorf("%w: %w", over, err)
		}
	}
	return err
}

// IsUnavailable reports whether nothing was learnt because containerd does not
// answer, or not in time.
func IsUnavailable(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
