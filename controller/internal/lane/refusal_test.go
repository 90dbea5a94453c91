package lane

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/desk"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/protocol"
)

// refusedStart is a job service that refuses every START in a way that no
// repetition mends.
type refusedStart struct {
	*world
	sent    int
	failure *provider.Failure // nil: the START succeeds
}

func (r *refusedStart) Start(_ context.Context, _ []byte, beforeSend func(time.Time) error) (api.Admission, attempt.Reply, error) {
	if err := beforeSend(time.Now().Add(time.Minute)); err != nil {
		return api.Admission{}, attempt.Reply{}, err
	}
	r.sent++
	if r.failure == nil {
		return api.Admission{Attempt: reference, State: api.AttemptInProgress}, attempt.Reply{Status: 201}, nil
	}
	return api.Admission{}, attempt.Reply{}, r.failure
}

// A START that fails for good is taken up again ever more slowly, up to the
// pace's longest pause.
func TestStartFailureSlowsDown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		unreachable := &provider.Failure{Class: provider.ClassUnreachable, Disposition: protocol.Refused}
		api, l := &refusedStart{world: w, failure: unreachable}, w.lane(offer())
		l.Starter.API = api
		if _, err := l.attempt(Contexts{Take: work, Work: work, Final: t.Context()}, w.selection(offer())); err == nil {
			t.Fatal("the attempt went on")
		}
		// Pauses of 1, 2, 4, 8 s and then 10 s each.
		if api.sent > 65 {
			t.Fatalf("START was sent %d times in ten minutes", api.sent)
		}
	})
}

// noRepeat are the failures after which nothing is sent again by itself.
var noRepeat = map[string]*provider.Failure{
	"unknown key":      {Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 401, Code: api.CodeUnknownKey},
	"key conflict":     {Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeKeyConflict},
	"TLS":              {Class: provider.ClassTLS, Disposition: protocol.Refused},
	"another topology": {Class: provider.ClassTopology, Disposition: protocol.Unknown, Status: 200},
	"malformed":        {Class: provider.ClassMalformed, Disposition: protocol.Unknown, Status: 201},
	"mismatch":         {Class: provider.ClassMismatch, Disposition: protocol.Unknown, Status: 201},
}

// A START whose failure permits no repeat is sent once; an operator who mended
// the cause resumes it, and until then a shutdown waits for nothing.
func TestStartThatPermitsNoRepeatIsHeld(t *testing.T) {
	for name, failure := range noRepeat {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				api, l := &refusedStart{world: w, failure: failure}, w.lane(offer())
				l.Starter.API, l.Desk = api, &desk.Desk{}
				done := make(chan error, 1)
				go func() {
					_, err := l.attempt(always(t), w.selection(offer()))
					done <- err
				}()
				time.Sleep(24 * time.Hour) // of the bubble's clock
				synctest.Wait()
				key := w.records.Active()[0].Key
				if waiting, ok := l.Desk.Waiting(key); api.sent != 1 || !ok || waiting.Step != "start" || waiting.Until != 0 || len(waiting.Offers) != 1 {
					t.Fatalf("START was sent %d times; %v %+v", api.sent, ok, waiting)
				}
				api.failure = nil
				if err := l.Desk.Decide(t.Context(), key, desk.Decision{Action: desk.Resume}); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil || api.sent != 2 || stateOf(w) != attempt.StateTerminalConfirmed {
					t.Fatalf("%v; START was sent %d times, record is %s", err, api.sent, stateOf(w))
				}
			})
		})
	}
}

// A shutdown does not wait for a held START: a restart replays it.
func TestHeldStartEndsWithTheWork(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began := time.Now()
		api, l := &refusedStart{world: w, failure: noRepeat["unknown key"]}, w.lane(offer())
		l.Starter.API = api
		if _, err := l.attempt(Contexts{Take: work, Work: work, Final: t.Context()}, w.selection(offer())); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if time.Since(began) != time.Hour || api.sent != 1 || stateOf(w) != attempt.StateStartPending || w.claims.Len() != 0 {
			t.Fatalf("ended after %s and %d sends, record is %s", time.Since(began), api.sent, stateOf(w))
		}
	})
}

// An outcome whose failure permits no repeat and that is no answer to the
// outcome itself is kept and not sent again before an operator resumes it.
func TestOutcomeThatPermitsNoRepeatIsHeld(t *testing.T) {
	for name, failure := range noRepeat {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				w.terminal = []*provider.Failure{failure}
				l := w.lane(offer())
				l.Desk = &desk.Desk{}
				done := make(chan error, 1)
				go func() {
					_, err := l.attempt(always(t), w.selection(offer()))
					done <- err
				}()
				time.Sleep(24 * time.Hour) // of the bubble's clock
				synctest.Wait()
				if w.count("complete") != 1 || stateOf(w) != attempt.StateTerminalPending {
					t.Fatalf("COMPLETE was sent %d times, record is %s", w.count("complete"), stateOf(w))
				}
				if err := l.Desk.Decide(t.Context(), w.records.Active()[0].Key, desk.Decision{Action: desk.Resume}); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil || w.count("complete") != 2 || stateOf(w) != attempt.StateTerminalConfirmed {
					t.Fatalf("%v; COMPLETE was sent %d times, record is %s", err, w.count("complete"), stateOf(w))
				}
			})
		})
	}
}

// once gives out one selection again and again, and counts.
type once struct {
	selection Selection
	asked     int
	free      func()
}

func (o *once) Next(ctx context.Context, _ int) (Selection, error) {
	o.asked++
	if o.asked == 3 {
		o.free()
	}
	if o.asked > 3 {
		<-ctx.Done()
		return Selection{}, context.Cause(ctx)
	}
	return o.selection, nil
}

// A store that is full when the record is to be made (another lane took the
// last place since admission looked) ends neither the lane nor the controller.
func TestStoreFullSinceAdmission(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		scope := w.lane(offer()).Starter.Scope
		for i := range 4 {
			origin := attempt.Origin{
				Scope: scope, Key: fmt.Sprint("other", i), Job: "j", Kind: "k", Input: attempt.Input{SHA256: protocol.DigestOf(nil)}, MaxExecutions: 1, Start: []byte("{}"),
			}
			if _, err := w.records.Create(t.Context(), attempt.StartPending{Origin: origin}); err != nil {
				t.Fatal(err)
			}
		}
		take, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		admission := &once{selection: w.selection(offer()), free: func() {
			e := w.records.Active()[0]
			if _, err := w.records.Apply(t.Context(), e, attempt.Over{Reason: attempt.EndStartRefused, Reply: attempt.Reply{Status: 409}, At: 1}); err != nil {
				t.Error(err)
			}
			if _, err := w.records.Archive(t.Context(), e.Key); err != nil {
				t.Error(err)
			}
		}}
		admission.selection.Release = func(breaker.End) { w.note("released") }
		l := w.lane(offer())
		l.Admission = admission
		if err := l.Run(Contexts{Take: take, Work: t.Context(), Final: t.Context()}, nil); err != nil {
			t.Fatalf("the lane ended: %v", err)
		}
		if admission.asked != 4 || w.count("released") != 3 || w.count("executed") != 1 {
			t.Fatalf("admission was asked %d times; events %q", admission.asked, w.events)
		}
	})
}
