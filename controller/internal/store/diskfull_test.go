//go:build crash

package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/integration/powerloss"
)

// TestRealDiskFull fills a real file system to its last byte: what was admitted
// gets to its end, with the largest outcome, and nothing new is admitted (I36,
// FR-22).
func TestRealDiskFull(t *testing.T) {
	if !powerloss.Isolate(t) {
		return
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	}()
	cfg := config(nil)
	cfg.Dir = filepath.Join(disk, "store")
	s := created(t, cfg)
	if err := s.Admit(); err != nil {
		t.Fatal(err)
	}
	e := mustCreate(t, s, "a")
	fill, err := os.Create(filepath.Join(disk, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := fill.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
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
	e = mustApply(t, s, e, events...)
	if _, err := s.Archive(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
	s = opened(t, cfg)
	if back, err := s.Archived(HistoryEntry{1, "a"}); err != nil || !equal(back, e) {
		t.Errorf("read back %v", err)
	}
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	if err := s.Admit(); err != nil {
		t.Errorf("with space again: %v", err)
	}
	mustClose(t, s)
}
