package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

func openFile(t *testing.T, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func insert(ctx context.Context, name string) func(*Tx) error {
	return func(tx *Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO meta (name, value) VALUES (?, '')`, name)
		return err
	}
}

func count(t *testing.T, db *DB, like string) (n int) {
	t.Helper()
	if err := db.Read(t.Context(), func(tx *Tx) error {
		_, err := tx.Row(t.Context(), []any{&n}, `SELECT COUNT(*) FROM meta WHERE name LIKE ?`, like)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// The durability that the package comment promises is what the connections have.
func TestConnectionsAreDurable(t *testing.T) {
	// A path with characters that mean something in URLs.
	db := openFile(t, filepath.Join(t.TempDir(), "a ?#%41&b.db"))
	for name, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000"} {
		for _, run := range []func(context.Context, func(*Tx) error) error{db.Write, db.Read} {
			var got string
			if err := run(t.Context(), func(tx *Tx) error {
				_, err := tx.Row(t.Context(), []any{&got}, `PRAGMA `+name)
				return err
			}); err != nil || got != want {
				t.Errorf("%s is %s, want %s (%v)", name, got, want, err)
			}
		}
	}
	if err := db.Read(t.Context(), insert(t.Context(), "x")); err == nil {
		t.Error("a read transaction wrote")
	}
}

func TestTransactionsAreWholeOrNothing(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "db"))
	refusal := errors.New("refused")
	err := db.Write(t.Context(), func(tx *Tx) error {
		if err := insert(t.Context(), "t-1")(tx); err != nil {
			return err
		}
		return refusal
	})
	if err != refusal || count(t, db, "t-%") != 0 {
		t.Fatalf("got %v, %d rows", err, count(t, db, "t-%"))
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = db.Write(t.Context(), func(tx *Tx) error { // it panics
			if err := insert(t.Context(), "t-1")(tx); err != nil {
				t.Error(err)
			}
			panic("fault")
		})
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err = db.Write(ctx, func(tx *Tx) error {
		defer cancel()
		return insert(ctx, "t-1")(tx)
	})
	if !errors.Is(err, context.Canceled) || count(t, db, "t-%") != 0 {
		t.Fatalf("cancelled before the commit: %v, %d rows", err, count(t, db, "t-%"))
	}
	if err := db.Write(t.Context(), insert(t.Context(), "t-1")); err != nil || count(t, db, "t-%") != 1 {
		t.Fatalf("the connection is not free again: %v", err)
	}
}

// Two processes may write one file: none is refused for the other's sake.
func TestWritersOfTwoOpeningsTakeTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	first, second := openFile(t, path), openFile(t, path)
	var group sync.WaitGroup
	const each = 50
	for i, db := range []*DB{first, second} {
		group.Go(func() {
			for n := range each {
				if err := db.Write(t.Context(), insert(t.Context(), "t-"+string(rune('a'+i))+"-"+time.Duration(n).String())); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if got := count(t, first, "t-%"); got != 2*each {
		t.Fatalf("%d rows", got)
	}
}

func TestOpenRefusesANewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, err := Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE meta SET value = '2' WHERE name = 'schema'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "sqlite:"+path); err == nil || !strings.Contains(err.Error(), "newer program") {
		t.Fatalf("got %v", err)
	}
	other := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(other, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "sqlite:"+other); err == nil {
		t.Fatal("another file was taken for a database")
	}
}

// I36: a full disk refuses the transaction and nothing else; the next that fits
// succeeds.
func TestFullDiskIsARefusalThatPasses(t *testing.T) {
	db := openFile(t, filepath.Join(t.TempDir(), "db"))
	limit := func(pages string) {
		t.Helper()
		if err := db.Write(t.Context(), func(tx *Tx) error {
			var got int64
			_, err := tx.Row(t.Context(), []any{&got}, `PRAGMA max_page_count = `+pages)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // SQLite takes it as the present size
	err := db.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO meta (name, value) VALUES ('t-big', ?)`, strings.Repeat("x", 1<<20))
		return err
	})
	if !errors.Is(err, ErrFull) || count(t, db, "t-%") != 0 {
		t.Fatalf("got %v", err)
	}
	limit("1000000")
	if err := db.Write(t.Context(), insert(t.Context(), "t-1")); err != nil {
		t.Fatalf("after space was made: %v", err)
	}
}

// I35: after a storage failure no write is acknowledged, whatever the disk says.
func TestStorageFailurePoisons(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	made, err := Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if err := made.Write(t.Context(), func(tx *Tx) error {
		for i := range 500 {
			if _, err := tx.Exec(t.Context(), `INSERT INTO meta (name, value) VALUES (?, ?)`, fmt.Sprintf("t-%04d", i), strings.Repeat("x", 400)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
	db := openFile(t, path)
	// Real damage under an open database: the last two thirds of the file.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, info.Size()*2/3), info.Size()/3); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	first := db.Write(t.Context(), func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE meta SET value = 'y' WHERE name LIKE 't-%'`)
		return err
	})
	var cause *sqlite.Error
	if !errors.As(first, &cause) {
		t.Fatalf("got %v", first)
	}
	if code := cause.Code() & 0xff; code != sqlite3.SQLITE_CORRUPT && code != sqlite3.SQLITE_NOTADB && code != sqlite3.SQLITE_IOERR {
		t.Fatalf("code %d: %v", code, first)
	}
	select {
	case <-db.Failed():
	default:
		t.Error("nobody is told")
	}
	if !errors.Is(db.Err(), cause) {
		t.Errorf("reported as %v", db.Err())
	}
	second := db.Write(t.Context(), func(*Tx) error {
		t.Error("a transaction began on failed storage")
		return nil
	})
	if !errors.Is(second, ErrPoisoned) || !strings.Contains(second.Error(), cause.Error()) {
		t.Fatalf("got %v", second)
	}
}
