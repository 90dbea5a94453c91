package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	_ "github.com/quittance/quittance/integration/seed"
	"github.com/quittance/quittance/protocol"
)

func newHost(a *agent) (*Host, *intents, seenMemory) {
	seen := seenMemory{}
	return New(a, seen, Options{Owner: owner, Backoff: time.Millisecond, BackoffMax: 4 * time.Millisecond}), &intents{a: a, open: map[protocol.Number]bool{}}, seen
}

func request(purpose string) protocol.AllocateRequest {
	return protocol.AllocateRequest{Profile: "p", Purpose: purpose}
}

func want(t *testing.T, a *agent, calls string) {
	t.Helper()
	if got := fmt.Sprint(a.log()); got != calls {
		t.Fatalf("calls\n got %s\nwant %s", got, calls)
	}
}

func TestAllocate(t *testing.T) {
	a := newAgent(t)
	h, i, _ := newHost(a)
	for n := range protocol.Number(3) {
		got, err := h.Allocate(t.Context(), request(fmt.Sprint("a", n)), i)
		if err != nil || got.Number != n+1 {
			t.Fatalf("%d, %v", got.Number, err)
		}
	}
	want(t, a, "[allocate 1 allocate 2 allocate 3]")
}

// I7: a refused request consumes no number, and its intent is withdrawn.
func TestAllocateRefused(t *testing.T) {
	a := newAgent(t)
	a.refuse = protocol.CodeCapacity
	h, i, _ := newHost(a)
	_, err := h.Allocate(t.Context(), request("a"), i)
	problem, ok := errors.AsType[*protocol.Problem](err)
	if !ok || problem.Code != protocol.CodeCapacity || len(i.open) != 0 {
		t.Fatalf("%v, open %v", err, i.open)
	}
	a.refuse = ""
	if got, err := h.Allocate(t.Context(), request("b"), i); err != nil || got.Number != 1 {
		t.Fatalf("%d, %v", got.Number, err)
	}
}

// lossy loses the first n exchanges of an operation in a way.
func lossy(op, way string, n int) func(string, protocol.Number) string {
	return func(got string, _ protocol.Number) string {
		if got == op && n > 0 {
			n--
			return way
		}
		return ""
	}
}

// FR-14: a lost reply is repeated with the same number: one allocation.
func TestAllocateReplyLost(t *testing.T) {
	for _, way := range []string{"before", "after"} {
		t.Run(way, func(t *testing.T) {
			a := newAgent(t)
			a.lose = lossy("allocate", way, 3)
			h, i, _ := newHost(a)
			got, err := h.Allocate(t.Context(), request("a"), i)
			if err != nil || got.Number != 1 || a.accepted != 1 {
				t.Fatalf("%d, %v; the agent accepted %d", got.Number, err, a.accepted)
			}
			want(t, a, "[allocate 1 allocate 1 allocate 1 allocate 1]")
		})
	}
}

// I11: a refusal after a lost send says nothing of that send; the number is
// retired, which burns it where it was never accepted.
func TestAllocateRefusedAfterLoss(t *testing.T) {
	a := newAgent(t)
	a.refuse = protocol.CodeCapacity
	a.lose = lossy("allocate", "after", 1)
	h, i, _ := newHost(a)
	_, err := h.Allocate(t.Context(), request("a"), i)
	burnt, ok := errors.AsType[*BurntError](err)
	if !ok || burnt.Number != 1 || !i.open[1] {
		t.Fatalf("%v, open %v", err, i.open)
	}
	want(t, a, "[allocate 1 allocate 1 retire 1]")
	a.refuse = ""
	if got, err := h.Allocate(t.Context(), request("b"), i); err != nil || got.Number != 2 {
		t.Fatalf("%d, %v", got.Number, err)
	}
}

// Number N + 1 is never proposed while N is unknown: the next allocation first
// settles what an interrupted one left.
func TestAllocateInterrupted(t *testing.T) {
	for _, way := range []string{"before", "after"} {
		t.Run(way, func(t *testing.T) {
			a := newAgent(t)
			h, i, _ := newHost(a)
			ctx, cancel := context.WithCancelCause(t.Context())
			stop := errors.New("stop")
			a.lose = func(op string, _ protocol.Number) string {
				if op == "allocate" {
					cancel(stop)
					return way
				}
				return ""
			}
			_, err := h.Allocate(ctx, request("a"), i)
			if u, ok := errors.AsType[*UnknownError](err); !ok || u.Number != 1 || !errors.Is(err, stop) || !i.open[1] {
				t.Fatalf("%v, open %v", err, i.open)
			}
			a.lose = nil
			got, err := h.Allocate(t.Context(), request("b"), i)
			if err != nil || got.Number != 2 {
				t.Fatalf("%d, %v", got.Number, err)
			}
			want(t, a, "[allocate 1 retire 1 allocate 2]")
			// The attempt that was interrupted still finds and settles its number.
			if err := h.Retire(t.Context(), a.gen, 1, "a", ""); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A burn that the agent refuses, by a lane that recovers or inside an
// allocation, holds back neither other lanes' retirements nor, once it is
// possible, the sequence.
func TestRefusedBurnHoldsNobodyBack(t *testing.T) {
	for _, from := range []string{"retire", "allocate"} {
		t.Run(from, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAgent(t)
				h, i, _ := newHost(a)
				if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
					t.Fatal(err)
				}
				a.noBurn = protocol.CodeHistoryFull
				burnt := make(chan error, 1)
				go func() {
					if from == "retire" {
						burnt <- h.Retire(t.Context(), a.gen, 2, "b", "")
						return
					}
					a.mu.Lock()
					a.refuse, a.lose = protocol.CodeHistoryFull, lossy("allocate", "before", 1)
					a.mu.Unlock()
					_, err := h.Allocate(t.Context(), request("b"), i)
					if b, ok := errors.AsType[*BurntError](err); ok && b.Number == 2 {
						err = nil
					}
					burnt <- err
				}()
				time.Sleep(time.Minute) // of the bubble: the burn is refused again and again
				minute, end := context.WithTimeout(t.Context(), time.Minute)
				defer end()
				if err := h.Retire(minute, a.gen, 1, "a", ""); err != nil {
					t.Fatalf("another lane's retirement: %v", err)
				}
				// The token is free between two tries of the burn.
				if err := h.lock(minute); err != nil {
					t.Fatalf("the sequence stays locked: %v", err)
				}
				h.unlock()
				a.mu.Lock()
				a.noBurn, a.refuse = "", ""
				a.mu.Unlock()
				if err := <-burnt; err != nil {
					t.Fatal(err)
				}
				if got, err := h.Allocate(t.Context(), request("c"), i); err != nil || got.Number != 3 {
					t.Fatalf("%d, %v", got.Number, err)
				}
			})
		})
	}
}

// While an allocation's answer is lost again and again, accepted numbers are
// retired all the same.
func TestRetireWhileAllocationIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t)
		h, i, _ := newHost(a)
		if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
			t.Fatal(err)
		}
		a.lose = lossy("allocate", "after", 1_000_000)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := h.Allocate(ctx, request("b"), i)
			ended <- err
		}()
		time.Sleep(time.Minute)
		minute, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		if err := h.Retire(minute, a.gen, 1, "a", ""); err != nil {
			t.Fatal(err)
		}
		stop()
		if _, ok := errors.AsType[*UnknownError](<-ended); !ok {
			t.Fatal("the unanswered allocation was settled")
		}
	})
}

// A number that another purpose holds was never this attempt's.
func TestRetireOfSomebodyElses(t *testing.T) {
	a := newAgent(t)
	h, i, _ := newHost(a)
	if _, err := h.Allocate(t.Context(), request("other"), i); err != nil {
		t.Fatal(err)
	}
	if err := h.Retire(t.Context(), a.gen, 1, "mine", ""); !errors.Is(err, ErrNotOurs) {
		t.Fatalf("%v", err)
	}
	a.released = 1
	delete(a.all, 1)
	if err := h.Retire(t.Context(), a.gen, 1, "other", ""); !errors.Is(err, ErrReleased) {
		t.Fatalf("%v", err)
	}
}

// I9: the agent asks for the witness after its start; one that is behind is
// asked nothing more.
func TestWitness(t *testing.T) {
	a := newAgent(t)
	h, i, seen := newHost(a)
	if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
		t.Fatal(err)
	}
	before := seen[a.gen].Checkpoint
	if before == "" {
		t.Fatal("the checkpoint was not saved at the first contact")
	}
	a.witnessed = false // the agent restarted
	if got, err := h.Allocate(t.Context(), request("b"), i); err != nil || got.Number != 2 {
		t.Fatalf("%d, %v", got.Number, err)
	}
	if seen[a.gen].Checkpoint == before {
		t.Fatal("the new checkpoint was not saved")
	}
	a.witnessed, a.behind = false, true
	_, err := h.Allocate(t.Context(), request("c"), i)
	if _, ok := errors.AsType[*BehindError](err); !ok || len(i.open) != 2 {
		t.Fatalf("%v, open %v", err, i.open)
	}
}

// I9: history was released beyond all that this controller holds: an older copy
// of its store was put back. Nothing is asked any more, and the way on is named;
// once the witness is forgotten, work goes on.
func TestWitnessOfAnOlderStore(t *testing.T) {
	a := newAgent(t)
	h, i, seen := newHost(a)
	if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
		t.Fatal(err)
	}
	a.witnessed, a.pruned = false, true
	for name, ask := range map[string]func() error{
		"allocate": func() error { _, err := h.Allocate(t.Context(), request("b"), i); return err },
		"burn":     func() error { return h.Retire(t.Context(), a.gen, 2, "b", "") },
	} {
		err := ask()
		if older, ok := errors.AsType[*OlderError](err); !ok || older.Generation != a.gen || !NeedsPerson(err) || !strings.Contains(err.Error(), "controller store forget "+string(a.gen)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a.accepted != 1 || len(i.open) != 1 {
		t.Fatalf("accepted %d, open %v", a.accepted, i.open)
	}
	delete(seen, a.gen)
	if got, err := h.Allocate(t.Context(), request("b"), i); err != nil || got.Number != 2 {
		t.Fatalf("%d, %v", got.Number, err)
	}
}

// A log that does not extend the saved checkpoint is a ledger behind, whatever
// the agent says.
func TestWitnessOfAnotherLog(t *testing.T) {
	a := newAgent(t)
	h, i, seen := newHost(a)
	if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
		t.Fatal(err)
	}
	if err := h.Retire(t.Context(), a.gen, 1, "a", ""); err != nil {
		t.Fatal(err)
	}
	if err := h.PresentWitness(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The same key signs another history of the same length and more.
	a.leaves, a.hashes = nil, nil
	for range 6 {
		a.append(protocol.KindAgentStarted, 0, protocol.AgentStartedBody{BootID: a.gen, Versions: protocol.Versions{Protocol: []int{1}}})
	}
	err := h.PresentWitness(t.Context())
	if _, ok := errors.AsType[*BehindError](err); !ok {
		t.Fatalf("%v; saved %q", err, seen[a.gen].Checkpoint)
	}
}

func TestReceiptsAreVerified(t *testing.T) {
	a := newAgent(t)
	h, i, seen := newHost(a)
	if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
		t.Fatal(err)
	}
	if err := h.Retire(t.Context(), a.gen, 1, "a", ""); err != nil {
		t.Fatal(err)
	}
	retired, err := h.Wait(t.Context(), 1, protocol.StateRetired)
	if err != nil {
		t.Fatal(err)
	}
	consumed, err := h.Consume(t.Context(), retired)
	if err != nil || consumed.State != protocol.StateConsumed {
		t.Fatalf("%s, %v", consumed.State, err)
	}
	all, key, err := h.Receipts(t.Context(), consumed, 16)
	if err != nil || len(all) != 3 || key != a.signer.PublicKey() {
		t.Fatalf("%d receipts, key %s, %v", len(all), key, err)
	}
	if highest := seen[a.gen].Highest; highest == nil || highest.Index != all[2].Index {
		t.Fatalf("highest seen %+v", highest)
	}
	for name, spoil := range map[string]func(){
		"another leaf": func() { a.leaves[1] = a.leaves[2] },
		"a changed leaf": func() {
			a.leaves[1] = protocol.EncodeReceipt(a.gen, 1, protocol.KindAccepted, 1, 0, protocol.AcceptedBody{Owner: owner, Purpose: "b"})
		},
		"a changed tree": func() { a.hashes[0][0] ^= 1 },
	} {
		t.Run(name, func(t *testing.T) {
			leaves, hashes := append([][]byte(nil), a.leaves...), append(a.hashes[:0:0], a.hashes...)
			defer func() { a.leaves, a.hashes = leaves, hashes }()
			spoil()
			if _, _, err := h.Receipts(t.Context(), consumed, 16); err == nil {
				t.Fatal("accepted")
			}
		})
	}
}

// What a container can provoke is left out before anything else.
func TestChooseReceipts(t *testing.T) {
	entries := []protocol.ReceiptEntry{{Index: 1, Kind: protocol.KindAccepted}, {Index: 2, Kind: protocol.KindStarted}}
	for i := range 20 {
		entries = append(entries, protocol.ReceiptEntry{Index: protocol.Index(3 + i), Kind: protocol.KindOOMObserved})
	}
	entries = append(entries, protocol.ReceiptEntry{Index: 30, Kind: protocol.KindExited}, protocol.ReceiptEntry{Index: 31, Kind: protocol.KindRetired})
	kept := choose(entries, 6)
	var kinds []protocol.Kind
	for _, e := range kept {
		kinds = append(kinds, e.Kind)
	}
	if got := fmt.Sprint(kinds); got != "[accepted started oom_observed oom_observed exited retired]" {
		t.Fatal(got)
	}
}

// Reads go on over losses until their context ends.
func TestWaitRepeatsLostReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t)
		h, i, _ := newHost(a)
		if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
			t.Fatal(err)
		}
		a.lose = lossy("get", "after", 5)
		if _, err := h.Wait(t.Context(), 1, protocol.StateStarted); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Wait(ctx, 1, protocol.StateRetired); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v", err)
		}
		if _, err := h.Wait(t.Context(), 9, protocol.StateStarted); err == nil {
			t.Fatal("an unknown number was waited for")
		}
	})
}

// A lost hand-over is asked for again, an answer is an answer, and the context
// bounds it all.
func TestChannelRepeatsLostHandovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t)
		h, _, _ := newHost(a)
		a.lose = lossy("channel", "after", 3)
		minute, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		_, err := h.Channel(minute, 1, "a")
		if problem, ok := errors.AsType[*protocol.Problem](err); !ok || problem.Code != protocol.CodeNotConnectable {
			t.Fatalf("%v", err)
		}
		want(t, a, "[channel 1 channel 1 channel 1 channel 1]")
		a.lose = lossy("channel", "before", 1_000_000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.Channel(ctx, 1, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v", err)
		}
	})
}

// Every repetition is a notice that says of what and why, once per reason.
func TestRepetitionsAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t)
		h, i, _ := newHost(a)
		var lines bytes.Buffer
		h.opts.Log = hclog.New(&hclog.LoggerOptions{Output: &lines, JSONFormat: true})
		if _, err := h.Allocate(t.Context(), request("a"), i); err != nil {
			t.Fatal(err)
		}
		a.lose = lossy("retire", "before", 5)
		if err := h.Retire(t.Context(), a.gen, 1, "a", ""); err != nil {
			t.Fatal(err)
		}
		got := lines.String()
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, `"operation":"retire"`) || !strings.Contains(got, `"number":1`) || !strings.Contains(got, "lost before the agent") {
			t.Fatalf("notices:\n%s", got)
		}
	})
}

// I5, I7, I11: whatever is lost, interrupted or refused, numbers are proposed
// one after the other, every accepted one has an intent, and an intent without
// an allocation is one whose number is settled by its retirement.
func TestSequenceProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := newAgent(t)
		h, i, _ := newHost(a)
		losses := rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "before", "after"}), 60, 60).Draw(rt, "losses")
		next := 0
		a.lose = func(op string, _ protocol.Number) string {
			if op != "allocate" && op != "retire" || next == len(losses) {
				return ""
			}
			next++
			return losses[next-1]
		}
		purposes := map[protocol.Number]string{}
		for step := range rapid.IntRange(1, 12).Draw(rt, "steps") {
			a.refuse = rapid.SampledFrom([]protocol.Code{"", "", protocol.CodeCapacity}).Draw(rt, "refuse")
			ctx, cancel := context.WithCancel(t.Context())
			if rapid.Bool().Draw(rt, "interrupt") {
				time.AfterFunc(time.Duration(rapid.IntRange(0, 5).Draw(rt, "after"))*time.Millisecond, cancel)
			}
			purpose := fmt.Sprint("a", step)
			before := len(i.all)
			_, _ = h.Allocate(ctx, request(purpose), i) // every outcome is judged below
			for _, n := range i.all[before:] {
				purposes[n] = purpose
			}
			cancel()
		}
		a.lose, a.refuse = nil, ""
		for n := range i.open {
			if err := h.Retire(t.Context(), a.gen, n, purposes[n], ""); err != nil && !errors.Is(err, ErrNotOurs) {
				rt.Fatalf("number %d cannot be settled: %v", n, err)
			}
		}
		for n := protocol.Number(1); n <= a.accepted; n++ {
			if a.all[n] == nil {
				rt.Fatalf("number %d is missing", n)
			}
			if !i.open[n] || a.all[n].Purpose != purposes[n] {
				rt.Fatalf("number %d was accepted for %q without a standing intent", n, a.all[n].Purpose)
			}
		}
	})
}

// I11: an effect that may have happened names itself, its disposition and what it
// concerns, in its text and in the fields of a notice, however it is wrapped.
func TestUnknownEffectNamesItself(t *testing.T) {
	generation := protocol.ID("0123456789abcdef0123456789abcdef")
	err := fmt.Errorf("lane: %w", &UnknownError{"retire", generation, 7, errors.New("reset")})
	if got, want := err.Error(), "lane: host: retire 7 of generation "+string(generation)+": unknown effect: reset"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	want := []any{"operation", "retire", "disposition", "unknown", "generation", string(generation), "number", int64(7)}
	if got := Fields(err); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Fields(errors.New("reset")); got != nil {
		t.Errorf("%v for what is no effect", got)
	}
}
