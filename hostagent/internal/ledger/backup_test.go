package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A backup is a ledger of its own that ends where the other one did, an export
// is its records; damage is never copied.
func TestBackup(t *testing.T) {
	base := t.TempDir()
	dir, dst := filepath.Join(base, "ledger"), filepath.Join(base, "backup")
	o := Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: time.Millisecond}
	if err := Create(dir, o, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	acked := make(chan uint64, 1)
	go func() { // a busy agent
		defer close(stopped)
		for i := 0; ; i++ {
			done := make(chan error, 1)
			if err := l.Append([]Record{{KindReceipt, []byte(filler(2000, fmt.Sprint(i)))}}, func(e []Entry, err error) {
				if err == nil {
					select {
					case <-acked:
					default:
					}
					acked <- e[0].Sequence
				}
				done <- err
			}); err != nil {
				t.Errorf("append: %v", err)
				return
			}
			if err := <-done; err != nil {
				t.Errorf("append: %v", err)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	atLeast := <-acked
	r, err := Backup(dir, dst, o)
	close(stop)
	<-stopped
	if err != nil {
		t.Fatal(err)
	}
	if r.Last < atLeast {
		t.Fatalf("backup ends at %d, %d was acknowledged before", r.Last, atLeast)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Backup(dir, dst, o); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("overwrote a backup: %v", err)
	}
	b, err := Open(dst, o)
	if err != nil {
		t.Fatal(err)
	}
	original, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	copied, whole := payloadsOf(t, b), payloadsOf(t, original)
	if len(copied) == 0 || len(copied) > len(whole) || !slices.Equal(copied, whole[:len(copied)]) {
		t.Fatalf("backup holds %d receipts that are not the first of the ledger's %d", len(copied), len(whole))
	}
	if err := errors.Join(b.Close(), original.Close()); err != nil {
		t.Fatal(err)
	}
	var exported []string
	r, err = Export(dir, o, func(e Entry) error {
		exported = append(exported, string(e.Payload))
		return nil
	})
	if err != nil || r.Generation != testGeneration || !slices.Equal(exported, whole) {
		t.Fatalf("exported %d of %d records, %+v, %v", len(exported), len(whole), r, err)
	}
	enough := errors.New("enough")
	if _, err := Export(dir, o, func(Entry) error { return enough }); !errors.Is(err, enough) {
		t.Fatalf("an export that was ended: %v", err)
	}
	name := filepath.Join(dir, segmentName(1))
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	raw[segmentHeader+recordHeader] ^= 1
	if err := os.WriteFile(name, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Backup(dir, dst+"2", o)
	if _, ok := errors.AsType[*DamageError](err); !ok {
		t.Fatalf("backed up damage: %v", err)
	}
	if _, err := os.Stat(dst + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a backup of a damaged ledger exists")
	}
	_, err = Export(dir, o, func(Entry) error {
		t.Error("a record of a damaged ledger was given")
		return nil
	})
	if _, ok := errors.AsType[*DamageError](err); !ok {
		t.Fatalf("exported damage: %v", err)
	}
}

// Check changes nothing, also where Open would mend.
func TestCheckChangesNothing(t *testing.T) {
	x := newFixture(t)
	x.append("one")
	x.append("torn")
	files := x.f.content("ledger")
	x.close()
	records := layout(t, files)
	files[segmentName(1)][records[2].offset+recordHeader] ^= 1
	f := newForgetFS()
	f.load("ledger", files)
	f.readOnly = true
	r, err := Check("ledger", Options{FS: f})
	if err != nil || r.Last != 2 || r.Attested != 1 || r.TailBytes == 0 || r.Segments != 1 || r.Generation != testGeneration {
		t.Fatalf("%+v, %v", r, err)
	}
}
