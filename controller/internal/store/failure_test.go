package store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// I35: every failed operation of a write poisons the store with the primary
// error, nothing later is acknowledged, and a fresh open decides from disk.
func TestStorageFailurePoisons(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "rename", "syncdir"} {
		t.Run(op, func(t *testing.T) {
			m := newMemFS()
			cfg := config(m)
			s := created(t, cfg)
			a, b := mustCreate(t, s, "a"), mustCreate(t, s, "b")
			m.hook = failNth(1, errIO, func(o, name string) bool { return o == op && strings.Contains(name, activeDir) })
			_, err := s.Apply(t.Context(), a, life("a", 1)[0])
			if failure, ok := errors.AsType[*FailedError](err); !ok || !errors.Is(failure, errIO) {
				t.Fatalf("got %v", err)
			}
			<-s.Failed()
			m.hook = nil
			if _, err := s.Apply(t.Context(), b, life("b", 2)[0]); !errors.Is(err, errIO) {
				t.Errorf("a later write: %v", err)
			}
			if err := s.Admit(); !errors.Is(err, errIO) {
				t.Errorf("admission: %v", err)
			}
			sameEntries(t, s.Active(), []Entry{a, b}) // not acknowledged, not shown
			if err := s.Close(); !errors.Is(err, errIO) {
				t.Errorf("close: %v", err)
			}
			m.kill()
			s = opened(t, cfg)
			now, _ := s.Get("a")
			if op == "syncdir" != (now.Revision == 2) {
				t.Errorf("the restart reads revision %d", now.Revision)
			}
			// What the restart has read it has made durable itself (I35).
			m.crash(nil)
			s2 := opened(t, cfg)
			sameEntries(t, s2.Active(), s.Active())
			mustClose(t, s2)
		})
	}
}

// I35: a failed sync may leave pages that look clean; the next open writes
// everything again in place of trusting what it reads.
func TestOpenRewritesAfterUncleanClose(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	finish(t, s, "old", 1)
	e := mustCreate(t, s, "a")
	if err := s.SetWitness(t.Context(), testGeneration, Witness{Highest: &protocol.Seen{Index: 1, LeafHash: testDigest}}); err != nil {
		t.Fatal(err)
	}
	m.kill() // without Close
	for _, d := range m.dirs {
		for _, i := range d.now {
			i.synced, i.durable = false, nil // what was read would not survive
		}
		d.durable = map[string]*memInode{}
	}
	opened(t, cfg) // and cut before it wrote anything of its own
	m.crash(nil)
	s = opened(t, cfg)
	sameEntries(t, s.Active(), []Entry{e})
	if _, ok := s.Witness(testGeneration); !ok || len(s.History()) != 1 {
		t.Error("the witness or the history is gone")
	}
	mustClose(t, s)
	writes := 0
	m.hook = func(op, _ string) error {
		if op == "write" {
			writes++
		}
		return nil
	}
	s = opened(t, cfg)
	if writes != 1 {
		t.Errorf("an open after a clean close made %d writes, want the scope's only", writes)
	}
	mustClose(t, s)
}

// A waiter that gives up leaves the write owned: the record takes no other
// write until it settles, then the truth can be read; Close waits.
func TestGivenUpWriteStaysOwned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemFS()
		s := created(t, config(m))
		a, b := mustCreate(t, s, "a"), mustCreate(t, s, "b")
		gate := make(chan struct{})
		m.hook = func(op, name string) error {
			if op == "sync" && strings.Contains(name, "/a.") {
				<-gate
			}
			return nil
		}
		w, err := s.Begin(t.Context(), a, life("a", 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		cancel(stop)
		if _, err := w.Wait(ctx); !errors.Is(err, ErrNotSettled) || !errors.Is(err, stop) {
			t.Fatalf("got %v", err)
		}
		if _, err := s.Update(t.Context(), "a", attempt.Noted{Fact: attempt.Fact{Name: "late", At: testTime}}); !errors.Is(err, ErrNotSettled) {
			t.Errorf("another write: %v", err)
		}
		// Another record is only behind it in the queue.
		wb, err := s.Begin(t.Context(), b, life("b", 2)[0])
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("close did not wait: %v", err)
		default:
		}
		close(gate)
		<-w.Done()
		if e, err := w.Wait(t.Context()); err != nil || e.Revision != 2 {
			t.Errorf("settled as %v, %v", e, err)
		}
		if _, err := wb.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if _, err := s.Update(t.Context(), "a", attempt.Noted{}); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v", err)
		}
		if err := s.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("second close: %v", err)
		}
	})
}

// A waiter for its turn that gives up has changed nothing.
func TestWaitForTurnGivesUpUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemFS()
		s := created(t, config(m))
		a := mustCreate(t, s, "a")
		gate := make(chan struct{})
		m.hook = func(op, _ string) error {
			if op == "sync" {
				<-gate
			}
			return nil
		}
		w, err := s.Begin(t.Context(), a, life("a", 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() {
			_, err := s.Update(ctx, "a", attempt.Noted{Fact: attempt.Fact{Name: "late", At: testTime}})
			got <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotSettled) {
			t.Errorf("got %v", err)
		}
		close(gate)
		e, err := w.Wait(t.Context())
		if err != nil || len(attempt.FactsOf(e.Record).Kept) != 0 {
			t.Error(e, err)
		}
		m.hook = nil
		mustClose(t, s)
		sameEntries(t, s.Active(), []Entry{e})
	})
}

// I36: with the disk full, an admitted attempt still gets to its end from its
// reserve, and a new one is refused.
func TestDiskFull(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	e := mustCreate(t, s, "a")
	m.mu.Lock()
	m.capacity = m.used()
	m.mu.Unlock()
	if err := s.Admit(); !errors.Is(err, ErrNoSpace) {
		t.Errorf("admission: %v", err)
	}
	if _, err := s.Create(t.Context(), start(t, "b")); !errors.Is(err, ErrNoSpace) {
		t.Errorf("create: %v", err)
	}
	events := life("a", 1)
	chosen := events[4].(attempt.OutcomeChosen)
	chosen.Outcome.Body = make([]byte, attempt.MaxCompleteBytes)
	chosen.Outcome.Evidence = make([]byte, attempt.MaxEvidenceBytes)
	events[4] = chosen
	mustApply(t, s, e, events...)
	if s.Err() != nil {
		t.Errorf("a full disk poisoned the store: %v", s.Err())
	}
	if _, err := s.Archive(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
	m.capacity = 0
	s = opened(t, cfg)
	if len(s.History()) != 1 || len(s.Active()) != 0 || s.Knows("b") {
		t.Error("the store reads back differently")
	}
	mustClose(t, s)
}

// I36: a store with an attempt under way closes and opens on a full disk, after
// a clean end and after a crash, and the attempt gets to its end.
func TestOpensOnAFullDisk(t *testing.T) {
	for _, clean := range []bool{true, false} {
		m := newMemFS()
		cfg := config(m)
		s := created(t, cfg)
		finish(t, s, "old", 1)
		e := mustApply(t, s, mustCreate(t, s, "a"), life("a", 2)[:4]...)
		m.mu.Lock()
		m.capacity = m.used()
		m.mu.Unlock()
		if clean {
			mustClose(t, s)
		} else {
			m.kill()
		}
		s = opened(t, cfg)
		sameEntries(t, s.Active(), []Entry{e})
		if err := s.SetWitness(t.Context(), testGeneration, Witness{Highest: &protocol.Seen{Index: 9, LeafHash: testDigest}}); err != nil {
			t.Error(err)
		}
		mustApply(t, s, e, life("a", 2)[4:]...)
		if _, err := s.Archive(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if len(s.History()) != 2 {
			t.Errorf("history is %v", s.History())
		}
		mustClose(t, s)
	}
}

// Without even its reserve a write is refused, nothing is poisoned, and it
// works as soon as there is space.
func TestDiskFullWithoutReserve(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	e := mustCreate(t, s, "a")
	m.kill()
	m.mu.Lock()
	delete(m.dirs["/store/reserve"].now, "a"+reserveSuffix)
	m.capacity = m.used() + 4<<10
	m.mu.Unlock()
	s = opened(t, cfg)
	m.mu.Lock()
	m.capacity = m.used()
	m.mu.Unlock()
	if _, err := s.Apply(t.Context(), e, life("a", 1)[0]); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	sameEntries(t, s.Active(), []Entry{e})
	m.mu.Lock()
	m.capacity = 0
	m.mu.Unlock()
	mustApply(t, s, e, life("a", 1)[0])
	if i, ok := m.dirs["/store/reserve"].now["a"+reserveSuffix]; !ok || i.allocated != reserveBytes {
		t.Error("the reserve did not come back with the space")
	}
	mustClose(t, s)
}

// What was queued behind a write that failed is not acknowledged.
func TestQueuedBehindAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemFS()
		s := created(t, config(m))
		a, b := mustCreate(t, s, "a"), mustCreate(t, s, "b")
		gate := make(chan struct{})
		m.hook = func(op, name string) error {
			if op == "sync" && strings.Contains(name, "/a.") {
				<-gate
				return errIO
			}
			return nil
		}
		wa, err := s.Begin(t.Context(), a, life("a", 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		wb, err := s.Begin(t.Context(), b, life("b", 2)[0])
		if err != nil {
			t.Fatal(err)
		}
		close(gate)
		for _, w := range []*Write{wa, wb} {
			_, err := w.Wait(t.Context())
			if failure, ok := errors.AsType[*FailedError](err); !ok || !errors.Is(failure, errIO) {
				t.Errorf("got %v", err)
			}
		}
		if got, _ := s.Get("b"); got.Revision != b.Revision {
			t.Error("the queued change shows")
		}
		if err := s.Close(); !errors.Is(err, errIO) {
			t.Error(err)
		}
	})
}

// A trim that was acknowledged stays one after a power cut, and a failed
// directory sync within it is no success.
func TestTrimIsDurable(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	for i := range 4 {
		finish(t, s, string(rune('a'+i)), protocol.Number(i+1))
	}
	if n, err := s.Trim(t.Context()); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	m.crash(nil)
	s = opened(t, cfg)
	if len(s.History()) != 2 {
		t.Errorf("history is %v", s.History())
	}
	finish(t, s, "e", 5)
	m.hook = failNth(1, errIO, func(op, name string) bool { return op == "syncdir" && strings.HasSuffix(name, historyDir) })
	if n, err := s.Trim(t.Context()); n != 0 || !errors.Is(err, errIO) {
		t.Errorf("got %d, %v", n, err)
	}
	if err := s.Close(); !errors.Is(err, errIO) {
		t.Error(err)
	}
}
