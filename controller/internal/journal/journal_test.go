package journal

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/claims"
	"github.com/quittance/quittance/controller/internal/store"
	"github.com/quittance/quittance/protocol"
)

func scopeOf() attempt.Scope {
	return attempt.Scope{APIOrigin: "http://127.0.0.1:1", Provider: "node", Consumer: "c", Generation: "1"}
}

func open(t *testing.T) (*store.Store, *Attempt, *claims.Table) {
	t.Helper()
	cfg := store.Config{Dir: t.TempDir() + "/attempts", MaxActive: 2, History: 2, Scope: scopeOf()}
	if err := store.Create(cfg); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	entry, err := s.Create(t.Context(), attempt.StartPending{Origin: attempt.Origin{
		Scope: scopeOf(), Key: "a", Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	table := &claims.Table{}
	claim, err := table.Claim("a")
	if err != nil {
		t.Fatal(err)
	}
	return s, Open(s, entry, claim), table
}

func admitted() attempt.Admitted {
	return attempt.Admitted{Admission: attempt.Admission{Reference: "att", Reply: attempt.Reply{Status: 201}}}
}

func TestApplyIsDurable(t *testing.T) {
	s, a, table := open(t)
	if err := a.Apply(t.Context(), admitted()); err != nil {
		t.Fatal(err)
	}
	kept, ok := s.Get("a")
	if !ok || kept.Record.State() != attempt.StateAcknowledged || a.Reference() != "att" || a.Key() != "a" {
		t.Fatalf("%+v", kept)
	}
	a.Close()
	if table.Len() != 0 {
		t.Fatal("the claim was not given back")
	}
}

// An illegal transition changes nothing.
func TestApplyRefused(t *testing.T) {
	s, a, _ := open(t)
	err := a.Apply(t.Context(), attempt.Entered{})
	if _, ok := errors.AsType[*attempt.TransitionError](err); !ok || a.Record().State() != attempt.StateStartPending {
		t.Fatalf("%v, %s", err, a.Record().State())
	}
	if kept, _ := s.Get("a"); kept.Revision != 1 {
		t.Fatalf("revision %d", kept.Revision)
	}
}

// slowStore holds every write back until the test lets it go on.
type slowStore struct {
	*store.Store
	hold  chan struct{}
	begun chan struct{}
}

// Begin gives out a write that begins only once the test says so.
func (s *slowStore) Begin(ctx context.Context, from store.Entry, event attempt.Event) (*store.Write, error) {
	close(s.begun)
	select {
	case <-s.hold:
		return s.Store.Begin(ctx, from, event)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A stop during a write permits nothing; the next event decides on what the
// write left.
func TestApplyInterrupted(t *testing.T) {
	s, a, _ := open(t)
	slow := &slowStore{Store: s, hold: make(chan struct{}), begun: make(chan struct{})}
	a.store = slow
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	done := make(chan error, 1)
	go func() { done <- a.Apply(ctx, admitted()) }()
	<-slow.begun
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) {
		t.Fatalf("%v", err)
	}
	if a.Record().State() != attempt.StateStartPending {
		t.Fatalf("%s", a.Record().State())
	}
	a.store = s
	if err := a.Apply(t.Context(), admitted()); err != nil {
		t.Fatal(err)
	}
}

// A write that nobody waited for stays owned: the next event waits for it, or
// says that it is late.
func TestLateWriteIsAdopted(t *testing.T) {
	s, a, _ := open(t)
	write, err := s.Begin(t.Context(), a.entry, admitted())
	if err != nil {
		t.Fatal(err)
	}
	a.late = write
	if err := a.Apply(t.Context(), attempt.Noted{Fact: attempt.Fact{Name: "late", At: protocol.TimestampOf(time.Unix(1, 0))}}); err != nil {
		t.Fatal(err)
	}
	if a.Record().State() != attempt.StateAcknowledged || len(attempt.FactsOf(a.Record()).Kept) != 1 {
		t.Fatalf("%+v", a.Record())
	}
}

// A late write that was refused changed nothing: it is reported once and does
// not stand in the way of later events.
func TestLateWriteRefused(t *testing.T) {
	s, a, _ := open(t)
	write, err := s.Begin(t.Context(), a.entry, attempt.Entered{})
	if err != nil {
		t.Fatal(err)
	}
	a.late = write
	err = a.Apply(t.Context(), admitted())
	if _, ok := errors.AsType[*attempt.TransitionError](err); !ok {
		t.Fatalf("%v", err)
	}
	if err := a.Apply(t.Context(), admitted()); err != nil {
		t.Fatalf("the refusal of an earlier event stands in the way: %v", err)
	}
}

// Facts that were added beside the holder of the claim (maintenance notes that
// a stuck allocation came loose) do not stand in the way of his next event.
func TestApplyOnTopOfFacts(t *testing.T) {
	s, a, _ := open(t)
	fact := attempt.Noted{Fact: attempt.Fact{Name: "loose", At: protocol.TimestampOf(time.Unix(1, 0))}}
	if _, err := s.Update(t.Context(), "a", fact); err != nil {
		t.Fatal(err)
	}
	if err := a.Apply(t.Context(), admitted()); err != nil {
		t.Fatal(err)
	}
	kept, _ := s.Get("a")
	if a.Record().State() != attempt.StateAcknowledged || len(attempt.FactsOf(kept.Record).Kept) != 1 || kept.Revision != 3 {
		t.Fatalf("%+v", kept)
	}
}
