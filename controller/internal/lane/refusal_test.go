package lane

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/breaker"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/protocol"
)

// refusedStart is a job service that refuses every START in a way that no
// repetition mends.
type refusedStart struct {
	*world
	sent int
}

func (r *refusedStart) Start(_ context.Context, _ []byte, beforeSend func(time.Time) error) (api.Admission, attempt.Reply, error) {
	if err := beforeSend(time.Now().Add(time.Minute)); err != nil {
		return api.Admission{}, attempt.Reply{}, err
	}
	r.sent++
	return api.Admission{}, attempt.Reply{}, &provider.Failure{Class: provider.ClassUnreachable, Disposition: protocol.Refused}
}

// A START that fails for good is taken up again ever more slowly, up to the
// pace's longest pause.
func TestStartFailureSlowsDown(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		api, l := &refusedStart{world: w}, w.lane(offer())
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
