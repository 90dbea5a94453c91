package lane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/journal"
	"github.com/quittance/quittance/controller/internal/recovery"
	"github.com/quittance/quittance/controller/internal/retirement"
	"github.com/quittance/quittance/protocol"
)

// What is lost by each decision, told before it is taken.
const (
	lostByTrying     = "Nothing: the step is taken up at once instead of later."
	lostByEnding     = "Whatever the worker had computed. The attempt ends as interrupted, and the submitter is told so."
	lostByLeaving    = "Whatever the worker had computed. The attempt stays in progress at the service until its lease lapses."
	lostByTrusting   = "The proof that the containers of an earlier host generation are gone: the record says that you made sure. The attempt goes on to its end; nothing runs again."
	lostByRetracting = "The outcome kept in the record is never published; what the service recorded stands."
)

// offers are the decisions that are possible after a step failed.
//
//	what the attempt waits for               resume               resolve
//	somebody acted under our identity        –                    frees the lane
//	entered before a restart, hold           FAIL interrupted     frees the lane
//	proof that an allocation's host          the step, at once    settles the allocation
//	generation is gone                                            on your word
//	anything else                            the step, at once    –
func offers(err error) []desk.Offer {
	switch {
	case errors.Is(err, errHeld):
		return []desk.Offer{{Action: desk.Resolve, Lost: lostByRetracting}}
	case errors.Is(err, recovery.ErrHold):
		return []desk.Offer{{Action: desk.Resume, Lost: lostByEnding}, {Action: desk.Resolve, Lost: lostByLeaving}}
	}
	all := []desk.Offer{{Action: desk.Resume, Lost: lostByTrying}}
	if _, unproved := errors.AsType[*retirement.UnprovedError](err); unproved {
		all = append(all, desk.Offer{Action: desk.Resolve, Lost: lostByTrusting})
	}
	return all
}

// decide does what an operator decided about an attempt of this lane that
// waited because of why. Nothing is sent and nothing runs again (I27); the lane
// goes on with what is left.
func decide(ctx context.Context, j *journal.Attempt, d desk.Decision, known *recovery.Case, why error) error {
	if d.Action == desk.Resume {
		// Only who was told what the hold's end loses has decided about it.
		if errors.Is(why, recovery.ErrHold) {
			known.Hold = false
		}
		return nil
	}
	if d.Reference != j.Reference() {
		return desk.ErrOtherReference
	}
	now := protocol.TimestampOf(time.Now())
	if unproved, ok := errors.AsType[*retirement.UnprovedError](why); ok {
		if err := j.Apply(ctx, noted(d, now)); err != nil {
			return err
		}
		return j.Apply(ctx, attempt.Settled{Generation: unproved.Generation, Number: unproved.Number, Settlement: attempt.SettlementGenerationGone})
	}
	switch record := j.Record().(type) {
	case attempt.TerminalHeld:
		return j.Apply(ctx, attempt.Resolved{Resolution: attempt.Resolution{UID: d.UID, Note: d.Note, At: now}})
	case attempt.Acknowledged:
		if err := j.Apply(ctx, noted(d, now)); err != nil {
			return err
		}
		return j.Apply(ctx, attempt.Over{Reason: attempt.EndOperator, At: now})
	default:
		return fmt.Errorf("lane: an attempt in state %s needs no decision", record.State())
	}
}

// noted keeps in the record who decided and why.
func noted(d desk.Decision, at protocol.Timestamp) attempt.Noted {
	text := fmt.Sprintf("uid %d: %s", d.UID, d.Note)
	text = strings.ToValidUTF8(text[:min(len(text), attempt.MaxFactBytes)], "") // the cut may be inside a character
	return attempt.Noted{Fact: attempt.Fact{Name: "operator", Text: text, At: at}}
}
