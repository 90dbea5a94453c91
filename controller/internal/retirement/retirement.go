// Package retirement brings the allocations of one attempt to their end:
// retirement asked and observed, receipts verified and saved in the record,
// consumption acknowledged, all of it written down. The same code runs after
// an outcome, after a stop and after a restart (I15). It must not know why an
// attempt ends or what is published of it.
package retirement

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// Host is what this package needs of package host.
type Host interface {
	Sync(ctx context.Context) (protocol.Host, error)
	Retire(ctx context.Context, generation protocol.ID, n protocol.Number, purpose, note string) error
	Wait(ctx context.Context, n protocol.Number, until protocol.State) (protocol.Allocation, error)
	Consume(ctx context.Context, a protocol.Allocation) (protocol.Allocation, error)
	Receipts(ctx context.Context, a protocol.Allocation, limit int) (receipts []host.Receipt, key string, err error)
	GenerationGone(ctx context.Context, old protocol.ID) (bool, error)
}

// Journal is the attempt's record.
type Journal interface {
	Key() string
	Record() attempt.Record
	Apply(ctx context.Context, event attempt.Event) error
}

// End is how one allocation ended.
type End struct {
	Number     protocol.Number
	Settlement attempt.Settlement
	Allocation protocol.Allocation // zero where the agent no longer knows it
}

// Run settles every open allocation of the attempt and returns once that is
// durable. note is shown in the retired receipt. Where ctx ends first, or the
// agent's answer cannot be read, the error says what is missing and the record
// stays unsettled.
func Run(ctx context.Context, h Host, j Journal, note string, log hclog.Logger) ([]End, error) {
	var ends []End
	for _, e := range attempt.ExecutionsOf(j.Record()) {
		if e.Settlement.Settled() {
			continue
		}
		end, err := one(ctx, h, j, e, note)
		if errors.Is(err, errWithdrawn) {
			continue
		}
		if err != nil {
			return ends, fmt.Errorf("retirement of %d: %w", e.Number, err)
		}
		log.Info("allocation settled", "attempt", j.Key(), "allocation", e.Number, "settlement", end.Settlement)
		ends = append(ends, end)
	}
	return ends, nil
}

// UnprovedError says that the agent serves another generation than an
// allocation's, and that nothing it can still show proves that generation's
// containers gone. A person may know: the allocation is settled then on that
// person's word.
type UnprovedError struct {
	Generation protocol.ID // of the allocation
	Number     protocol.Number
	Cause      error // nil: the genesis receipt speaks of another generation, or of none
}

func (e *UnprovedError) Error() string {
	why := "its genesis does not say that that one was abandoned"
	if e.Cause != nil {
		why = "its genesis receipt, which may have said that that one was abandoned, was released"
	}
	return fmt.Sprintf("allocation %d belongs to host generation %s; the agent serves another one, and %s: put that generation's state directory back, "+
		"or make sure that none of its containers is left and run `agentctl attempts resolve`", e.Number, e.Generation, why)
}

func (e *UnprovedError) Unwrap() error { return e.Cause }

// errWithdrawn: nothing ever happened under the number for this attempt.
var errWithdrawn = errors.New("the number was withdrawn")

func one(ctx context.Context, h Host, j Journal, e attempt.Execution, note string) (End, error) {
	current, err := h.Sync(ctx)
	if err != nil {
		return End{}, err
	}
	if current.Generation != e.Generation {
		return generationGone(ctx, h, j, e)
	}
	end := End{Number: e.Number}
	switch err := h.Retire(ctx, e.Generation, e.Number, j.Key(), note); {
	case errors.Is(err, host.ErrNotOurs):
		if err := j.Apply(ctx, attempt.Unallocated{Generation: e.Generation, Number: e.Number}); err != nil {
			return End{}, err
		}
		return End{}, errWithdrawn
	case errors.Is(err, host.ErrReleased):
		// Only what is consumed can be released.
		end.Settlement = attempt.SettlementConsumed
		return end, settled(ctx, j, e, end.Settlement)
	case errors.Is(err, host.ErrOtherGeneration):
		return generationGone(ctx, h, j, e)
	case err != nil:
		return End{}, err
	}
	failpoint.Hit(failpoint.RetirementAsked)
	a, err := h.Wait(ctx, e.Number, protocol.StateRetired)
	if err != nil {
		return End{}, err
	}
	if a.Number != e.Number || a.Purpose != j.Key() {
		// Nothing of another attempt is ever consumed (I20): the agent began
		// another generation meanwhile, which the next try sees.
		return End{}, errors.New("the agent shows another attempt's allocation under this number")
	}
	end.Allocation = a
	if !host.Reached(a, protocol.StateRetired) {
		end.Settlement = attempt.SettlementStuck
		if err := saveReceipts(ctx, h, j, e, a); err != nil {
			return End{}, err
		}
		return end, settled(ctx, j, e, end.Settlement)
	}
	failpoint.Hit(failpoint.Retired)
	if end.Allocation, err = h.Consume(ctx, a); err != nil {
		return End{}, err
	}
	failpoint.Hit(failpoint.Consumed)
	if err := saveReceipts(ctx, h, j, e, end.Allocation); err != nil {
		return End{}, err
	}
	failpoint.Hit(failpoint.Saved)
	end.Settlement = attempt.SettlementConsumed
	return end, settled(ctx, j, e, end.Settlement)
}

func generationGone(ctx context.Context, h Host, j Journal, e attempt.Execution) (End, error) {
	gone, err := h.GenerationGone(ctx, e.Generation)
	switch {
	case hostclient.IsCode(err, protocol.CodePruned):
		return End{}, &UnprovedError{e.Generation, e.Number, err}
	case err != nil:
		return End{}, err
	case !gone:
		return End{}, &UnprovedError{e.Generation, e.Number, nil}
	}
	end := End{Number: e.Number, Settlement: attempt.SettlementGenerationGone}
	return end, settled(ctx, j, e, end.Settlement)
}

// saveReceipts keeps the signed receipts in the record before anything relies
// on them, within the record's bounds.
func saveReceipts(ctx context.Context, h Host, j Journal, e attempt.Execution, a protocol.Allocation) error {
	receipts, key, err := h.Receipts(ctx, a, attempt.MaxSavedReceipts)
	if err != nil {
		return err
	}
	var saved []attempt.SavedReceipt
	size := 0
	for _, r := range receipts {
		if size += len(r.Leaf) + len(r.Proof); size > attempt.MaxSavedBytes || len(r.Proof) > attempt.MaxProofBytes {
			return fmt.Errorf("the receipts of allocation %d are larger than a record may keep (%d bytes)", a.Number, attempt.MaxSavedBytes)
		}
		saved = append(saved, attempt.SavedReceipt{Index: r.Index, Leaf: r.Leaf, Proof: []byte(r.Proof)})
	}
	return j.Apply(ctx, attempt.ReceiptsSaved{Generation: e.Generation, Number: e.Number, HostKey: key, Receipts: saved})
}

func settled(ctx context.Context, j Journal, e attempt.Execution, s attempt.Settlement) error {
	return j.Apply(ctx, attempt.Settled{Generation: e.Generation, Number: e.Number, Settlement: s})
}
