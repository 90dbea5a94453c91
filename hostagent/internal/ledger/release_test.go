package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

// Release: the base first, then the released receipt; whole older segments go,
// what must stay readable stays (I21).
func TestRelease(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%v", keep), func(t *testing.T) {
			x := newFixture(t)
			var entries []Entry
			for i := range 12 {
				entries = append(entries, x.append(filler(15000, fmt.Sprint(i)))...)
			}
			var from uint64
			kept := entries[len(entries):]
			if keep {
				from, kept = entries[9].Sequence, entries[9:]
			}
			r := x.release("the base", from, "released", "and more")
			if r.err != nil {
				t.Fatal(r.err)
			}
			if len(r.entries) != 3 || r.entries[0].Kind != KindBase || string(r.entries[0].Payload) != "the base" || string(r.entries[1].Payload) != "released" {
				t.Fatalf("entries: %+v", r.entries)
			}
			x.append("after")
			for range 2 {
				x.reopen()
				if got := string(x.l.Recovered().Base); got != "the base" || x.l.Recovered().BaseSequence != r.entries[0].Sequence {
					t.Fatalf("base %q", got)
				}
				x.want("released", "and more", "after")
				if _, err := x.l.Read(entries[0].Position); !errors.Is(err, ErrReleased) {
					t.Fatalf("released record: %v", err)
				}
				for _, e := range kept {
					if got, err := x.l.Read(e.Position); err != nil || !bytes.Equal(got.Payload, e.Payload) {
						t.Fatalf("kept record %d: %v", e.Sequence, err)
					}
				}
			}
			x.close()
			if keep {
				// A kept segment is verified like any other.
				files := x.f.content("ledger")
				ordinal, offset := kept[0].Position.split()
				files[segmentName(ordinal)][offset+recordHeader] ^= 1
				wantDamage(t, files, segmentName(ordinal), offset)
			}
		})
	}
}

// A base that does not fit into a segment gets a longer one.
func TestLongBase(t *testing.T) {
	x := newFixture(t)
	long := filler(5*MinSegment, "long")
	if r := x.release(long, 0, "released"); r.err != nil {
		t.Fatal(r.err)
	}
	x.append("after")
	x.reopen()
	if got := string(x.l.Recovered().Base); got != long {
		t.Fatalf("base of %d bytes, want %d", len(got), len(long))
	}
	x.want("released", "after")
	x.close()
}

// One removal, then an error; failed directory sync: the release itself stands,
// the process ends, and the next one finishes the removal.
func TestReleaseRemovalFails(t *testing.T) {
	for _, row := range []struct {
		op    string
		after int
	}{{"remove", 1}, {"remove", 0}, {"syncdir", 0}} {
		t.Run(fmt.Sprintf("%s after %d", row.op, row.after), func(t *testing.T) {
			x := newFixture(t)
			for i := range 12 {
				x.append(filler(15000, fmt.Sprint(i)))
			}
			x.f.mu.Lock()
			armed, done := false, 0
			x.f.fail = func(op, name string) error {
				if op == "remove" {
					armed = true // directory syncs before are those of spares
				}
				if armed && op == row.op {
					if done++; done > row.after {
						return &fs.PathError{Op: op, Path: name, Err: unix.EIO}
					}
				}
				return nil
			}
			x.f.mu.Unlock()
			if r := x.release("base", 0, "released"); r.err != nil {
				t.Fatalf("the release is durable: %v", r.err)
			}
			<-x.l.Failed()
			if r := x.try("later"); !errors.Is(r.err, unix.EIO) {
				t.Fatalf("later: %v", r.err)
			}
			if err := x.l.Close(); !errors.Is(err, unix.EIO) {
				t.Fatal(err)
			}
			x.f.restart()
			x.open()
			x.want("released")
			x.close()
			if got := len(x.segments()); got > 3 {
				t.Fatalf("%d segments are still there: %v", got, x.segments())
			}
		})
	}
}
