package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// model is what a client of the store may rely on: per key the last
// acknowledged entry and, where one was under way at the cut, what may have
// become of it.
type model struct {
	acked   map[string]Entry // last acknowledged; no Record: none
	maybe   map[string]Entry // the change under way, zero Record: none
	moving  map[string]bool  // an archive was under way or acknowledged
	trimmed map[string]bool  // a trim that removes it was under way or acknowledged
	witness protocol.Index   // highest acknowledged, -1: none
	opens   int64            // highest seen
	used    int64            // highest sequence number given out
	numbers protocol.Number
}

func newModel() *model {
	return &model{acked: map[string]Entry{}, maybe: map[string]Entry{}, moving: map[string]bool{}, trimmed: map[string]bool{}, witness: -1}
}

// load runs random operations until one fails, and notes every
// acknowledgement.
func (w *model) load(s *Store, random *rand.Rand, steps int) error {
	ctx := context.Background()
	w.opens = max(w.opens, s.Opens())
	for range steps {
		w.used = max(w.used, s.NextSequence())
		active := s.Active()
		switch choice := random.IntN(10); {
		case choice < 2 && len(active) < 4:
			w.numbers++
			key := fmt.Sprintf("k%d", w.numbers)
			r := attempt.StartPending{Origin: attempt.Origin{Scope: testScope, Key: key, Job: "j", Kind: "k",
				Input: attempt.Input{SHA256: testDigest}, MaxExecutions: 1, Start: []byte("{}"), Created: testTime}}
			w.maybe[key] = Entry{key, 1, r}
			e, err := s.Create(ctx, r)
			if err != nil {
				return err
			}
			w.acked[key] = e
			delete(w.maybe, key)
		case choice < 8 && len(active) > 0:
			e := active[random.IntN(len(active))]
			if err := w.advance(ctx, s, e); err != nil {
				return err
			}
		case choice == 8:
			list := s.History()
			for i := range max(len(list)-s.cfg.History, 0) {
				w.trimmed[list[i].Key] = true
			}
			if _, err := s.Trim(ctx); err != nil {
				return err
			}
		case choice == 9:
			next := w.witness + 1
			if err := s.SetWitness(ctx, testGeneration, Witness{Highest: &protocol.Seen{Index: next, LeafHash: testDigest}}); err != nil {
				return err
			}
			w.witness = next
		}
	}
	return nil
}

// advance moves one record by the next event of its life, or archives it.
func (w *model) advance(ctx context.Context, s *Store, e Entry) error {
	events := life(e.Key, 1)
	if int(e.Revision) > len(events) {
		if len(s.History()) >= s.cfg.History+s.cfg.MaxActive {
			return nil
		}
		w.moving[e.Key] = true
		_, err := s.Archive(ctx, e.Key)
		return err
	}
	event := events[e.Revision-1]
	next, err := attempt.Step(e.Record, event)
	if err != nil {
		return err
	}
	w.maybe[e.Key] = Entry{e.Key, e.Revision + 1, next}
	got, err := s.Apply(ctx, e, event)
	if err != nil {
		return err
	}
	w.acked[e.Key] = got
	delete(w.maybe, e.Key)
	return nil
}

// equal compares two entries in their durable form.
func equal(a, b Entry) bool {
	x, errX := attempt.Encode(a.Record)
	y, errY := attempt.Encode(b.Record)
	return a.Key == b.Key && a.Revision == b.Revision && errX == nil && errY == nil && bytes.Equal(x, y)
}

// audit compares a reopened store with the model and takes over what it shows.
func (w *model) audit(s *Store) error {
	found := map[string]Entry{}
	for _, e := range s.Active() {
		found[e.Key] = e
	}
	for _, h := range s.History() {
		e, err := s.Archived(h)
		if err != nil {
			return err
		}
		if _, ok := found[h.Key]; ok {
			return fmt.Errorf("%s is active and archived", h.Key)
		}
		if !w.moving[h.Key] {
			return fmt.Errorf("%s is archived and nobody asked", h.Key)
		}
		found[h.Key] = e
	}
	for key, want := range w.acked {
		got, ok := found[key]
		if !ok && w.trimmed[key] {
			continue
		}
		if !ok {
			return fmt.Errorf("%s was acknowledged with revision %d and is gone", key, want.Revision)
		}
		if may, ok := w.maybe[key]; ok && equal(got, may) {
			continue
		}
		if !equal(got, want) {
			return fmt.Errorf("%s: acknowledged revision %d, found %d", key, want.Revision, got.Revision)
		}
	}
	for key := range found {
		_, acked := w.acked[key]
		if _, maybe := w.maybe[key]; !acked && !maybe {
			return fmt.Errorf("%s was never written", key)
		}
	}
	if now, ok := s.Witness(testGeneration); w.witness >= 0 && (!ok || now.Highest.Index < w.witness) {
		return fmt.Errorf("the witness went back from %d", w.witness)
	} else if ok {
		w.witness = now.Highest.Index
	}
	if n := s.NextSequence(); n <= w.used || s.Opens() <= w.opens {
		return fmt.Errorf("sequence %d after %d, opening %d after %d", n, w.used, s.Opens(), w.opens)
	}
	for key := range w.acked {
		if _, ok := found[key]; !ok {
			delete(w.acked, key)
		}
	}
	for key, e := range found {
		w.acked[key] = e
	}
	clear(w.maybe)
	return nil
}

// powerCuts runs rounds of load, each cut at a random file-system operation,
// with the process killed or the power cut, and audits what a restart reads.
func powerCuts(seed uint64, rounds int, prepare func(*memFS)) (cuts int, err error) {
	random := rand.New(rand.NewPCG(seed, 1))
	m := newMemFS()
	cfg := config(m)
	if err := Create(cfg); err != nil {
		return 0, err
	}
	if prepare != nil {
		prepare(m)
	}
	w := newModel()
	for range rounds {
		m.hook = cutAt(random.IntN(150))
		s, err := Open(cfg)
		if err == nil {
			if err := w.load(s, random, 30); err != nil && !errors.Is(err, errCut) {
				return cuts, err
			}
			if random.IntN(2) == 0 {
				m.hook = nil
			}
			if err := s.Close(); err != nil && !errors.Is(err, errCut) {
				return cuts, err
			}
		} else if !errors.Is(err, errCut) {
			return cuts, err
		}
		cuts++
		switch random.IntN(3) {
		case 0:
			m.kill()
		case 1:
			m.crash(nil)
		default:
			m.crash(random)
		}
		s, err = Open(cfg)
		if err != nil {
			return cuts, fmt.Errorf("after cut %d: %w", cuts, err)
		}
		if err := w.audit(s); err != nil {
			return cuts, fmt.Errorf("after cut %d: %w", cuts, err)
		}
		if err := s.Close(); err != nil {
			return cuts, err
		}
	}
	return cuts, nil
}

// Intent before effect, receipt before reply (I10): whatever was acknowledged
// is there after any cut, and nothing else is.
func TestPowerCuts(t *testing.T) {
	for seed := range 5 {
		if cuts, err := powerCuts(uint64(seed), 20, nil); err != nil {
			t.Errorf("seed %d, %d cuts: %v", seed, cuts, err)
		}
	}
}

// The harness must be able to fail: a store that does not sync is caught.
func TestPowerCutsCatchSeededDefects(t *testing.T) {
	for name, defect := range map[string]func(*memFS){
		"rename without file sync":      func(m *memFS) { m.skipFileSync = true },
		"rename without directory sync": func(m *memFS) { m.skipDirSync = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range 10 {
				if _, err := powerCuts(uint64(seed), 25, defect); err != nil {
					t.Logf("caught with seed %d: %v", seed, err)
					return
				}
			}
			t.Error("was not caught")
		})
	}
}

// A creation that was cut short at any step leaves a whole store or none, and
// can be repeated.
func TestCreateCutShort(t *testing.T) {
	for n := 0; ; n++ {
		m := newMemFS()
		cfg := config(m)
		m.hook = cutAt(n)
		err := Create(cfg)
		m.kill()
		if err == nil {
			if n < 10 {
				t.Errorf("only %d steps", n)
			}
			mustClose(t, opened(t, cfg))
			return
		}
		if err := Create(cfg); err != nil && !errors.Is(err, ErrExists) {
			t.Fatalf("cut after %d steps, then: %v", n, err)
		}
		mustClose(t, opened(t, cfg))
	}
}
