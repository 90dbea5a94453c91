package desk

import (
	"context"
	"errors"
	"testing"
)

func offering(actions ...Action) Waiting {
	w := Waiting{Step: "hold"}
	for _, a := range actions {
		w.Offers = append(w.Offers, Offer{a, "nothing"})
	}
	return w
}

// I30: the driver takes the decision, the operator hears how it went.
func TestDecisionReachesTheDriver(t *testing.T) {
	d := &Desk{}
	p := d.Wait("a", offering(Resume))
	if w, ok := d.Waiting("a"); !ok || w.Step != "hold" {
		t.Fatalf("%v %v", w, ok)
	}
	refused := errors.New("refused")
	done := make(chan error)
	go func() { done <- d.Decide(t.Context(), "a", Decision{Action: Resume, UID: 7}) }()
	r := <-p.Decisions()
	if r.Action != Resume || r.UID != 7 {
		t.Fatalf("%+v", r.Decision)
	}
	r.Settle(refused)
	if err := <-done; !errors.Is(err, refused) {
		t.Fatal(err)
	}
	p.Leave()
	if _, ok := d.Waiting("a"); ok {
		t.Fatal("left, and still waiting")
	}
}

// A decision that nobody waits for, or that is not offered, changes nothing;
// one that comes as the driver leaves is not taken.
func TestDecisionsThatAreNotTaken(t *testing.T) {
	d := &Desk{}
	if err := d.Decide(t.Context(), "a", Decision{Action: Resume}); !errors.Is(err, ErrNotWaiting) {
		t.Fatal(err)
	}
	p := d.Wait("a", offering(Resume))
	if err := d.Decide(t.Context(), "a", Decision{Action: Resolve}); err == nil || errors.Is(err, ErrNotWaiting) {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- d.Decide(t.Context(), "a", Decision{Action: Resume}) }()
	p.Leave()
	if err := <-done; !errors.Is(err, ErrNotWaiting) {
		t.Fatal(err)
	}
	p = d.Wait("a", offering(Resume))
	defer p.Leave()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the operator went away")
	cancel(gone)
	if err := d.Decide(ctx, "a", Decision{Action: Resume}); !errors.Is(err, gone) {
		t.Fatal(err)
	}
}

// A later wait of the same attempt is not ended by the earlier one's leave.
func TestLeaveIsOnesOwn(t *testing.T) {
	d := &Desk{}
	first := d.Wait("a", offering(Resume))
	second := d.Wait("a", offering(Resolve))
	first.Leave()
	if w, ok := d.Waiting("a"); !ok || w.Offers[0].Action != Resolve {
		t.Fatalf("%v %v", w, ok)
	}
	second.Leave()
	none := (*Desk)(nil).Wait("a", Waiting{})
	none.Leave()
}
