package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/protocol"
)

// Maintenance is one batch: a stop in the middle of it does not cut it, and a
// shutdown waits until the whole of it is done.
func TestBatchOutlivesTheStop(t *testing.T) {
	s, w, records := newService(t)
	origin := attempt.Origin{Scope: scope, Key: "a1", Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}")}
	e, err := records.Create(t.Context(), attempt.StartPending{Origin: origin})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records.Apply(t.Context(), e, attempt.Over{Reason: attempt.EndStartRefused, Reply: attempt.Reply{Status: 409}, At: 1}); err != nil {
		t.Fatal(err)
	}
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
