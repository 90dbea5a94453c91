package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// stocked is a closed store with a record of each place.
func stocked(t *testing.T) (*memFS, Config) {
	t.Helper()
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	finish(t, s, "old", 1)
	mustApply(t, s, mustCreate(t, s, "a"), life("a", 2)...)
	mustCreate(t, s, "b")
	if err := s.SetWitness(t.Context(), testGeneration, Witness{"c", &protocol.Seen{Index: 3, LeafHash: testDigest}}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, s)
	return m, cfg
}

// damaged opens the store and returns the damage that stopped it.
func damaged(t *testing.T, cfg Config) *DamageError {
	t.Helper()
	s, err := Open(cfg)
	if err == nil {
		mustClose(t, s)
		t.Fatal("the store opened")
	}
	d, ok := errors.AsType[*DamageError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	if d.File == "" || d.Remedy == "" || strings.Contains(d.Error(), "/store/") {
		t.Fatalf("a message without file, remedy, or with a machine's path: %v", d)
	}
	return d
}

// TestFlippedBytes flips bytes all over every file, cuts it at a hundred lengths
// and zeroes it: the open stops with the file's name and changes nothing.
func TestFlippedBytes(t *testing.T) {
	m, cfg := stocked(t)
	for _, file := range []string{scopeFile, "active/a" + recordSuffix, "history/" + historyName(HistoryEntry{1, "old"}), "hosts/" + string(testGeneration) + witnessSuffix} {
		d, base, err := m.at("/store/" + file)
		if err != nil {
			t.Fatal(err)
		}
		good := bytes.Clone(d.now[base].now)
		check := func(what string, bad []byte) {
			d.now[base].now = bad
			if got := damaged(t, cfg); got.File != file {
				t.Fatalf("%s, %s: damage is reported in %s", file, what, got.File)
			}
			if !bytes.Equal(d.now[base].now, bad) {
				t.Fatalf("%s, %s: the open changed the file", file, what)
			}
		}
		// Every byte of the first line; of the content every third.
		for i := 0; i < len(good); i += 1 + 2*min(1, i/300) {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << (i % 8)
			check(fmt.Sprint("flip at ", i), bad)
		}
		for n := 0; n < len(good); n += 1 + len(good)/100 {
			check(fmt.Sprint("cut at ", n), good[:n:n])
		}
		check("last byte cut", good[:len(good)-1])
		check("zeros", make([]byte, len(good)))
		check("byte added", append(bytes.Clone(good), 'x'))
		d.now[base].now = good
	}
	mustClose(t, opened(t, cfg))
}

// TestForeignAndSwapped: files that are whole but not where they belong.
func TestForeignAndSwapped(t *testing.T) {
	foreign, _ := stocked(t)
	for name, row := range map[string]struct {
		change func(m *memFS)
		file   string
	}{
		"unknown file":         {func(m *memFS) { m.put("/store/notes.txt", "x") }, "notes.txt"},
		"unknown directory":    {func(m *memFS) { m.dirs["/store/more"] = newMemDir() }, "more/"},
		"unknown active file":  {func(m *memFS) { m.put("/store/active/x.json", "x") }, "active/x.json"},
		"unknown history file": {func(m *memFS) { m.put("/store/history/x.attempt", "x") }, "history/x.attempt"},
		"unknown witness":      {func(m *memFS) { m.put("/store/hosts/x.witness", "x") }, "hosts/x.witness"},
		"unknown reserve":      {func(m *memFS) { m.put("/store/reserve/x", "x") }, "reserve/x"},
		"two records swapped":  {func(m *memFS) { m.swap("/store/active/a.attempt", "/store/active/b.attempt") }, "active/a.attempt"},
		"record of another store": {func(m *memFS) {
			m.dirs["/store/active"].now["b.attempt"] = foreign.dirs["/store/active"].now["b.attempt"]
		}, "active/b.attempt"},
		"active record in history": {func(m *memFS) {
			d := m.dirs["/store/active"].now
			m.dirs["/store/history"].now[historyName(HistoryEntry{2, "b"})] = d["b.attempt"]
			delete(d, "b.attempt")
		}, "history/" + historyName(HistoryEntry{2, "b"})},
		"sequence used twice": {func(m *memFS) {
			d := m.dirs["/store/active"].now
			m.dirs["/store/history"].now[historyName(HistoryEntry{1, "a"})] = d["a.attempt"]
			delete(d, "a.attempt")
		}, "history/" + historyName(HistoryEntry{1, "old"})},
		"witness of another generation": {func(m *memFS) {
			d := m.dirs["/store/hosts"].now
			other := strings.Repeat("f", 32) + witnessSuffix
			d[other] = d[string(testGeneration)+witnessSuffix]
		}, "hosts/" + strings.Repeat("f", 32) + witnessSuffix},
	} {
		t.Run(name, func(t *testing.T) {
			m, cfg := stocked(t)
			row.change(m)
			if got := damaged(t, cfg); got.File != row.file {
				t.Errorf("damage is reported in %s, want %s: %v", got.File, row.file, got)
			}
			report, err := Inspect(cfg.Dir, m)
			if err != nil || len(report.Damage) == 0 {
				t.Errorf("inspect: %v, %v", report, err)
			}
		})
	}
}

// put writes a file as a stranger would.
func (m *memFS) put(name, content string) {
	d, base, err := m.at(name)
	if err != nil {
		panic(err)
	}
	d.now[base] = &memInode{now: []byte(content)}
}

func (m *memFS) swap(a, b string) {
	da, na, _ := m.at(a)
	db, nb, _ := m.at(b)
	da.now[na], db.now[nb] = db.now[nb], da.now[na]
}

// Two records of one attempt reference stop the start (I30).
func TestOneReferenceTwice(t *testing.T) {
	m := newMemFS()
	cfg := config(m)
	s := created(t, cfg)
	mustApply(t, s, mustCreate(t, s, "a"), life("same", 1)[0])
	mustApply(t, s, mustCreate(t, s, "b"), life("same", 2)[0])
	mustClose(t, s)
	if d := damaged(t, cfg); d.File != "active/b.attempt" || !strings.Contains(d.Reason, "reference") {
		t.Error(d)
	}
}

// A record found in active and history finishes its archive where both are
// equal and stops the start where they differ.
func TestFoundInBothPlaces(t *testing.T) {
	m, cfg := stocked(t)
	active, history := m.dirs["/store/active"].now, m.dirs["/store/history"].now
	name := historyName(HistoryEntry{2, "a"})
	history[name] = &memInode{now: bytes.Clone(active["a.attempt"].now)}
	s := opened(t, cfg)
	if _, ok := active["a.attempt"]; ok {
		t.Error("the active copy is still there")
	}
	if h := s.History(); len(h) != 2 || h[1] != (HistoryEntry{2, "a"}) || len(s.Active()) != 1 {
		t.Error(h, s.Active())
	}
	mustClose(t, s)
	// "old" again, in an earlier state of its life, is another record.
	m2, cfg2 := stocked(t)
	s2 := opened(t, cfg2)
	e := mustApply(t, s2, mustCreate(t, s2, "old2"), life("old2", 5)...)
	mustClose(t, s2)
	e.Revision++
	l := &loader{fs: m2, dir: cfg2.Dir}
	c, err := l.scope()
	if err != nil {
		t.Fatal(err)
	}
	w := &Store{cfg: cfg2, fs: m2, id: c.id, failed: make(chan struct{})}
	if err := w.writeRecord("/store/history/"+historyName(HistoryEntry{2, "old2"}), e); err != nil {
		t.Fatal(err)
	}
	if d := damaged(t, cfg2); d.File != "history/"+historyName(HistoryEntry{2, "old2"}) || !strings.Contains(d.Reason, "differs") {
		t.Error(d)
	}
}

// A whole file whose record has another key or scope than its place.
func TestRecordOfAnotherKeyOrScope(t *testing.T) {
	for name, change := range map[string]func(*attempt.Origin){
		"key":   func(o *attempt.Origin) { o.Key = "other" },
		"scope": func(o *attempt.Origin) { o.Scope.Generation = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			m, cfg := stocked(t)
			c, err := (&loader{fs: m, dir: cfg.Dir}).scope()
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, "b")
			change(&r.Origin)
			w := &Store{cfg: cfg, fs: m, id: c.id, failed: make(chan struct{})}
			if err := w.writeRecord("/store/active/b.attempt", Entry{"b", 1, r}); err != nil {
				t.Fatal(err)
			}
			if d := damaged(t, cfg); d.File != "active/b.attempt" || !strings.Contains(d.Reason, "another key or scope") {
				t.Error(d)
			}
		})
	}
}

// Files of a newer program stop the start with the remedy to run that one.
func TestNewerFiles(t *testing.T) {
	newer := []byte(`{"format":"quittance-store","v":2,"compressed":true}` + "\n\x00\n")
	for _, file := range []string{"scope", "active/a.attempt", "hosts/" + string(testGeneration) + witnessSuffix} {
		m, cfg := stocked(t)
		m.put("/store/"+file, string(newer))
		if d := damaged(t, cfg); d.File != file || d.Remedy != remedyNewer || !strings.Contains(d.Reason, "version 2") {
			t.Errorf("%s: %v", file, d)
		}
	}
	m, cfg := stocked(t)
	c, err := (&loader{fs: m, dir: cfg.Dir}).scope()
	if err != nil {
		t.Fatal(err)
	}
	m.put("/store/active/a.attempt", string(seal(c.id, kindAttempt, "a", 1, []byte(`{"v":2,"state":"dreaming","record":{}}`))))
	if d := damaged(t, cfg); d.Remedy != remedyNewer {
		t.Error(d)
	}
}

// A temporary file that was never renamed is reported and removed.
func TestLeftoversAreReportedAndRemoved(t *testing.T) {
	m, cfg := stocked(t)
	names := []string{"active/a.attempt.tmp", "history/x.tmp", "hosts/y.tmp", "scope.tmp"}
	for _, name := range names {
		m.put("/store/"+name, "half a wri")
	}
	s := opened(t, cfg)
	if diff := cmp.Diff(names, s.Leftovers(), cmpopts.SortSlices(func(a, b string) bool { return a < b })); diff != "" {
		t.Error(diff)
	}
	mustClose(t, s)
	s = opened(t, cfg)
	if len(s.Leftovers()) != 0 {
		t.Error("they are still there", s.Leftovers())
	}
	mustClose(t, s)
}

// Inspect shows a stopped store whole and changes nothing; damage is in the
// report.
func TestInspect(t *testing.T) {
	m, cfg := stocked(t)
	m.hook = func(op, name string) error {
		switch op {
		case "list", "read", "lock":
			return nil
		}
		t.Errorf("inspect does %s %s", op, name)
		return nil
	}
	m.put("/store/active/c.attempt", "x")
	report, err := Inspect(cfg.Dir, m)
	if err != nil {
		t.Fatal(err)
	}
	if !report.ID.Valid() || report.Scope != testScope || !report.Clean || len(report.Active) != 2 || len(report.History) != 1 ||
		report.Records["old"].Record == nil || report.Witnesses[testGeneration].Highest.Index != 3 {
		t.Errorf("got %+v", report)
	}
	if len(report.Damage) != 1 || report.Damage[0].File != "active/c.attempt" {
		t.Errorf("damage %v", report.Damage)
	}
}

// FuzzUnseal: what unseal accepts is exactly what seal writes.
func FuzzUnseal(f *testing.F) {
	f.Add(seal("00112233445566778899aabbccddeeff", kindAttempt, "a", 3, []byte("{}")))
	f.Add(seal("00112233445566778899aabbccddeeff", kindScope, "", 1, nil))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, content, err := unseal(data)
		if err != nil {
			return
		}
		if again := seal(h.Store, h.Kind, h.Name, h.Revision, content); !bytes.Equal(again, data) {
			t.Fatalf("accepted %q, which seal writes as %q", data, again)
		}
	})
}
