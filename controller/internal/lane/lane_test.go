package lane

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/controller/internal/offering"
	"github.com/quittance/quittance/controller/internal/provider"
	"github.com/quittance/quittance/protocol"
)

// in runs a test in a bubble with its world.
func in(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newWorld(t)) })
}

// The ten steps in their order, each once.
func TestWholeLife(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		r, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed)
		if !ok || r.Outcome.Operation != attempt.OperationComplete {
			t.Fatalf("record is %s", stateOf(w))
		}
		w.order("start", "condition fetching_input", "allocate 1", "condition starting_worker", "phase running", "executed", "retire 1", "consume 1", "complete", "attach 1")
		if w.count("executed") != 1 || w.count("complete") != 1 || w.claims.Len() != 0 {
			t.Fatalf("events %q, %d claims", w.events, w.claims.Len())
		}
		if !attempt.Archivable(r) {
			t.Fatal("the record cannot be archived")
		}
	})
}

func stateOf(w *world) attempt.State { return w.records.Active()[0].Record.State() }

// hang answers nothing and ends when its channel does.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// What each end of the worker becomes.
func TestFailures(t *testing.T) {
	refuse := func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusInternalServerError) }
	for name, row := range map[string]struct {
		prepare func(w *world, o *offering.Offering)
		want    api.FailureCode
		entered bool
	}{
		"the worker says so": {func(w *world, _ *offering.Offering) { w.handler = refuse }, api.FailWorkerFailed, true},
		"the worker is killed for memory and says so": {func(w *world, _ *offering.Offering) {
			w.handler, w.killed = refuse, true
		}, api.FailWorkerOOM, true},
		"the worker vanishes": {func(w *world, _ *offering.Offering) {
			w.handler = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}, api.FailWorkerLost, true},
		"FR-31: a child is killed, the answer is fine": {func(w *world, _ *offering.Offering) { w.killed = true }, api.FailWorkerOOM, true},
		"FR-36: the worker never answers": {func(w *world, _ *offering.Offering) {
			w.handler = hang
		}, api.FailWorkerTimeout, true},
		"the job's own limit on work": {func(w *world, o *offering.Offering) {
			o.Limits.WorkTime = time.Minute
			w.handler = hang
		}, api.FailWorkTime, true},
		"an answer of another type": {func(w *world, o *offering.Offering) { o.Response.ContentType = "text/csv" }, api.FailProtocol, true},
		"an input of another type":  {func(w *world, o *offering.Offering) { o.Input.ContentType = "image/png" }, api.FailInvalidInput, false},
		"the profile changed":       {func(w *world, _ *offering.Offering) { w.refusals = []protocol.Code{protocol.CodeProfileChanged} }, api.FailUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				o := offer()
				row.prepare(w, o)
				_, ok := w.run(o, always(t)).(attempt.TerminalConfirmed)
				if f := w.failure(); !ok || f.Code != row.want || f.Entered != row.entered {
					t.Fatalf("FAIL %s, entered %v; want %s, %v", f.Code, f.Entered, row.want, row.entered)
				}
				if w.count("executed") > 1 {
					t.Fatal("executed twice")
				}
			})
		})
	}
}

// FR-31 in reverse: where the offering allows it, a killed child does not fail
// a good answer.
func TestKilledChildMayBeAllowed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		o := offer()
		o.FailOnOOM, w.killed = false, true
		if r, ok := w.run(o, always(t)).(attempt.TerminalConfirmed); !ok || r.Outcome.Operation != attempt.OperationComplete {
			t.Fatalf("record is %s", stateOf(w))
		}
	})
}

// FR-31, I22: where nothing can be read of the running worker's counters, its
// end says whether the kernel killed; what is unknown even then is not a kill.
func TestCountersThatCannotBeReadAreAwaited(t *testing.T) {
	for name, row := range map[string]struct {
		unread         reading
		killed, judges bool
		want           string
	}{
		"silent, killed":                    {silent, true, true, "fail"},
		"silent, not killed":                {silent, false, true, "complete"},
		"blind, killed":                     {blind, true, true, "fail"},
		"blind, not killed":                 {blind, false, true, "complete"},
		"never known":                       {never, true, true, "complete"},
		"silent, and the offering minds no": {silent, true, false, "complete"},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				o := offer()
				o.FailOnOOM, w.unread, w.killed = row.judges, row.unread, row.killed
				began := time.Now()
				if r, ok := w.run(o, always(t)).(attempt.TerminalConfirmed); !ok || w.committed != row.want {
					t.Fatalf("committed %q, want %q; record is %T", w.committed, row.want, r)
				}
				if row.want == "fail" && (w.failure().Code != api.FailWorkerOOM || !w.failure().Entered) {
					t.Fatalf("%+v", w.failure())
				}
				if time.Since(began) > 5*time.Minute {
					t.Fatalf("the outcome waited %s", time.Since(began))
				}
				retired := 1 // after the outcome
				if row.judges {
					retired = 2 // and before it, the same request
				}
				if w.count("retire 1") != retired {
					t.Fatalf("events %q", w.events)
				}
			})
		})
	}
}

// pure is an offering that allows a replacement execution.
func pure(onOOM string) *offering.Offering {
	o := offer()
	o.Pure, o.OnOOM = true, onOOM
	return o
}

// failFirst makes the first execution fail and the others answer.
func failFirst(w *world, first http.HandlerFunc) {
	answer := w.handler
	w.handler = func(rw http.ResponseWriter, r *http.Request) {
		if w.count("first") == 0 {
			w.note("first")
			first(rw, r)
			return
		}
		answer(rw, r)
	}
}

func vanish(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// I27: one replacement, on a new allocation, only after the first one is
// consumed, its entry durable before it runs.
func TestReplacement(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		failFirst(w, vanish)
		r, ok := w.run(pure(offering.OnOOMFail), always(t)).(attempt.TerminalConfirmed)
		if !ok || r.Outcome.Operation != attempt.OperationComplete || len(r.Executions) != 2 {
			t.Fatalf("record is %s; events %q", stateOf(w), w.events)
		}
		if e := r.Executions; e[0].Failure != string(api.FailWorkerLost) || e[0].Entered == nil || e[1].Entered == nil || e[0].Preparation.PreparedSHA256 != e[1].Preparation.PreparedSHA256 {
			t.Fatalf("executions %+v", e)
		}
		w.order("allocate 1", "first", "retire 1", "consume 1", "allocate 2", "executed", "retire 2", "consume 2", "complete")
	})
}

// FR-27: answers of the host that are lost between the two executions delay the
// replacement and do not prevent it.
func TestReplacementWaitsOutLosses(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		failFirst(w, vanish)
		w.lost = 3
		r, ok := w.run(pure(offering.OnOOMFail), always(t)).(attempt.TerminalConfirmed)
		if !ok || r.Outcome.Operation != attempt.OperationComplete || len(r.Executions) != 2 {
			t.Fatalf("record is %s; events %q", stateOf(w), w.events)
		}
		w.order("first", "consume 1", "consume 1", "consume 1", "consume 1", "allocate 2", "executed", "complete")
	})
}

// What is never replaced, and how a second failure ends.
func TestReplacementBounds(t *testing.T) {
	for name, row := range map[string]struct {
		offer   *offering.Offering
		prepare func(w *world)
		want    api.FailureCode
		entries int
	}{
		"a second failure ends the attempt":  {pure(offering.OnOOMFail), func(w *world) { w.handler = vanish }, api.FailWorkerLost, 2},
		"a kill for memory, on_oom fail":     {pure(offering.OnOOMFail), func(w *world) { w.handler, w.killed = vanish, true }, api.FailWorkerOOM, 1},
		"a kill for memory, on_oom same":     {pure(offering.OnOOMSame), func(w *world) { w.handler, w.killed = vanish, true }, api.FailWorkerOOM, 2},
		"a larger profile that is not there": {pure("huge"), func(w *world) { w.handler, w.killed = vanish, true }, api.FailWorkerOOM, 1},
		"not pure":                           {offer(), func(w *world) { w.handler = vanish }, api.FailWorkerLost, 1},
		"protocol errors":                    {pure(offering.OnOOMSame), func(w *world) { w.handler = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(200) } }, api.FailProtocol, 1},
		"the first is stuck":                 {pure(offering.OnOOMFail), func(w *world) { w.handler, w.stuck = vanish, true }, api.FailWorkerLost, 1},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				row.prepare(w)
				r, ok := w.run(row.offer, always(t)).(attempt.TerminalConfirmed)
				entries := 0
				for _, e := range attempt.ExecutionsOf(r) {
					if e.Entered != nil {
						entries++
					}
				}
				if f := w.failure(); !ok || f.Code != row.want || entries != row.entries || !f.Entered {
					t.Fatalf("FAIL %s after %d entries, entered %v; want %s after %d", f.Code, entries, f.Entered, row.want, row.entries)
				}
			})
		})
	}
}

// A cancel between the two executions: no second one.
func TestCancelledBeforeReplacement(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.handler = func(http.ResponseWriter, *http.Request) {
			w.set(func() { w.jobState = api.JobCancelled })
			panic(http.ErrAbortHandler)
		}
		if _, ok := w.run(pure(offering.OnOOMFail), always(t)).(attempt.TerminalConfirmed); !ok || w.failure().Code != api.FailCancelled {
			t.Fatalf("record is %s", stateOf(w))
		}
		if w.count("allocate 2") != 0 {
			t.Fatalf("events %q", w.events)
		}
	})
}

// A refusal for want of room is waited out; its numbers are taken back.
func TestCapacityIsWaitedFor(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.refusals = []protocol.Code{protocol.CodeCapacity, protocol.CodeBudget, protocol.CodeEngineUnavailable}
		r, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed)
		if !ok || len(r.Executions) != 1 {
			t.Fatalf("record is %s", stateOf(w))
		}
		w.order("condition waiting_for_capacity", "allocate 1", "executed", "complete")
	})
}

// stopDuring makes the worker hang and runs change meanwhile.
func stopDuring(w *world, change func()) {
	w.handler = func(_ http.ResponseWriter, r *http.Request) {
		w.note("executed")
		w.set(change)
		hang(nil, r)
	}
}

// A user's cancel retires the worker first and ends the attempt as cancelled.
func TestCancelled(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		stopDuring(w, func() { w.jobState = api.JobCancelled })
		if _, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed); !ok || w.failure().Code != api.FailCancelled {
			t.Fatalf("%+v", w.failure())
		}
		w.order("executed", "retire 1", "consume 1", "fail", "attach 1")
	})
}

// FR-29: an attempt that is over ends without any terminal request of ours.
func TestOverDuringRun(t *testing.T) {
	for name, row := range map[string]struct {
		change func(w *world)
		want   attempt.EndReason
	}{
		"expired":     {func(w *world) { w.state = api.AttemptExpired }, attempt.EndExpired},
		"not visible": {func(w *world) { w.visible = false }, attempt.EndNotVisible},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, w *world) {
				stopDuring(w, func() { row.change(w) })
				r, ok := w.run(offer(), always(t)).(attempt.Ended)
				if !ok || r.Reason != row.want || w.count("fail")+w.count("complete") != 0 {
					t.Fatalf("record is %s; events %q", stateOf(w), w.events)
				}
				w.order("executed", "retire 1", "consume 1", "attach 1")
			})
		})
	}
}

// I28: an outcome that may not be published is kept with its exact bytes, and
// never sent.
func TestSuppressed(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		answer := w.handler
		w.handler = func(rw http.ResponseWriter, r *http.Request) {
			w.set(func() { w.state = api.AttemptExpired })
			answer(rw, r)
		}
		r, ok := w.run(offer(), always(t)).(attempt.Suppressed)
		if !ok || r.Candidate.Operation != attempt.OperationComplete || r.Why != attempt.EndExpired {
			t.Fatalf("record is %s", stateOf(w))
		}
		var kept api.Complete
		if err := api.Decode(r.Candidate.Body, api.RouteComplete.MaxRequest, &kept); err != nil || string(kept.Data) != "{}" {
			t.Fatalf("%v, %s", err, kept.Data)
		}
		if w.count("complete")+w.count("fail") != 0 {
			t.Fatalf("events %q", w.events)
		}
	})
}

// The gap: the worker is stopped although the service cannot be heard; once it
// can, the attempt ends as interrupted. No person is needed.
func TestGapExpires(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		stopDuring(w, func() { w.down = true })
		time.AfterFunc(3*time.Hour, func() { w.set(func() { w.down = false }) })
		began := time.Now()
		if _, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed); !ok || w.failure().Code != api.FailInterrupted || !w.failure().Entered {
			t.Fatalf("%+v", w.failure())
		}
		if time.Since(began) < 3*time.Hour {
			t.Fatal("the outcome was published before the service came back")
		}
		w.order("executed", "retire 1", "consume 1", "fail")
	})
}

// I19, I31: a worker stuck in the kernel does not hold back the result.
func TestStuckWorker(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.stuck = true
		r, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed)
		if !ok || r.Outcome.Operation != attempt.OperationComplete || r.Executions[0].Settlement != attempt.SettlementStuck {
			t.Fatalf("record is %s", stateOf(w))
		}
	})
}

var (
	expired  = &provider.Failure{Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeAttemptExpired, Reply: attempt.Reply{Status: 409}}
	opposite = &provider.Failure{Class: provider.ClassRefused, Disposition: protocol.Refused, Status: 409, Code: api.CodeOppositeOutcome, Reply: attempt.Reply{Status: 409}}
	lost     = &provider.Failure{Class: provider.ClassLost, Disposition: protocol.Unknown, Repeat: true}
)

// I26: a lost reply is followed by the same bytes.
func TestCompleteLost(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.terminal = []*provider.Failure{lost, lost}
		if _, ok := w.run(offer(), always(t)).(attempt.TerminalConfirmed); !ok || len(w.bodies["complete"]) != 3 {
			t.Fatalf("%d sends", len(w.bodies["complete"]))
		}
		for _, b := range w.bodies["complete"] {
			if string(b) != string(w.bodies["complete"][0]) {
				t.Fatal("other bytes")
			}
		}
	})
}

// A refusal for good is a hold; one that only time explains frees the lane.
func TestHeldExpired(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.terminal = []*provider.Failure{expired}
		if r, ok := w.run(offer(), always(t)).(attempt.TerminalHeld); !ok || r.Reason != attempt.HoldExpired || !attempt.Archivable(r) {
			t.Fatalf("record is %s", stateOf(w))
		}
	})
}

// I32: where somebody else acted under our identity the lane waits for a
// person, and goes on once he has decided.
func TestHeldForAPerson(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		w.terminal = []*provider.Failure{opposite}
		decided := time.Now().Add(5 * time.Hour)
		time.AfterFunc(5*time.Hour, func() {
			e := w.records.Active()[0]
			if _, err := w.records.Apply(t.Context(), e, attempt.Resolved{Resolution: attempt.Resolution{Note: "looked"}}); err != nil {
				t.Error(err)
			}
		})
		r, ok := w.run(offer(), always(t)).(attempt.TerminalHeld)
		if !ok || r.Resolution == nil || time.Now().Before(decided) {
			t.Fatalf("record is %s at %s", stateOf(w), time.Now())
		}
	})
}

// Shutdown: the running attempt is stopped and published within the final wait.
func TestStoppedByTheController(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithCancelCause(t.Context())
		stopDuring(w, func() { stop(errors.New("SIGTERM")) })
		if _, ok := w.run(offer(), Contexts{Take: work, Work: work, Final: t.Context()}).(attempt.TerminalConfirmed); !ok || w.failure().Code != api.FailInterrupted {
			t.Fatalf("%+v", w.failure())
		}
	})
}

// What does not settle in the final wait stays as its record says, and the next
// process goes on from there by the same path (I15).
func TestFinalWaitThenRestart(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithCancelCause(t.Context())
		final, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		stopDuring(w, func() {
			w.down = true
			stop(errors.New("SIGTERM"))
		})
		r, ok := w.run(offer(), Contexts{Take: work, Work: work, Final: final}).(attempt.Acknowledged)
		if !ok || r.Executions[0].Settlement != attempt.SettlementConsumed || w.claims.Len() != 0 {
			t.Fatalf("record is %s", stateOf(w))
		}
		w.down = false
		claim, err := w.claims.Claim(r.Origin.Key)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.lane(offer()).finish(always(t), reopen(t, w, claim), w.known()); err != nil {
			t.Fatal(err)
		}
		if f := w.failure(); f.Code != api.FailInterrupted || !f.Entered || w.count("executed") != 1 {
			t.Fatalf("%+v; events %q", f, w.events)
		}
	})
}

// on_restart = "hold": an entered attempt waits for a person after a restart.
func TestRestartHold(t *testing.T) {
	in(t, func(t *testing.T, w *world) {
		work, stop := context.WithCancelCause(t.Context())
		gone, end := context.WithCancel(t.Context())
		stopDuring(w, func() {
			stop(errors.New("killed"))
			end()
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
		waited, end2 := context.WithTimeout(t.Context(), 24*time.Hour)
		defer end2()
		err = w.lane(o).finish(Contexts{Take: waited, Work: waited, Final: waited}, reopen(t, w, claim), w.known())
		if !errors.Is(err, context.DeadlineExceeded) || w.count("fail") != 0 {
			t.Fatalf("%v; events %q", err, w.events)
		}
		w.order("executed", "retire 1", "consume 1")
	})
}
