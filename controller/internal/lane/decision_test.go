package lane

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/protocol"
)

// held is an attempt that was entered before a restart and whose offering says
// hold, in the hands of a lane that waits for a person. end waits for the lane.
func held(t *testing.T, w *world) (key, reference string, d *desk.Desk, end func() error) {
	t.Helper()
	return heldWhile(t, w, func() {})
}

// heldWhile is held, with change made to the world before the lane takes the
// attempt up again.
func heldWhile(t *testing.T, w *world, change func()) (key, reference string, d *desk.Desk, end func() error) {
	t.Helper()
	work, stop := context.WithCancelCause(t.Context())
	gone, over := context.WithCancel(t.Context())
	stopDuring(w, func() {
		stop(errors.New("killed"))
		over()
	})
	o := offer()
	o.OnRestart = offering.RestartHold
	r, ok := w.run(o, Contexts{Take: work, Work: work, Final: gone}).(attempt.Acknowledged)
	if !ok {
		t.Fatalf("record is %s", stateOf(w))
	}
	claim, err := w.claims.Claim(r.Origin.Key)
	if err != nil {
		t.Fatal(err)
	}
	w.set(change)
	l := w.lane(o)
	l.Desk = &desk.Desk{}
	done := make(chan error, 1)
	go func() { done <- l.finish(always(t), reopen(t, w, claim), w.known()) }()
	time.Sleep(time.Hour) // of the bubble's clock: the interrupted write settles first
	synctest.Wait()
	return r.Origin.Key, r.Admission.Reference, l.Desk, func() error { return <-done }
}

// What is lost is said before it is done; resume ends the attempt as
// interrupted, and nothing runs again (I27).
func TestResumeOfAHold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		key, _, d, end := held(t, w)
		waiting, ok := d.Waiting(key)
		if !ok || waiting.Step != "settle" || len(waiting.Offers) != 2 || waiting.Offers[0].Lost != lostByEnding || waiting.Offers[1].Lost != lostByLeaving {
			t.Fatalf("%v %+v", ok, waiting)
		}
		if err := d.Decide(t.Context(), key, desk.Decision{Action: desk.Resume}); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if f := w.failure(); stateOf(w) != attempt.StateTerminalConfirmed || f.Code != api.FailInterrupted || !f.Entered || w.count("executed") != 1 {
			t.Fatalf("record is %s, FAIL %s; events %q", stateOf(w), f.Code, w.events)
		}
	})
}

// An attempt that hold keeps for a person may wait for something else first. To
// resume that wait loses nothing, as its offer says: the hold is still decided by
// itself.
func TestResumeOfAnotherWaitKeepsTheHold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		key, _, d, end := heldWhile(t, w, func() { w.serves = "000000000000000000000000000000ee" })
		if waiting, ok := d.Waiting(key); !ok || len(waiting.Offers) != 2 || waiting.Offers[0].Lost != lostByTrying {
			t.Fatalf("%v %+v", ok, waiting)
		}
		w.set(func() { w.serves = "" }) // mended, and the operator says so
		if err := d.Decide(t.Context(), key, desk.Decision{Action: desk.Resume}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if waiting, ok := d.Waiting(key); !ok || len(waiting.Offers) != 2 || waiting.Offers[0].Lost != lostByEnding || stateOf(w) != attempt.StateAcknowledged {
			t.Fatalf("%v %+v, record is %s", ok, waiting, stateOf(w))
		}
		if err := d.Decide(t.Context(), key, desk.Decision{Action: desk.Resume}); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if f := w.failure(); stateOf(w) != attempt.StateTerminalConfirmed || f.Code != api.FailInterrupted || w.count("executed") != 1 {
			t.Fatalf("record is %s, FAIL %s; events %q", stateOf(w), f.Code, w.events)
		}
	})
}

// Resolve wants the attempt's own reference, keeps who and why, and sends
// nothing.
func TestResolveOfAHold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		key, reference, d, end := held(t, w)
		wrong := desk.Decision{Action: desk.Resolve, UID: 7, Reference: "att-other", Note: "looked"}
		if err := d.Decide(t.Context(), key, wrong); !errors.Is(err, desk.ErrOtherReference) || stateOf(w) != attempt.StateAcknowledged {
			t.Fatalf("%v, record is %s", err, stateOf(w))
		}
		synctest.Wait() // the lane tried again and waits once more
		right := wrong
		right.Reference = reference
		if err := d.Decide(t.Context(), key, right); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		r, ok := w.records.Active()[0].Record.(attempt.Ended)
		if !ok || r.Reason != attempt.EndOperator || len(r.Facts.Kept) != 1 || r.Facts.Kept[0].Text != "uid 7: looked" || w.count("fail") != 0 {
			t.Fatalf("record is %s; events %q", stateOf(w), w.events)
		}
	})
}

// An outcome that somebody else contradicted can only be resolved.
func TestResolveOfAnOppositeOutcome(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.terminal = []*provider.Failure{opposite}
		o := offer()
		l := w.lane(o)
		l.Desk = &desk.Desk{}
		done := make(chan error, 1)
		go func() {
			_, err := l.attempt(always(t), w.selection(o))
			done <- err
		}()
		time.Sleep(time.Hour) // of the bubble's clock
		synctest.Wait()
		e := w.records.Active()[0]
		admission, _ := attempt.AdmissionOf(e.Record)
		if waiting, ok := l.Desk.Waiting(e.Key); !ok || len(waiting.Offers) != 1 || waiting.Offers[0].Lost != lostByRetracting {
			t.Fatalf("%v %+v", ok, waiting)
		}
		if err := l.Desk.Decide(t.Context(), e.Key, desk.Decision{Action: desk.Resume}); err == nil {
			t.Fatal("resumed")
		}
		if err := l.Desk.Decide(t.Context(), e.Key, desk.Decision{Action: desk.Resolve, Reference: admission.Reference, Note: "looked"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if r, ok := w.records.Active()[0].Record.(attempt.TerminalHeld); !ok || r.Resolution == nil || r.Resolution.Note != "looked" || attempt.HoldsLane(r) {
			t.Fatalf("record is %s", stateOf(w))
		}
	})
}

// Anything else that waits may be taken up at once, and loses nothing.
func TestResumeOfAnOutage(t *testing.T) {
	if got := offers(errors.New("lost")); len(got) != 1 || got[0].Action != desk.Resume || got[0].Lost != lostByTrying {
		t.Fatalf("%+v", got)
	}
}

// I16, I32: the host begins a new generation in the middle of an execution, and
// nothing proves that the old one's containers are gone. An operator who made
// sure says so; the record keeps who and why, the attempt ends by itself, and
// nothing runs again.
func TestResolveOfAnUnprovedGeneration(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithCancelCause(t.Context())
		stopDuring(w, func() {
			w.serves = "000000000000000000000000000000ee"
			w.allocations[1].State = protocol.StateConsumed // gone, and nobody can prove it
			stop(errors.New("SIGTERM"))
		})
		o := offer()
		l := w.lane(o)
		l.Desk = &desk.Desk{}
		done := make(chan error, 1)
		go func() {
			_, err := l.attempt(Contexts{Take: t.Context(), Work: work, Final: t.Context()}, w.selection(o))
			done <- err
		}()
		time.Sleep(time.Hour) // of the bubble's clock
		synctest.Wait()
		e := w.records.Active()[0]
		admission, _ := attempt.AdmissionOf(e.Record)
		waiting, ok := l.Desk.Waiting(e.Key)
		if !ok || len(waiting.Offers) != 2 || waiting.Offers[1].Action != desk.Resolve || waiting.Offers[1].Lost != lostByTrusting {
			t.Fatalf("%v %+v", ok, waiting)
		}
		if err := l.Desk.Decide(t.Context(), e.Key, desk.Decision{Action: desk.Resolve, UID: 7, Reference: admission.Reference, Note: "looked"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		r, ok := w.records.Active()[0].Record.(attempt.TerminalConfirmed)
		if !ok || r.Executions[0].Settlement != attempt.SettlementGenerationGone || len(r.Facts.Kept) != 1 || r.Facts.Kept[0].Text != "uid 7: looked" ||
			w.failure().Code != api.FailInterrupted || w.count("executed") != 1 {
			t.Fatalf("record is %s; events %q", stateOf(w), w.events)
		}
	})
}

// I16, I27: the same before a replacement: the attempt waits at the desk, where
// the remedy that its reason names is offered, and no second execution follows.
func TestUnprovedGenerationBeforeAReplacement(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		failFirst(w, func(http.ResponseWriter, *http.Request) {
			w.set(func() {
				w.serves = "000000000000000000000000000000ee"
				w.allocations[1].State = protocol.StateConsumed // gone, and nobody can prove it
			})
			panic(http.ErrAbortHandler)
		})
		o := pure(offering.OnOOMFail)
		l := w.lane(o)
		l.Desk = &desk.Desk{}
		done := make(chan error, 1)
		go func() {
			_, err := l.attempt(always(t), w.selection(o))
			done <- err
		}()
		time.Sleep(time.Hour) // of the bubble's clock
		synctest.Wait()
		e := w.records.Active()[0]
		admission, _ := attempt.AdmissionOf(e.Record)
		if waiting, ok := l.Desk.Waiting(e.Key); !ok || len(waiting.Offers) != 2 || waiting.Offers[1].Lost != lostByTrusting {
			t.Fatalf("%v %+v", ok, waiting)
		}
		if err := l.Desk.Decide(t.Context(), e.Key, desk.Decision{Action: desk.Resolve, Reference: admission.Reference, Note: "looked"}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		r, ok := w.records.Active()[0].Record.(attempt.TerminalConfirmed)
		if !ok || len(r.Executions) != 1 || r.Executions[0].Settlement != attempt.SettlementGenerationGone || w.failure().Code != api.FailInterrupted || w.count("executed") != 0 {
			t.Fatalf("record is %s; events %q", stateOf(w), w.events)
		}
	})
}

// A note of an operator is cut at the bound of a fact, and never inside a
// character.
func TestLongNote(t *testing.T) {
	for pad := range 4 {
		note := strings.Repeat("x", pad) + strings.Repeat("ü€", attempt.MaxFactBytes)
		text := noted(desk.Decision{UID: 7, Note: note}, 1).Fact.Text
		if !utf8.ValidString(text) || len(text) > attempt.MaxFactBytes || len(text) < attempt.MaxFactBytes-utf8.UTFMax {
			t.Errorf("%d bytes: %q", len(text), text)
		}
	}
}
