package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

// asked is a request of the model's, to compare its answer with.
type asked struct {
	verb   string
	number protocol.Number
}

// checkAnswer compares an effect's answer with what was asked: the receipt is
// of that kind and number, and an equal request gets the equal one (I12).
func (w *world) checkAnswer(id RequestID, leaf []byte, r protocol.Receipt) {
	q := w.asked[id]
	kind := map[string]protocol.Kind{
		"allocate": protocol.KindAccepted, "lease": protocol.KindAccepted, "consume": protocol.KindConsumed,
	}[q.verb]
	if kind == "" {
		return
	}
	if r.Kind != kind || r.Number == nil || *r.Number != q.number {
		w.fail("%s %d is answered with another receipt: %s", q.verb, q.number, leaf)
		return
	}
	key := fmt.Sprint(kind, q.number)
	if first, known := w.answered[key]; known && first != string(leaf) {
		w.fail("%s %d is answered differently the second time", q.verb, q.number)
	}
	w.answered[key] = string(leaf)
}

// checkHistory follows the durable receipts in their order: what occupies a
// slot, what may be released, and what must still be held (I18, I19, I21).
func (w *world) checkHistory() {
	type life struct{ burn, started, exited, retired, consumed, stuck, released bool }
	lives := map[protocol.Number]*life{}
	var frontier protocol.Number
	release := func(b protocol.ReleasedBody) {
		if b.Frontier < frontier {
			w.fail("the released frontier went from %d back to %d", frontier, b.Frontier)
		}
		frontier = b.Frontier
		for _, n := range b.Except {
			if l := lives[n]; l == nil || !l.stuck {
				w.fail("number %d is excepted from a release and not stuck", n)
			}
		}
		for n, l := range lives {
			if n > frontier || slices.Contains(b.Except, n) {
				continue
			}
			if !l.consumed {
				w.fail("number %d is released and not consumed", n)
			}
			l.released = true
		}
	}
	for i, group := range w.groups {
		for _, e := range group {
			if !e.Receipt {
				continue
			}
			r, err := w.decoded.receipt(e.Payload)
			if err != nil {
				w.fail("ledger: %v", err)
				return
			}
			if r.Kind == protocol.KindReleased {
				if b, err := protocol.BodyOf[protocol.ReleasedBody](r); err != nil {
					w.fail("ledger: %v", err)
				} else {
					release(b)
				}
			}
			if r.Number == nil {
				continue
			}
			l := lives[*r.Number]
			if l == nil {
				l = &life{burn: !bytes.Contains(e.Payload, []byte(`"nonce":"`))}
				lives[*r.Number] = l
			}
			if l.released {
				w.fail("%s of number %d after its release", r.Kind, *r.Number)
			}
			switch r.Kind {
			case protocol.KindStarted:
				l.started = true
			case protocol.KindExited:
				l.exited = true
			case protocol.KindStuck:
				l.stuck = true
			case protocol.KindUnstuck:
				l.stuck = false
			case protocol.KindRetired:
				if l.started && !l.exited {
					w.fail("number %d is retired without its exit", *r.Number) // I18
				}
				l.retired, l.stuck = true, false
			case protocol.KindConsumed:
				l.consumed = true
			}
			slots := 0
			for _, l := range lives {
				if !l.consumed && !l.burn {
					slots++
				}
			}
			if i < w.durable && slots > w.bounds.MaxSlots {
				w.fail("%d allocations are not consumed; max_slots is %d", slots, w.bounds.MaxSlots)
			}
		}
	}
	for n, l := range lives {
		if !l.released && w.state.Allocation(n) == nil {
			w.fail("number %d is not released and forgotten", n) // I21
		}
	}
}

// stepFunc is [Step] or a broken form of it.
type stepFunc func(*State, *Session, Now, Event) Output

// write is the output of one receipt that a variant decided upon
// by itself.
func write(s *State, v *Session, now Now, kind protocol.Kind, n protocol.Number, body any) Output {
	x := &stepper{s: s, v: v, now: now}
	x.receipt(kind, n, body)
	return x.out
}

// variants are forms of Step that each break one promise. The model must catch
// every one; it must not catch Step itself.
var variants = map[string]stepFunc{
	"number-reused": func(s *State, v *Session, now Now, e Event) Output {
		if a, ok := e.(Allocate); ok && a.Number == s.Accepted && s.allocations[a.Number] != nil && s.allocations[a.Number].Retired != nil {
			delete(s.allocations, a.Number)
			s.Accepted--
		}
		return Step(s, v, now, e)
	},
	"number-skipped": func(s *State, v *Session, now Now, e Event) Output {
		if a, ok := e.(Allocate); ok && a.Number == s.Accepted+2 {
			s.Accepted++
		}
		return Step(s, v, now, e)
	},
	"retired-before-removed": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if exit, ok := e.(WorkExited); ok {
			out.Effects = slices.DeleteFunc(out.Effects, func(e Effect) bool { _, removes := e.(RemoveEffect); return removes })
			more := Step(s, v, now, WorkRemoved{Number: exit.Number, Removal: allRemoved})
			out.Entries = append(out.Entries, more.Entries...)
			out.Effects = append(out.Effects, more.Effects...)
			out.Replies = append(out.Replies, more.Replies...)
		}
		return out
	},
	"retired-without-exited": func(s *State, v *Session, now Now, e Event) Output {
		exit, ok := e.(WorkExited)
		if !ok {
			return Step(s, v, now, e)
		}
		x := &stepper{s: s, v: v, now: now}
		a, r := x.live(exit.Number, "exited", phaseInspecting, phaseRunning, phaseStopping)
		x.intendRetire(a, RetireBody{Reason: protocol.ReasonExited})
		x.remove(a, r, false)
		return x.out
	},
	"consumed-unretired": func(s *State, v *Session, now Now, e Event) Output {
		if c, ok := e.(Consume); ok {
			if a := s.allocations[c.Number]; a != nil && a.Retired == nil {
				return write(s, v, now, protocol.KindConsumed, c.Number, protocol.ConsumedBody{RetiredLeaf: c.Body.LeafHash})
			}
		}
		return Step(s, v, now, e)
	},
	"consumed-twice": func(s *State, v *Session, now Now, e Event) Output {
		if c, ok := e.(Consume); ok {
			if a := s.allocations[c.Number]; a != nil && a.Consumed {
				a.Consumed = false
			}
		}
		return Step(s, v, now, e)
	},
	"released-unconsumed": func(s *State, v *Session, now Now, e Event) Output {
		if r, ok := e.(Release); ok {
			for n, a := range s.allocations {
				if n <= r.Body.Frontier && a.Retired != nil {
					a.Consumed = true
				}
			}
		}
		return Step(s, v, now, e)
	},
	"release-drops-stuck": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if r, ok := e.(Release); ok && out.Base != nil {
			out.Base = nil // nor is it in the base
			for _, n := range r.Body.Except {
				delete(s.allocations, n)
				delete(v.runs, n)
			}
		}
		return out
	},
	"release-excepts-others": func(s *State, v *Session, now Now, e Event) Output {
		r, ok := e.(Release)
		if !ok || len(r.Body.Except) > 0 || r.Body.Frontier > s.Accepted {
			return Step(s, v, now, e)
		}
		except := []protocol.Number{}
		for n, a := range s.allocations {
			if n <= r.Body.Frontier && !a.Consumed {
				except = append(except, n)
			}
		}
		slices.Sort(except)
		return write(s, v, now, protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: r.Body.Frontier, Except: except})
	},
	"frontier-goes-back": func(s *State, v *Session, now Now, e Event) Output {
		if r, ok := e.(Release); ok && r.Body.Frontier < s.Released {
			return write(s, v, now, protocol.KindReleased, 0, protocol.ReleasedBody{Frontier: r.Body.Frontier, Except: []protocol.Number{}})
		}
		return Step(s, v, now, e)
	},
	"gap-in-indices": func(s *State, v *Session, now Now, e Event) Output {
		if _, ok := e.(Consume); ok {
			s.Next++
		}
		return Step(s, v, now, e)
	},
	"slot-freed-at-exited": func(s *State, v *Session, now Now, e Event) Output {
		bounds := v.Bounds
		defer func() { v.Bounds = bounds }()
		for _, a := range s.allocations {
			if a.Exited != nil && !a.Consumed {
				v.Bounds.MaxSlots++
			}
		}
		return Step(s, v, now, e)
	},
	"replay-answers-the-latest": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if a, ok := e.(Allocate); ok && len(out.Entries) == 0 && len(out.Replies) == 1 {
			if answer, done := out.Replies[0].Body.(*protocol.EffectAnswer); done {
				receipts := s.allocations[a.Number].receipts
				answer.Receipt = receipts[len(receipts)-1].Leaf
			}
		}
		return out
	},
	"replay-creates-again": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if a, ok := e.(Allocate); ok && len(out.Entries) == 0 && len(out.Replies) == 1 && out.Replies[0].Problem == nil {
			if known := s.allocations[a.Number]; known.Profile != nil {
				out.Effects = append(out.Effects, CreateEffect{Number: a.Number, Nonce: *known.Accepted.Nonce, Profile: known.Profile})
			}
		}
		return out
	},
	"started-twice": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if _, ok := e.(WorkCreated); ok {
			for _, f := range slices.Clone(out.Effects) {
				if start, starts := f.(StartEffect); starts {
					out.Effects = append(out.Effects, start)
				}
			}
		}
		return out
	},
	"forgotten-at-restart": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		if _, ok := e.(Started); ok {
			out.Effects = nil
		}
		return out
	},
	"removed-while-running": func(s *State, v *Session, now Now, e Event) Output {
		out := Step(s, v, now, e)
		for i, f := range out.Effects {
			if stop, ok := f.(StopEffect); ok && !stop.Kill {
				out.Effects[i] = removeEffect(s.allocations[stop.Number], false)
			}
		}
		return out
	},
}

// alarm takes what would end a test of the model for a violation that was
// found.
type alarm struct{ testing.TB }

// violation is what an alarm panics with.
type violation string

func (r alarm) Fatal(args ...any)                 { panic(violation(fmt.Sprint(args...))) }
func (r alarm) Fatalf(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }
func (r alarm) Errorf(format string, args ...any) { r.Fatalf(format, args...) }

// walk takes a random way through the model and returns the first violation, ""
// for none. Panics of the core's own checks count.
func walk(t *testing.T, step stepFunc, seed uint64, actions int) (found string) {
	var way []string
	defer func() {
		if p := recover(); p != nil {
			found = fmt.Sprint(p)
		}
		if found != "" {
			found += fmt.Sprintf("\nseed %d: %s", seed, strings.Join(way, ", "))
		}
	}()
	random := rand.New(rand.NewPCG(seed, 4))
	w := newWorld(alarm{t}, noDefect)
	w.bounds.MaxSlots, w.session.Bounds.MaxSlots = 2, 2
	w.stepper = step
	for range actions {
		all := w.actions()
		if random.IntN(2) == 0 {
			// What goes on by itself, so that lives come to their ends.
			all = slices.DeleteFunc(all, func(a string) bool { return a != "sync" && !strings.HasPrefix(a, "report") })
		}
		action := all[random.IntN(len(all))]
		way = append(way, action)
		w.act(action)
		if w.err != "" {
			return w.err
		}
	}
	way = append(way, "finish")
	w.checkFold()
	w.finish()
	return w.err
}

// The model finds nothing wrong with Step, and something with every broken form
// of it, on the same random ways. I5, I8, I12, I16 to I21.
func TestModelCatchesVariants(t *testing.T) {
	ways, actions := 300, 60
	if raceEnabled {
		ways = 30
	}
	for seed := range uint64(ways) {
		if found := walk(t, Step, seed, actions); found != "" {
			t.Fatalf("Step itself: %s", found)
		}
	}
	if raceEnabled {
		return // one goroutine: there is nothing for the detector
	}
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(ways) {
				if found := walk(t, variant, seed, actions); found != "" {
					t.Logf("caught on way %d: %s", seed, found)
					return
				}
			}
			t.Errorf("went unnoticed on %d ways", ways)
		})
	}
}
