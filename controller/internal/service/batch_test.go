package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/lane"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

// Maintenance is one batch: a stop in the middle of it does not cut it, and a
// shutdown waits until the whole of it is done.
func TestBatchOutlivesTheStop(t *testing.T) {
	s, w, records := newService(t)
	ended(t, records, "a1")
	w.mine = []protocol.Allocation{allocation(1, protocol.StateConsumed, false)}
	w.host.Frontiers.Accepted = 1
	ctx, stop := context.WithCancelCause(t.Context())
	w.releasing = func(batch context.Context) error {
		stop(errors.New("SIGTERM"))
		return context.Cause(batch)
	}
	if err := s.tend(ctx); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || w.host.Frontiers.Released != 1 || len(records.Active()) != 0 || len(records.History()) != 1 || s.batchDue {
		t.Fatalf("released %d, %d active, %d archived, due %v", w.host.Frontiers.Released, len(records.Active()), len(records.History()), s.batchDue)
	}
}

// ended makes a record that only waits to be archived.
func ended(t *testing.T, records *store.Store, key string) {
	t.Helper()
	origin := attempt.Origin{Scope: scope, Key: key, Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}")}
	e, err := records.Create(t.Context(), attempt.StartPending{Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records.Apply(t.Context(), e, attempt.Over{Reason: attempt.EndStartRefused, Reply: attempt.Reply{Status: 409}, At: 1}); err != nil {
		t.Fatal(err)
	}
}

// An attempt that ends in the middle of a batch makes the next one due at once,
// not in a minute; a batch that fails stays due.
func TestEndDuringABatchMakesTheNextDue(t *testing.T) {
	s, w, records := newService(t)
	selection := lane.Selection{Offering: &s.Offerings[0], Job: api.FeedJob{Job: "j"}}
	s.take(&selection)
	w.mine = []protocol.Allocation{allocation(1, protocol.StateConsumed, false)}
	w.host.Frontiers.Accepted = 1
	w.releasing = func(context.Context) error {
		w.releasing = nil
		ended(t, records, "a1")
		selection.Release(breaker.Neutral)
		return errors.New("the agent went away")
	}
	if err := s.tend(t.Context()); err == nil || !s.batchDue {
		t.Fatalf("%v, due %v", err, s.batchDue)
	}
	w.releasing = func(context.Context) error {
		w.releasing = nil
		ended(t, records, "a2")
		selection.Release(breaker.Neutral)
		return nil
	}
	for _, want := range []struct {
		archived int
		due      bool
	}{{1, true}, {2, false}} {
		if err := s.tend(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(records.History()); n != want.archived || s.batchDue != want.due {
			t.Fatalf("%d archived, due %v; want %+v", n, s.batchDue, want)
		}
	}
}

// Where every lane holds what it recovered, no admission looks; what needs a
// person is told all the same.
func TestHeldLanesStillSayWhatNeedsAPerson(t *testing.T) {
	s, w, _ := newService(t)
	w.hostErr = &host.OlderError{Generation: generation}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.announce(ctx)
	}()
	deadline := time.After(30 * time.Second)
	for !strings.Contains(s.Snapshot().Blocked, "controller store forget") {
		select {
		case <-deadline:
			t.Fatalf("told %q", s.Snapshot().Blocked)
		case <-time.After(10 * time.Millisecond): // between two looks
		}
	}
	stop()
	<-done
}
