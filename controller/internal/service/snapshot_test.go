package service

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/host"
	"github.com/quittance/quittance/controller/internal/store"
)

// What maintenance told while every lane was held is taken back once it is
// mended, and what an admission told is not.
func TestReasonEndsWithItsCause(t *testing.T) {
	s, w, _ := newService(t)
	w.hostErr = &host.OlderError{Generation: generation}
	s.keep(t.Context())
	if got := s.Snapshot().Blocked; !strings.Contains(got, "controller store forget") {
		t.Fatalf("told %q", got)
	}
	w.hostErr = nil
	s.keep(t.Context())
	if got := s.Snapshot().Blocked; got != "" {
		t.Errorf("still told %q", got)
	}
	s.report(errors.New("the host is draining"))
	s.keep(t.Context())
	if got := s.Snapshot().Blocked; got != "the host is draining" {
		t.Errorf("told %q", got)
	}
}

// A controller that takes nothing new says so, beside any other reason.
func TestDrainIsAReason(t *testing.T) {
	s, _, _ := newService(t)
	s.stopping.Store(true)
	if got := s.Snapshot().Blocked; got != errDrain.Error() {
		t.Errorf("told %q", got)
	}
	s.report(errors.New("the host is draining"))
	if got := s.Snapshot().Blocked; !strings.HasPrefix(got, errDrain.Error()) || !strings.HasSuffix(got, "the host is draining") {
		t.Errorf("told %q", got)
	}
}

// A drain and a busy host are told apart from faults, and a fault that was told
// before a drain is not kept for its whole length; what maintenance says is.
func TestCausesOfAReason(t *testing.T) {
	s, w, _ := newService(t)
	only := func(want ...Cause) {
		t.Helper()
		got := s.Snapshot().Causes
		if len(got) != len(Causes()) {
			t.Errorf("causes %v", got)
		}
		for _, c := range Causes() {
			if got[c] != slices.Contains(want, c) {
				t.Errorf("causes %v, want %v", got, want)
			}
		}
	}
	only()
	look := func(change func()) {
		t.Helper()
		change()
		_, err := s.admit(t.Context(), 0)
		if err == nil {
			t.Fatal("admitted")
		}
		s.report(err)
	}
	look(func() { w.host.Draining = true })
	only(CauseDrain)
	look(func() { w.host.Draining, w.host.Slots.Used = false, w.host.Slots.Max })
	only(CauseRoom)
	look(func() { w.host.Slots.Used, w.host.Engine.Available = 0, false })
	only(CauseFault)
	look(func() { w.inventory = [][]api.Attempt{{{Attempt: "att-1", Key: "unknown"}}} })
	only(CausePerson)
	s.stopping.Store(true)
	only(CauseDrain)
	w.hostErr, s.batchDue = &host.OlderError{Generation: generation}, true
	s.keep(t.Context())
	only(CauseDrain, CausePerson)
}

// An agent that answers and does not agree with this store is reachable.
func TestHostThatRefusesWasSeen(t *testing.T) {
	for cause, want := range map[error]bool{&host.BehindError{Detail: "d"}: true, &host.OlderError{Generation: generation}: true, errors.New("no answer"): false} {
		s, w, _ := newService(t)
		w.hostErr = cause
		if _, err := s.hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.Snapshot().HostSeen; got != want {
			t.Errorf("%v: seen %v", cause, got)
		}
	}
}

// I25: an announcement that this store never made is no answer to go on from:
// nothing is admitted, and a person has to look.
func TestHelloThatNoStoreMade(t *testing.T) {
	s, w, records := newService(t)
	opens := records.Opens()
	w.stands = 1 << 52
	if _, err := s.hello(t.Context()); !errors.Is(err, store.ErrSequence) || records.Opens() != opens {
		t.Fatalf("%v, opened %d times", err, records.Opens())
	}
	_, err := s.admit(t.Context(), 0)
	if b, ok := errors.AsType[*blocked](err); !ok || !b.person || !errors.Is(err, store.ErrSequence) {
		t.Errorf("%v", err)
	}
}
