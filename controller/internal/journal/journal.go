// Package journal is one attempt's durable record in the hands of whoever
// holds its claim: the steps of the lifecycle read it and move it by events,
// one at a time. It owns the order of one record's writes. It must not know
// what a transition means, when it is due, or anything outside this record.
package journal

import (
	"context"
	"errors"
	"sync"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/failpoint"
	"github.com/quittance/quittance/controller/internal/store"
)

// Store is what this package needs of the attempt store.
type Store interface {
	Begin(ctx context.Context, from store.Entry, event attempt.Event) (*store.Write, error)
	Get(key string) (store.Entry, bool)
}

// Attempt is one claimed record. Its methods may be called from any goroutine;
// events are applied one after the other.
type Attempt struct {
	store Store
	claim *claims.Claim

	writing sync.Mutex // held from the decision of an event to its durability

	mu    sync.Mutex // guards what follows
	entry store.Entry
	late  *store.Write // a write that nobody waited for to its end
}

// Open takes a durable record together with the claim on it.
func Open(s Store, entry store.Entry, claim *claims.Claim) *Attempt {
	return &Attempt{store: s, entry: entry, claim: claim}
}

// Key is the attempt key, which is also the purpose of its allocations.
func (a *Attempt) Key() string { return a.Claim().Identity().Key }

// Claim is the right to act on the attempt.
func (a *Attempt) Claim() *claims.Claim { return a.claim }

// Record is the record as it is durable.
func (a *Attempt) Record() attempt.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entry.Record
}

// Reference is the service's identity of the attempt, "" before admission.
func (a *Attempt) Reference() string {
	admission, _ := attempt.AdmissionOf(a.Record())
	return admission.Reference
}

// ErrLate says that ctx ended while the event was being written. The write
// stays owned by the store and may still become durable; it permits nothing to
// the caller. The next event waits for it and decides on what it left.
var ErrLate = errors.New("journal: the event's write is not settled yet")

// Apply moves the record by one event and returns once that is durable. A
// refusal of the transition, a storage failure and [ErrLate] are the errors;
// after any of them [Attempt.Record] still says what is durable.
//
// Only the claim's holder decides, but facts may be added to the record beside
// it (a stuck allocation that came loose): then the event is taken on top of
// them, or refused by the transition.
func (a *Attempt) Apply(ctx context.Context, event attempt.Event) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.settle(ctx); err != nil {
		return err
	}
	for {
		err := a.write(ctx, event)
		conflict, ok := errors.AsType[*store.ConflictError](err)
		if !ok {
			return err
		}
		a.adopt(conflict.Current)
	}
}

// write makes one try at an event on the record as it is known.
func (a *Attempt) write(ctx context.Context, event attempt.Event) error {
	a.mu.Lock()
	from := a.entry
	a.mu.Unlock()
	write, err := a.store.Begin(ctx, from, event)
	if err != nil {
		return err
	}
	entry, err := write.Wait(ctx)
	if errors.Is(err, store.ErrNotSettled) {
		a.mu.Lock()
		a.late = write
		a.mu.Unlock()
		return errors.Join(ErrLate, err)
	}
	if err != nil {
		return err
	}
	a.adopt(entry)
	failpoint.Hit(failpoint.Record(string(entry.Record.State())))
	return nil
}

// settle waits for a write that an earlier Apply left behind. One that was
// refused changed nothing and is reported once.
func (a *Attempt) settle(ctx context.Context) error {
	a.mu.Lock()
	late := a.late
	a.mu.Unlock()
	if late == nil {
		return nil
	}
	select {
	case <-late.Done():
	case <-ctx.Done():
		return errors.Join(ErrLate, context.Cause(ctx))
	}
	entry, err := late.Wait(ctx)
	if err != nil {
		a.mu.Lock()
		a.late = nil
		a.mu.Unlock()
		return err
	}
	a.adopt(entry)
	return nil
}

func (a *Attempt) adopt(entry store.Entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entry, a.late = entry, nil
}

// Close gives the claim back. The record stays where it is.
func (a *Attempt) Close() { a.claim.Release() }
