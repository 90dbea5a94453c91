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
	given, refused, err := h.allocate(ctx, req, intent)
	if refused == nil {
		return given, err
	}
	// The burn waits, for as long as it is refused, without the token.
	switch err := h.Retire(ctx, refused.generation, refused.number, req.Purpose, "settles a request whose answer was lost"); {
	case errors.Is(err, ErrNotOurs):
		return protocol.Allocation{}, errors.Join(refused.why, intent.Withdraw(context.WithoutCancel(ctx), refused.generation, refused.number))
	case err != nil:
		return protocol.Allocation{}, err
	}
	return protocol.Allocation{}, &BurntError{refused.number, refused.why}
}

// unsettledRefusal is a refusal that came after a lost send: it says nothing of
// that send, so the number has to be retired.
type unsettledRefusal struct {
	proposal
	why error
}

// allocate is [Host.Allocate] as far as it needs the token.
func (h *Host) allocate(ctx context.Context, req protocol.AllocateRequest, intent Intent) (protocol.Allocation, *unsettledRefusal, error) {
	if err := h.lockSettled(ctx); err != nil {
		return protocol.Allocation{}, nil, err
	}
	defer h.unlock()
	host, err := h.Sync(ctx)
	if err != nil {
		return protocol.Allocation{}, nil, err
	}
	if host.Frontiers.Accepted >= protocol.MaxNumber {
		return protocol.Allocation{}, nil, protocol.NewProblem(protocol.CodeExhausted, "every number of this generation was used", "make a new generation: hostagent ledger abandon")
	}
	p := proposal{host.Generation, host.Frontiers.Accepted + 1, req}
	if err := intent.Propose(ctx, p.generation, p.number); err != nil {
		return protocol.Allocation{}, nil, err
	}
	answer, err := h.client.Allocate(ctx, p.generation, p.number, req)
	if hostclient.IsCode(err, protocol.CodeWitnessRequired) {
		if err = h.PresentWitness(ctx); err == nil {
			answer, err = h.client.Allocate(ctx, p.generation, p.number, req)
		}
	}
	switch {
	case err == nil:
		h.noteAccepted(p)
		return answer.Allocation, nil, nil
	case hostclient.DispositionOf(err) == protocol.Refused:
		// The withdrawal belongs to the settled refusal, so it is finished even
		// where the caller has given up.
		return protocol.Allocation{}, nil, errors.Join(err, intent.Withdraw(context.WithoutCancel(ctx), p.generation, p.number))
	}
	h.unsettled = &p
	return h.repeatLocked(ctx, intent, err)
}

// repeatLocked sends the unsettled request again until it is answered.
func (h *Host) repeatLocked(ctx context.Context, intent Intent, cause error) (protocol.Allocation, *unsettledRefusal, error) {
	p := *h.unsettled
	pause, lost := h.pauses("allocate", p.generation, p.number, p.request.Purpose), cause
	for {
		if err := pause(ctx, lost); err != nil {
			return protocol.Allocation{}, nil, &UnknownError{"allocate", p.generation, p.number, errors.Join(cause, err)}
		}
		answer, err := h.client.Allocate(ctx, p.generation, p.number, p.request)
		if err == nil {
			h.unsettled = nil
			h.noteAccepted(p)
			return answer.Allocation, nil, nil
		}
		problem, ok := errors.AsType[*protocol.Problem](err)
		if !ok {
			lost = err
			continue
		}
		if problem.Code == protocol.CodeNumberConflict {
			h.unsettled = nil
			return protocol.Allocation{}, nil, errors.Join(problem, intent.Withdraw(context.WithoutCancel(ctx), p.generation, p.number))
		}
		return protocol.Allocation{}, &unsettledRefusal{p, errors.Join(cause, problem)}, nil
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
//
// Only a number that is not known as accepted may be burnt by the request, so
// only such a one takes the token, and for one try at a time: a burn that the
// agent refuses holds back neither other retirements nor the release of history
// that it may be waiting for.
func (h *Host) Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error {
	pause, last := h.pauses("retire", generation, n, purpose), error(nil)
	for {
		again, err := h.retireOnce(ctx, generation, n, purpose, note, last)
		if !again {
			return err
		}
		last = err
		if waitErr := pause(ctx, err); waitErr != nil {
			return &UnknownError{"retire", generation, n, errors.Join(err, waitErr)}
		}
	}
}

// retireOnce makes one try at a retirement; last is the failure of the one
// before.
func (h *Host) retireOnce(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string, last error) (again bool, err error) {
	if h.isAccepted(generation, n) {
		return h.sendRetirement(ctx, generation, n, purpose, note)
	}
	if err := h.lock(ctx); err != nil {
		if last != nil {
			err = &UnknownError{"retire", generation, n, errors.Join(last, err)}
		}
		return false, err
	}
	defer h.unlock()
	again, err = h.sendRetirement(ctx, generation, n, purpose, note)
	if p := h.unsettled; p != nil && p.generation == generation && p.number == n && settles(again, err) {
		h.unsettled = nil
	}
	return again, err
}

// settles reports whether the result of a try at a retirement settled the number.
func settles(again bool, err error) bool {
	return !again && (err == nil || errors.Is(err, ErrNotOurs) || errors.Is(err, ErrReleased) || errors.Is(err, ErrOtherGeneration))
}

// sendRetirement sends the request once. again says that err settles nothing
// and that the same request is to be sent again.
func (h *Host) sendRetirement(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) (again bool, err error) {
	_, err = h.client.Retire(ctx, generation, n, protocol.RetireRequest{Purpose: purpose, Note: note})
	if err == nil {
		return false, nil
	}
	if problem, ok := errors.AsType[*protocol.Problem](err); ok {
		switch problem.Code {
		case protocol.CodeNumberConflict:
			return false, ErrNotOurs
		case protocol.CodeReleased:
			return false, ErrReleased
		case protocol.CodeOtherGeneration:
			return false, ErrOtherGeneration
		case protocol.CodeWitnessRequired:
			_, err = h.Sync(ctx)
			if NeedsPerson(err) {
				return false, err
			}
		}
	}
	return true, err
}

// lockSettled takes the token once nothing is unsettled: what an interrupted
// [Host.Allocate] left unknown is retired before the next number may be
// proposed. Its attempt still finds and consumes it. The token is free between
// two tries.
func (h *Host) lockSettled(ctx context.Context) error {
	var pause func(context.Context, error) error
	for {
		if err := h.lock(ctx); err != nil {
			return err
		}
		if h.unsettled == nil {
			return nil
		}
		p := *h.unsettled
		again, err := h.sendRetirement(ctx, p.generation, p.number, p.request.Purpose, "settles a request whose answer was lost")
		if settles(again, err) {
			h.unsettled = nil
			return nil
		}
		h.unlock()
		if !again {
			return err
		}
		if pause == nil {
			pause = h.pauses("retire", p.generation, p.number, p.request.Purpose)
		}
		if waitErr := pause(ctx, err); waitErr != nil {
			return &UnknownError{"retire", p.generation, p.number, errors.Join(err, waitErr)}
		}
	}
}

// isAccepted reports whether the number is known as accepted. Not knowing is
// always safe.
func (h *Host) isAccepted(generation protocol.ID, n protocol.Number) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known && h.host.Generation == generation && n <= h.host.Frontiers.Accepted
}

func (h *Host) noteAccepted(p proposal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.host.Generation == p.generation {
		h.host.Frontiers.Accepted = max(h.host.Frontiers.Accepted, p.number)
	}
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
