package blobs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quittance/quittance/protocol"
)

func TestPutAndGetAreExact(t *testing.T) {
	store, err := Open(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"", "a", "\x00\xff\n"} {
		digest, err := store.Put([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := store.Put([]byte(data)); err != nil || again != digest {
			t.Fatalf("the same bytes again: %v %v", again, err)
		}
		got, err := store.Get(digest, int64(len(data)))
		if err != nil || string(got) != data {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(store.directory, incoming)); err != nil || len(entries) != 0 {
		t.Fatalf("left %d files, %v", len(entries), err)
	}
	if _, err := store.Get(protocol.DigestOf([]byte("absent")), 6); !errors.Is(err, ErrMissing) {
		t.Fatalf("absent: %v", err)
	}
}

func TestBytesThatDifferAreNeverPlacedNorServed(t *testing.T) {
	store, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pending, err := store.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(pending, "abc"); err != nil {
		t.Fatal(err)
	}
	if err := pending.Place(protocol.DigestOf([]byte("abd")), 3); !errors.Is(err, ErrMismatch) {
		t.Fatalf("got %v", err)
	}
	if _, err := store.Open(protocol.DigestOf([]byte("abd")), 3); !errors.Is(err, ErrMissing) {
		t.Fatalf("got %v", err)
	}
	// Damage on disk is seen.
	digest, err := store.Put([]byte("abc"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store.path(digest), []byte("abX"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(digest, 3); !errors.Is(err, ErrMismatch) {
		t.Fatalf("got %v", err)
	}
	if err := os.WriteFile(store.path(digest), []byte("ab"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(digest, 3); !errors.Is(err, ErrMismatch) {
		t.Fatalf("got %v", err)
	}
}

func TestSweepRemovesOnlyOldLeftovers(t *testing.T) {
	store, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		pending, err := store.Begin()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pending.Abort() }) // one of the two files is gone by then
		if _, err := io.WriteString(pending, "half"); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(store.directory, incoming))
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(store.directory, incoming, entries[0].Name())
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if removed, err := store.Sweep(time.Hour); err != nil || removed != 1 {
		t.Fatalf("removed %d, %v", removed, err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the old leftover is still there: %v", err)
	}
}

// I35: a directory whose parent's sync failed is not trusted by who finds it.
func TestShardOfAFailedSyncIsSyncedAgain(t *testing.T) {
	store, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broken, synced := errors.New("broken"), []string{}
	store.sync = func(path string) error {
		synced = append(synced, path)
		if len(synced) == 1 {
			return broken
		}
		return nil
	}
	if _, err := store.Put([]byte("a")); !errors.Is(err, broken) {
		t.Fatal(err)
	}
	digest, err := store.Put([]byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	shard := filepath.Dir(store.path(digest))
	if want := []string{store.directory, store.directory, shard}; !slices.Equal(synced, want) {
		t.Fatalf("synced %q, want %q", synced, want)
	}
	if _, err := store.Put([]byte("a")); err != nil || len(synced) != 4 || synced[3] != shard {
		t.Fatalf("synced %q, %v", synced, err)
	}
}
