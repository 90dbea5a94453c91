package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

const (
	testGeneration = protocol.ID("0123456789abcdef0123456789abcdef")
	testDigest     = protocol.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	testTime       = protocol.Timestamp(1796046230776540)
)

var testScope = attempt.Scope{APIOrigin: "https://jobs.example.org", Provider: "node-1", Consumer: "controller", Generation: "1"}

func config(files FS) Config {
	return Config{Dir: "/store", Scope: testScope, MaxActive: 4, History: 2, FS: files}
}

// created is a new store, opened.
func created(t testing.TB, cfg Config) *Store {
	t.Helper()
	if err := Create(cfg); err != nil {
		t.Fatal(err)
	}
	return opened(t, cfg)
}

func opened(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func start(t testing.TB, key string) attempt.StartPending {
	t.Helper()
	r, err := attempt.New(attempt.Origin{
		Scope: testScope, Key: key, Job: "job-" + key, Kind: "test.v1",
		Input:         attempt.Input{Schema: "text/plain", Length: 3, SHA256: testDigest},
		MaxExecutions: 1, Start: []byte("{}"), Created: testTime,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// life is an attempt from its admission to where it may be archived.
func life(key string, number protocol.Number) []attempt.Event {
	return []attempt.Event{
		attempt.Admitted{Admission: attempt.Admission{Reference: "att-" + key, Reply: attempt.Reply{Status: 201}}},
		attempt.Allocated{Generation: testGeneration, Number: number, Profile: "ocr", ProfileDigest: testDigest},
		attempt.Prepared{Preparation: attempt.Preparation{PreparedSHA256: testDigest, ImageDigest: testDigest, SpecDigest: testDigest}},
		attempt.Entered{At: testTime},
		attempt.OutcomeChosen{Outcome: attempt.Outcome{Operation: attempt.OperationComplete, Body: []byte(`{"data":""}`), Evidence: []byte("e")}, At: testTime},
		attempt.Settled{Generation: testGeneration, Number: number, Settlement: attempt.SettlementConsumed},
		attempt.Confirmed{Receipt: attempt.Reply{Status: 200}, At: testTime},
		attempt.ReceiptsAnswered{Answer: attempt.ReceiptsAnswer{Attached: true, Reply: attempt.Reply{Status: 200}}},
	}
}

func mustCreate(t testing.TB, s *Store, key string) Entry {
	t.Helper()
	e, err := s.Create(context.Background(), start(t, key))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustApply(t testing.TB, s *Store, e Entry, events ...attempt.Event) Entry {
	t.Helper()
	for _, event := range events {
		var err error
		if e, err = s.Apply(context.Background(), e, event); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// finish takes a new attempt through its whole life into history.
func finish(t testing.TB, s *Store, key string, number protocol.Number) {
	t.Helper()
	mustApply(t, s, mustCreate(t, s, key), life(key, number)...)
	if _, err := s.Archive(context.Background(), key); err != nil {
		t.Fatal(err)
	}
}

func sameEntries(t testing.TB, got, want []Entry) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("records differ (-want +got):\n%s", diff)
	}
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWholeLife runs one attempt on the real file system and reads it back at
// every step with a second opening.
func TestWholeLife(t *testing.T) {
	cfg := config(nil)
	cfg.Dir = filepath.Join(t.TempDir(), "store")
	s := created(t, cfg)
	id := s.ID()
	e := mustCreate(t, s, "a")
	for i, event := range life("a", 1) {
		e = mustApply(t, s, e, event)
		if e.Revision != Revision(i+2) {
			t.Errorf("step %d: revision %d", i, e.Revision)
		}
		mustClose(t, s)
		s = opened(t, cfg)
		sameEntries(t, s.Active(), []Entry{e})
	}
	if s.ID() != id {
		t.Error("the id changed")
	}
	if s.Opens() != int64(len(life("a", 1)))+1 {
		t.Errorf("opened %d times", s.Opens())
	}
	h, err := s.Archive(t.Context(), "a")
	if err != nil || h != (HistoryEntry{1, "a"}) {
		t.Fatal(h, err)
	}
	back, err := s.Archived(h)
	if err != nil {
		t.Fatal(err)
	}
	sameEntries(t, []Entry{back}, []Entry{e})
	if len(s.Active()) != 0 || !s.Knows("a") {
		t.Error("the record was not moved")
	}
	mustClose(t, s)
	for _, dir := range []string{activeDir, reserveDir} {
		if names, err := os.ReadDir(filepath.Join(cfg.Dir, dir)); err != nil || len(names) != 0 {
			t.Errorf("%s still holds %v, %v", dir, names, err)
		}
	}
	err = filepath.WalkDir(cfg.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// I12: an event that changes nothing writes nothing and answers the same.
func TestRepeatedFactWritesNothing(t *testing.T) {
	m := newMemFS()
	s := created(t, config(m))
	e := mustApply(t, s, mustCreate(t, s, "a"), life("a", 1)[:6]...)
	m.hook = func(op, name string) error {
		t.Errorf("%s %s", op, name)
		return nil
	}
	again, err := s.Update(t.Context(), "a", life("a", 1)[5])
	if err != nil || again.Revision != e.Revision {
		t.Fatalf("got revision %d, %v; want %d", again.Revision, err, e.Revision)
	}
	m.hook = nil
	mustClose(t, s)
}

// A compare-and-set with an old revision is told the truth.
func TestConflictShowsTheTruth(t *testing.T) {
	s := created(t, config(newMemFS()))
	defer mustClose(t, s)
	old := mustCreate(t, s, "a")
	now := mustApply(t, s, old, life("a", 1)[0])
	_, err := s.Apply(t.Context(), old, attempt.Over{Reason: attempt.EndStartRefused, At: testTime})
	conflict, ok := errors.AsType[*ConflictError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	sameEntries(t, []Entry{conflict.Current}, []Entry{now})
	sameEntries(t, s.Active(), []Entry{now})
}

// Racing writers of one record: exactly one wins each revision.
func TestOneWinnerPerRevision(t *testing.T) {
	s := created(t, config(newMemFS()))
	defer mustClose(t, s)
	e := mustCreate(t, s, "a")
	var wins, conflicts int
	var mu sync.Mutex
	var wg sync.WaitGroup
	barrier := make(chan struct{})
	for i := range 16 {
		wg.Go(func() {
			<-barrier
			_, err := s.Apply(context.Background(), e, attempt.Noted{Fact: attempt.Fact{Name: "racer", Text: fmt.Sprint(i), At: testTime}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				wins++
			} else if _, ok := errors.AsType[*ConflictError](err); ok {
				conflicts++
			} else {
				t.Error(err)
			}
		})
	}
	close(barrier)
	wg.Wait()
	if wins != 1 || conflicts != 15 {
		t.Errorf("%d wins, %d conflicts", wins, conflicts)
	}
}

// A refused transition changes nothing and is no storage failure.
func TestRefusedTransition(t *testing.T) {
	s := created(t, config(newMemFS()))
	e := mustCreate(t, s, "a")
	_, err := s.Apply(t.Context(), e, attempt.Confirmed{At: testTime})
	if _, ok := errors.AsType[*attempt.TransitionError](err); !ok {
		t.Fatalf("got %v", err)
	}
	sameEntries(t, s.Active(), []Entry{e})
	mustClose(t, s)
}

func TestCreateRefusals(t *testing.T) {
	s := created(t, config(newMemFS()))
	defer mustClose(t, s)
	for i := range 4 {
		mustCreate(t, s, fmt.Sprint("a", i))
	}
	if _, err := s.Create(t.Context(), start(t, "a0")); !errors.Is(err, ErrKeyUsed) {
		t.Errorf("a used key: %v", err)
	}
	if _, err := s.Create(t.Context(), start(t, "b")); !errors.Is(err, ErrFull) {
		t.Errorf("a full store: %v", err)
	}
	if err := s.Admit(); !errors.Is(err, ErrFull) {
		t.Errorf("admission to a full store: %v", err)
	}
	foreign := start(t, "c")
	foreign.Origin.Scope.Generation = "2"
	if _, err := s.Create(t.Context(), foreign); !errors.Is(err, ErrScope) {
		t.Errorf("a foreign scope: %v", err)
	}
	if len(s.Active()) != 4 {
		t.Error("a refusal changed the store")
	}
}

// I32: unresolved records are never archived; a key in history is never used
// again; trim keeps the window.
func TestArchiveAndTrim(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	e := mustCreate(t, s, "held")
	for i, event := range life("held", 1) {
		if _, err := s.Archive(t.Context(), "held"); !errors.Is(err, ErrHeld) {
			t.Fatalf("after %d events: %v", i, err)
		}
		e = mustApply(t, s, e, event)
	}
	if _, err := s.Archive(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Archive(t.Context(), "held"); !errors.Is(err, ErrNotFound) {
		t.Errorf("archived twice: %v", err)
	}
	for i := range 5 {
		finish(t, s, fmt.Sprint("b", i), protocol.Number(i+2))
	}
	if _, err := s.Create(t.Context(), start(t, "held")); !errors.Is(err, ErrKeyUsed) {
		t.Errorf("a key in history: %v", err)
	}
	if err := s.Admit(); !errors.Is(err, ErrHistory) {
		t.Errorf("admission before trim: %v", err)
	}
	last := mustApply(t, s, mustCreate(t, s, "c"), life("c", 9)...)
	if _, err := s.Archive(t.Context(), "c"); !errors.Is(err, ErrHistory) {
		t.Errorf("archive over history + max_active: %v", err)
	}
	mustClose(t, s)
	s = opened(t, cfg) // accepts history + max_active records
	sameEntries(t, s.Active(), []Entry{last})
	if n, err := s.Trim(t.Context()); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	want := []HistoryEntry{{5, "b3"}, {6, "b4"}}
	if !cmp.Equal(s.History(), want) {
		t.Errorf("history is %v", s.History())
	}
	if n, err := s.Trim(t.Context()); n != 0 || err != nil {
		t.Error("a second trim", n, err)
	}
	mustClose(t, s)
	s = opened(t, cfg)
	if !cmp.Equal(s.History(), want) {
		t.Errorf("after reopening history is %v", s.History())
	}
	if h, err := s.Archive(t.Context(), "c"); err != nil || h.Sequence != 7 {
		t.Error(h, err)
	}
	mustClose(t, s)
}

// A malformed record late in the list stops the whole trim.
func TestTrimVerifiesEverythingFirst(t *testing.T) {
	m := newMemFS()
	s := created(t, config(m))
	for i := range 4 {
		finish(t, s, fmt.Sprint("a", i), protocol.Number(i+1))
	}
	d := m.dirs["/store/history"]
	name := historyName(HistoryEntry{4, "a3"})
	d.now[name].now[200] ^= 1
	n, err := s.Trim(t.Context())
	damage, ok := errors.AsType[*DamageError](err)
	if !ok || n != 0 || damage.File != "history/"+name {
		t.Fatalf("got %d, %v", n, err)
	}
	if len(d.now) != 4 || len(s.History()) != 4 {
		t.Error("records were removed")
	}
	d.now[name].now[200] ^= 1
	if n, err := s.Trim(t.Context()); n != 2 || err != nil {
		t.Error("after the repair", n, err)
	}
	mustClose(t, s)
}

// One removal, then an error: the store is poisoned and a restart finishes.
func TestTrimCutShort(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	for i := range 5 {
		finish(t, s, fmt.Sprint("a", i), protocol.Number(i+1))
	}
	m.hook = failNth(2, errIO, func(op, _ string) bool { return op == "remove" })
	if _, err := s.Trim(t.Context()); !errors.Is(err, errIO) {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, errIO) {
		t.Fatal(err)
	}
	m.kill()
	s = opened(t, cfg)
	if n, err := s.Trim(t.Context()); n != 2 || err != nil {
		t.Error(n, err)
	}
	if got := s.History(); len(got) != 2 || got[0].Key != "a3" {
		t.Error(got)
	}
	mustClose(t, s)
}

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
	s = opened(t, cfg)
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
	mustClose(t, s)
}

// I9: a witness never goes back, survives, and is bounded.
func TestWitness(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	seen := func(i protocol.Index) *protocol.Seen { return &protocol.Seen{Index: i, LeafHash: testDigest} }
	set := func(w Witness) error { return s.SetWitness(t.Context(), testGeneration, w) }
	if _, ok := s.Witness(testGeneration); ok {
		t.Error("a witness of nothing")
	}
	for _, w := range []Witness{{}, {"first", seen(4)}, {"first", seen(4)}, {"second", seen(9)}} {
		if err := set(w); err != nil {
			t.Fatal(err)
		}
	}
	other := protocol.DigestOf([]byte("x"))
	for _, w := range []Witness{{}, {"third", seen(8)}, {"third", &protocol.Seen{Index: 9, LeafHash: other}}} {
		if err := set(w); !errors.Is(err, ErrWitness) {
			t.Errorf("%v: %v", w, err)
		}
	}
	if err := set(Witness{Checkpoint: strings.Repeat("x", maxWitnessBytes)}); err == nil {
		t.Error("an oversized checkpoint was taken")
	}
	m.crash(nil)
	s = opened(t, cfg)
	if w, _ := s.Witness(testGeneration); w.Checkpoint != "second" || w.Highest.Index != 9 {
		t.Errorf("got %v", w)
	}
	for i := range MaxHostGenerations - 1 {
		if err := s.SetWitness(t.Context(), protocol.ID(fmt.Sprintf("%032x", i)), Witness{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetWitness(t.Context(), protocol.NewID(), Witness{}); !errors.Is(err, ErrHosts) {
		t.Errorf("one too many: %v", err)
	}
	if err := s.ForgetGeneration(t.Context(), testGeneration); err != nil {
		t.Error(err)
	}
	if err := s.ForgetGeneration(t.Context(), testGeneration); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
	mustClose(t, s)
}

// Sequence numbers rise over restarts, whatever was used before.
func TestSequenceRisesOverRestarts(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	last := int64(0)
	for range 3 {
		for range 5 {
			n := s.NextSequence()
			if n <= last || n >= 1<<53 {
				t.Fatalf("%d after %d", n, last)
			}
			last = n
		}
		if last>>32 != s.Opens() {
			t.Errorf("%d does not come from opening %d", last, s.Opens())
		}
		m.crash(nil)
		s = opened(t, cfg)
	}
	mustClose(t, s)
}

func TestOpenAndCreateRefusals(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	if _, err := Open(cfg); !errors.Is(err, ErrNoStore) {
		t.Errorf("no store: %v", err)
	}
	s := created(t, cfg)
	if err := Create(cfg); !errors.Is(err, ErrExists) {
		t.Errorf("created twice: %v", err)
	}
	if _, err := Open(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := Inspect(cfg.Dir, m); !errors.Is(err, ErrLocked) {
		t.Errorf("inspected while open: %v", err)
	}
	for i := range 3 {
		mustCreate(t, s, fmt.Sprint("a", i))
	}
	mustClose(t, s)
	// Another scope is refused before a record is read.
	other := cfg
	other.Scope.Generation = "2"
	m.hook = func(op, name string) error {
		if op == "read" && strings.Contains(name, activeDir) {
			t.Errorf("%s was read", name)
		}
		return nil
	}
	if _, err := Open(other); !errors.Is(err, ErrScope) {
		t.Errorf("another scope: %v", err)
	}
	m.hook = nil
	small := cfg
	small.MaxActive = 2
	if _, err := Open(small); err == nil || !strings.Contains(err.Error(), "raise max_active") {
		t.Errorf("too many active records: %v", err)
	}
	for name, change := range map[string]func(*Config){
		"dir": func(c *Config) { c.Dir = "" }, "max_active": func(c *Config) { c.MaxActive = 0 },
		"history": func(c *Config) { c.History = 0 }, "disk_reserve": func(c *Config) { c.DiskReserve = -1 },
		"api_origin": func(c *Config) { c.Scope.APIOrigin = "" },
	} {
		bad := cfg
		change(&bad)
		if _, err := Open(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustClose(t, opened(t, cfg))
}

// One opener also across file descriptors of the real file system.
func TestRealLock(t *testing.T) {
	cfg := config(nil)
	cfg.Dir = filepath.Join(t.TempDir(), "store")
	s := created(t, cfg)
	if _, err := Open(cfg); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v", err)
	}
	mustClose(t, s)
	mustClose(t, opened(t, cfg))
}

// A rotation keeps the id, the openings and the witnesses, and refuses while
// anything is active; cut short at every step it is finished by another call.
func TestRotate(t *testing.T) {
	next := testScope
	next.Generation = "2"
	prepare := func() (*memFS, Config, Config, protocol.ID, int64) {
		m := newMemFS()
		cfg := config(m)
		s := created(t, cfg)
		finish(t, s, "a", 1)
		if err := s.SetWitness(t.Context(), testGeneration, Witness{"c", &protocol.Seen{Index: 3, LeafHash: testDigest}}); err != nil {
			t.Fatal(err)
		}
		mustClose(t, s)
		to := cfg
		to.Scope = next
		return m, cfg, to, s.ID(), s.Opens()
	}
	check := func(to Config, id protocol.ID, opens int64) {
		t.Helper()
		s := opened(t, to)
		w, ok := s.Witness(testGeneration)
		if s.ID() != id || s.Opens() != opens+1 || !ok || w.Highest.Index != 3 || len(s.History()) != 0 {
			t.Errorf("rotated to id %s, opens %d, witness %v", s.ID(), s.Opens(), w)
		}
		mustClose(t, s)
	}
	m, cfg, to, id, opens := prepare()
	s := opened(t, cfg)
	mustCreate(t, s, "b")
	mustClose(t, s)
	if err := Rotate(to, testScope, "/aside"); err == nil || !strings.Contains(err.Error(), "not archived") {
		t.Fatalf("with an active record: %v", err)
	}
	_, _, _ = m, id, opens
	for n := 1; ; n++ {
		m, _, to, id, opens := prepare()
		m.hook = cutAt(n)
		err := Rotate(to, testScope, "/aside")
		m.kill()
		if err == nil {
			check(to, id, opens)
			if n < 10 {
				t.Errorf("only %d steps", n)
			}
			break
		}
		if err := Rotate(to, testScope, "/aside"); err != nil {
			t.Fatalf("cut after %d steps, then: %v", n, err)
		}
		check(to, id, opens)
	}
}
