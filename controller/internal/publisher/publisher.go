// Package publisher sends the exact bytes of a chosen outcome until they are
// confirmed by a matching receipt or refused for good, and attaches the signed
// host receipts. It owns the repetition of terminal requests. It must not
// choose, change or re-encode an outcome.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/controller/internal/retry"
	"github.com/quittance/quittance/protocol"
)

// API is what this package needs of the job service.
type API interface {
	Complete(ctx context.Context, reference string, body []byte) (api.CompleteReceipt, attempt.Reply, error)
	Fail(ctx context.Context, reference string, body []byte) (api.FailReceipt, attempt.Reply, error)
	Receipts(ctx context.Context, reference string, r api.HostReceipts) (api.HostReceiptsAnswer, attempt.Reply, error)
}

// Journal is the attempt's record.
type Journal interface {
	Key() string
	Record() attempt.Record
	Apply(ctx context.Context, event attempt.Event) error
}

// Publisher publishes outcomes. It may be used by every lane.
type Publisher struct {
	API    API
	Policy retry.Policy
	Log    hclog.Logger
}

// Publish takes a TerminalPending record to TerminalConfirmed or TerminalHeld.
// The host's facts come first: every allocation must be settled (I31). An error
// leaves the record TerminalPending.
func (p *Publisher) Publish(ctx context.Context, j Journal) error {
	record, ok := j.Record().(attempt.TerminalPending)
	if !ok {
		return nil
	}
	if !attempt.HostSettled(record) {
		return errors.New("publisher: an allocation is not settled; its end must be a fact before the outcome is published")
	}
	err := p.Policy.Do(ctx, func(ctx context.Context) error { return p.send(ctx, j, record) }, provider.Repeatable, func(n retry.Notice) {
		p.Log.Warn("outcome not confirmed", append(provider.Fields(n.Err), "attempt", j.Key(), "job", record.Origin.Job, "reference", record.Admission.Reference, "tries", n.Tries, "wait", n.Wait, "error", n.Err)...)
	})
	if err != nil {
		return fmt.Errorf("publisher: %w", err)
	}
	return nil
}

func (p *Publisher) send(ctx context.Context, j Journal, record attempt.TerminalPending) error {
	reply, err := p.exchange(ctx, record.Admission.Reference, record.Outcome)
	failpoint.Hit(failpoint.PublisherSent)
	// What is settled is written to its end, whoever waits.
	written := context.WithoutCancel(ctx)
	if err == nil {
		p.Log.Info("outcome confirmed", "attempt", j.Key(), "operation", record.Outcome.Operation)
		return j.Apply(written, attempt.Confirmed{Receipt: reply, At: now()})
	}
	if reason, failure, forGood := provider.RefusedForGood(err); forGood {
		p.Log.Error("outcome refused for good", "attempt", j.Key(), "reason", reason, "code", failure.Code)
		return j.Apply(written, attempt.Held{Reason: reason, Evidence: failure.Reply, At: now()})
	}
	return err
}

func (p *Publisher) exchange(ctx context.Context, reference string, o attempt.Outcome) (attempt.Reply, error) {
	if o.Operation == attempt.OperationComplete {
		_, reply, err := p.API.Complete(ctx, reference, o.Body)
		return reply, err
	}
	_, reply, err := p.API.Fail(ctx, reference, o.Body)
	return reply, err
}

// Repeat sends a confirmed outcome's exact bytes once more, and its receipts:
// the service shows the attempt in progress, so it lost what it had confirmed.
// The record stays as it is. An error says that the service did not take the
// outcome; receipts that it does not take are only noted.
func (p *Publisher) Repeat(ctx context.Context, key string, record attempt.TerminalConfirmed) error {
	if _, err := p.exchange(ctx, record.Admission.Reference, record.Outcome); err != nil {
		return fmt.Errorf("publisher: the outcome again: %w", err)
	}
	p.Log.Warn("outcome confirmed again: the service had lost it", "attempt", key, "job", record.Origin.Job, "operation", record.Outcome.Operation)
	if sheet := sheetOf(record); len(sheet.Receipts) > 0 {
		if _, _, err := p.API.Receipts(ctx, sheet.Attempt, sheet); err != nil {
			p.Log.Warn("receipts not attached again", append(provider.Fields(err), "attempt", key, "job", record.Origin.Job, "error", err)...)
		}
	}
	return nil
}

// sheetOf is the message with all saved receipts of a record.
func sheetOf(record attempt.Record) api.HostReceipts {
	admission, _ := attempt.AdmissionOf(record)
	sheet := api.HostReceipts{Attempt: admission.Reference}
	for _, e := range attempt.ExecutionsOf(record) {
		for _, r := range e.Receipts {
			sheet.Key = e.HostKey
			sheet.Receipts = append(sheet.Receipts, api.HostReceipt{Leaf: r.Leaf, Proof: string(r.Proof)})
		}
	}
	return sheet
}

// Attach hands the saved host receipts of a resolved record to the service and
// writes its answer down. A record without allocations has nothing to attach.
// An error leaves the answer open.
func (p *Publisher) Attach(ctx context.Context, j Journal) error {
	record := j.Record()
	executions := attempt.ExecutionsOf(record)
	if len(executions) == 0 || attempt.AnswerOf(record) != nil || !attempt.HostSettled(record) {
		return nil
	}
	admission, _ := attempt.AdmissionOf(record)
	sheet := sheetOf(record)
	if len(sheet.Receipts) == 0 {
		// A generation that is gone took its receipts with it.
		return j.Apply(ctx, attempt.ReceiptsAnswered{Answer: attempt.ReceiptsAnswer{}})
	}
	err := p.Policy.Do(ctx, func(ctx context.Context) error { return p.attach(ctx, j, sheet) }, provider.Repeatable, func(n retry.Notice) {
		p.Log.Warn("receipts not attached", append(provider.Fields(n.Err), "attempt", j.Key(), "job", attempt.OriginOf(record).Job, "reference", admission.Reference, "tries", n.Tries, "wait", n.Wait, "error", n.Err)...)
	})
	if err != nil {
		return fmt.Errorf("publisher: receipts: %w", err)
	}
	return nil
}

func (p *Publisher) attach(ctx context.Context, j Journal, sheet api.HostReceipts) error {
	_, reply, err := p.API.Receipts(ctx, sheet.Attempt, sheet)
	written := context.WithoutCancel(ctx)
	if err == nil {
		return j.Apply(written, attempt.ReceiptsAnswered{Answer: attempt.ReceiptsAnswer{Attached: true, Reply: reply}})
	}
	if f, ok := errors.AsType[*provider.Failure](err); ok && f.Class == provider.ClassRefused && !f.Repeat {
		p.Log.Error("receipts refused for good", "attempt", j.Key(), "code", f.Code)
		return j.Apply(written, attempt.ReceiptsAnswered{Answer: attempt.ReceiptsAnswer{Reply: f.Reply}})
	}
	return err
}

func now() protocol.Timestamp { return protocol.TimestampOf(time.Now()) }
