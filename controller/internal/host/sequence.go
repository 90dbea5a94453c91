package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Intent keeps the caller's durable record of the number that it is about to
// use. Both methods are called by the allocator while it owns the sequence.
type Intent interface {
	// Propose must not return before the intent is durable (I10).
	Propose(ctx context.Context, generation protocol.ID, n protocol.Number) error
	// Withdraw takes the intent back: the number was refused, or is somebody
	// else's, and nothing happened under it for this purpose.
	Withdraw(ctx context.Context, generation protocol.ID, n protocol.Number) error
}

// BurntError says that a number had to be retired to settle a lost request.
// It belongs to the purpose: wait for its retirement and consume it.
type BurntError struct {
	Number protocol.Number
	Cause  error // why the request was not simply repeated
}

func (e *BurntError) Error() string {
	return fmt.Sprintf("host: number %d was retired to settle a lost request: %v", e.Number, e.Cause)
}

func (e *BurntError) Unwrap() error { return e.Cause }

// Allocate asks for the next number for req.Purpose (the attempt key) and
// waits until its acceptance is settled.
//
// Errors: a *[protocol.Problem] or any other error when no number was consumed
// and the intent was withdrawn; a *[BurntError]; an *[UnknownError] when ctx
// ended before the number was settled: the intent stands, and [Host.Retire] of
// its number settles it.
func (h *Host) Allocate(ctx context.Context, req protocol.AllocateRequest, intent Intent) (protocol.Allocation, error) {
	if err := h.lock(ctx); err != nil {
		return protocol.Allocation{}, err
	}
	defer h.unlock()
	if err := h.settleLocked(ctx); err != nil {
		return protocol.Allocation{}, err
	}
	host, err := h.Sync(ctx)
	if err != nil {
		return protocol.Allocation{}, err
	}
	if host.Frontiers.Accepted >= protocol.MaxNumber {
		return protocol.Allocation{}, protocol.NewProblem(protocol.CodeExhausted, "every number of this generation was used", "make a new generation: hostagent ledger abandon")
	}
	p := proposal{host.Generation, host.Frontiers.Accepted + 1, req}
	if err := intent.Propose(ctx, p.generation, p.number); err != nil {
		return protocol.Allocation{}, err
	}
	answer, err := h.client.Allocate(ctx, p.generation, p.number, req)
	if hostclient.IsCode(err, protocol.CodeWitnessRequired) {
		if err = h.PresentWitness(ctx); err == nil {
			answer, err = h.client.Allocate(ctx, p.generation, p.number, req)
		}
	}
	switch {
	case err == nil:
		return answer.Allocation, nil
	case hostclient.DispositionOf(err) == protocol.Refused:
		// The withdrawal belongs to the settled refusal, so it is finished even
		// where the caller has given up.
		return protocol.Allocation{}, errors.Join(err, intent.Withdraw(context.WithoutCancel(ctx), p.generation, p.number))
	}
	h.unsettled = &p
	return h.repeatLocked(ctx, intent, err)
}

// repeatLocked sends the unsettled request again until it is settled. A
// refusal says nothing of the first request, so it leads to a retirement.
func (h *Host) repeatLocked(ctx context.Context, intent Intent, cause error) (protocol.Allocation, error) {
	p := *h.unsettled
	pause, lost := h.pauses("allocate", p.number), cause
	for {
		if err := pause(ctx, lost); err != nil {
			return protocol.Allocation{}, &UnknownError{"allocate", p.number, errors.Join(cause, err)}
		}
		answer, err := h.client.Allocate(ctx, p.generation, p.number, p.request)
		if err == nil {
			h.unsettled = nil
			return answer.Allocation, nil
		}
		problem, ok := errors.AsType[*protocol.Problem](err)
		if !ok {
			lost = err
			continue
		}
		if problem.Code == protocol.CodeNumberConflict {
			h.unsettled = nil
			return protocol.Allocation{}, errors.Join(problem, intent.Withdraw(context.WithoutCancel(ctx), p.generation, p.number))
		}
		if err := h.retireLocked(ctx, p.generation, p.number, p.request.Purpose, "settles a request whose answer was lost"); err != nil {
			if errors.Is(err, ErrNotOurs) {
				return protocol.Allocation{}, errors.Join(problem, intent.Withdraw(context.WithoutCancel(ctx), p.generation, p.number))
			}
			return protocol.Allocation{}, err
		}
		return protocol.Allocation{}, &BurntError{p.number, errors.Join(cause, problem)}
	}
}

// Refusals of a retirement that settle the number.
var (
	// ErrNotOurs: the number belongs to another purpose, so nothing that was
	// asked for ours ever took effect or can any more.
	ErrNotOurs = errors.New("host: the number belongs to another purpose")
	// ErrReleased: the number's history was released, so it was consumed.
	ErrReleased = errors.New("host: the number's history was released")
	// ErrOtherGeneration: the agent serves another generation; see
	// [Host.GenerationGone].
	ErrOtherGeneration = errors.New("host: the agent serves another generation")
)

// Retire asks for the retirement of an allocation, or of a number that was
// proposed and never settled, until the agent has durably taken the request or
// ctx ends (*[UnknownError]). The first reason stands; the same request again
// is the same request (I12). [ErrNotOurs], [ErrReleased] and
// [ErrOtherGeneration] are settled answers.
func (h *Host) Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	return h.retireLocked(ctx, generation, n, purpose, note)
}

func (h *Host) retireLocked(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error {
	err := h.sendRetirement(ctx, generation, n, purpose, note)
	_, unknown := errors.AsType[*UnknownError](err)
	if p := h.unsettled; p != nil && p.generation == generation && p.number == n && !unknown {
		h.unsettled = nil
	}
	return err
}

func (h *Host) sendRetirement(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error {
	pause := h.pauses("retire", n)
	for {
		_, err := h.client.Retire(ctx, generation, n, protocol.RetireRequest{Purpose: purpose, Note: note})
		if err == nil {
			return nil
		}
		if problem, ok := errors.AsType[*protocol.Problem](err); ok {
			switch problem.Code {
			case protocol.CodeNumberConflict:
				return ErrNotOurs
			case protocol.CodeReleased:
				return ErrReleased
			case protocol.CodeOtherGeneration:
				return ErrOtherGeneration
			case protocol.CodeWitnessRequired:
				_, err = h.Sync(ctx)
				if _, behind := errors.AsType[*BehindError](err); behind {
					return err
				}
			}
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return &UnknownError{"retire", n, errors.Join(err, waitErr)}
		}
	}
}

// settleLocked retires what an interrupted [Host.Allocate] left unknown, so
// that the next number may be proposed. Its attempt still finds and consumes
// it.
func (h *Host) settleLocked(ctx context.Context) error {
	if h.unsettled == nil {
		return nil
	}
	p := *h.unsettled
	err := h.retireLocked(ctx, p.generation, p.number, p.request.Purpose, "settles a request whose answer was lost")
	if errors.Is(err, ErrNotOurs) || errors.Is(err, ErrReleased) || errors.Is(err, ErrOtherGeneration) {
		return nil
	}
	return err
}

func (h *Host) lock(ctx context.Context) error {
	select {
	case h.sequence <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *Host) unlock() { <-h.sequence }
