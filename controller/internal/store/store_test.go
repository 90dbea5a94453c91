package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

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
	if got := s.Generations(); len(got) != MaxHostGenerations || !slices.IsSorted(got) || !slices.Contains(got, testGeneration) {
		t.Errorf("witnesses of %q", got)
	}
	if err := s.ForgetGeneration(t.Context(), testGeneration); err != nil {
		t.Error(err)
	}
	if slices.Contains(s.Generations(), testGeneration) {
		t.Error("the forgotten generation is listed")
	}
	if err := s.ForgetGeneration(t.Context(), testGeneration); !errors.Is(err, ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
	mustClose(t, s)
}

// I25: a copy of the store that is older than what was announced from it
// overtakes that, durably.
func TestSequenceOvertakesWhatWasSeen(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	const seen = int64(77)<<32 + 5
	for range 2 { // the second time it is higher already
		if err := s.RaiseSequence(t.Context(), seen); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.NextSequence(); n != 78<<32+1 || s.Opens() != 78 {
		t.Fatalf("%d, opened %d times", n, s.Opens())
	}
	for _, wrong := range []int64{-1, 1<<53 - 1} {
		if err := s.RaiseSequence(t.Context(), wrong); err == nil {
			t.Errorf("%d was taken", wrong)
		}
	}
	m.crash(nil)
	s = opened(t, cfg)
	if n := s.NextSequence(); n != 79<<32+1 {
		t.Fatalf("%d after a crash", n)
	}
	mustClose(t, s)
}

// One answer of the service, or many, do not use the store up: no sequence number
// of this store is that far ahead of it.
func TestSequenceTakesNoGreatJump(t *testing.T) {
	m := newMemFS()
	s := created(t, config(m))
	const base, most = 1, 1 + maxJump // opens
	for _, wrong := range []int64{(maxOpens - 2) << 32, (most + 1) << 32, most << 32} {
		if err := s.RaiseSequence(t.Context(), wrong); !errors.Is(err, ErrSequence) || s.Opens() != base {
			t.Errorf("%d: %v, opened %d times", wrong, err, s.Opens())
		}
	}
	if err := s.RaiseSequence(t.Context(), (most-1)<<32); err != nil || s.Opens() != most {
		t.Errorf("%v, opened %d times", err, s.Opens())
	}
	if err := s.RaiseSequence(t.Context(), most<<32); !errors.Is(err, ErrSequence) || s.Opens() != most {
		t.Errorf("a second jump: %v, opened %d times", err, s.Opens())
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
