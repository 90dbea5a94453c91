package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/protocol"
)

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
