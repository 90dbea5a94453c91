package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// bytesOf is what the ledger's files take; the caller holds the file system.
func (x *fixture) bytesOf() (bytes int64) {
	for _, n := range x.f.root.names["ledger"].names {
		bytes += int64(len(n.data))
	}
	return bytes
}

// What Open prepares is, by the sizes of the files of a real directory, all
// that is counted where nothing is kept (I36).
func TestFootprintIsWhatOpenPrepares(t *testing.T) {
	for _, o := range []Options{
		{Segment: MinSegment},
		{Segment: MinSegment, Reserve: 1},
		{Segment: MinSegment, Reserve: 200 << 10, Ballast: 1 << 20},
		{Segment: 1 << 20, Reserve: 3 << 20, Ballast: 12345},
		{Reserve: 100},
	} {
		t.Run(fmt.Sprintf("%d,%d,%d", o.Segment, o.Reserve, o.Ballast), func(t *testing.T) {
			o.Generation = testGeneration
			dir := filepath.Join(t.TempDir(), "ledger")
			if err := Create(dir, o, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
				t.Fatal(err)
			}
			l, err := Open(dir, o)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			var bytes int64
			names, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				info, err := name.Info()
				if err != nil {
					t.Fatal(err)
				}
				bytes += info.Size()
			}
			if want := Footprint(o, 0); bytes != want {
				t.Errorf("%d files take %d bytes, %d were counted", len(names), bytes, want)
			}
			if short, err := FindShortage(dir, o); err != nil || short != (Shortage{}) {
				t.Errorf("%+v, %v", short, err)
			}
		})
	}
}

// By hand: 40,000 bytes in segments of 64 KiB, each of which holds 32,512 for
// certain, take two; besides them the one in use, that of the base before, the
// two spares of the reserve and the one of a release.
func TestFootprintByHand(t *testing.T) {
	o := Options{Segment: MinSegment, Reserve: 40_000, Ballast: 5}
	for kept, want := range map[int64]int64{0: 4, 1: 6, 32_512: 6, 32_513: 7, 40_000: 7} {
		if got := Footprint(o, kept); got != want*MinSegment+5 {
			t.Errorf("%d bytes kept: %d, want %d segments", kept, got, want)
		}
	}
}

// However the groups fall, and with the largest base, at no moment does the
// ledger take more than what is counted: what is kept fills whole segments, and a
// release begins one before it removes the others (I33).
func TestFootprintIsNeverExceeded(t *testing.T) {
	const kept = 300_000
	for _, payload := range []int{100, 20_000, 32_600, 64_900} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			x := newFixture(t)
			x.close()
			x.o.Reserve, x.o.Ballast = 90<<10, 1<<20
			bound, most := Footprint(x.o, kept), int64(0)
			x.f.fail = func(string, string) error {
				most = max(most, x.bytesOf())
				return nil
			}
			x.open()
			for n := range 3 {
				size := Size(payload)
				for written := size; written <= kept; written += size {
					x.append(string(make([]byte, payload)))
				}
				base := string(make([]byte, MinSegment-segmentHeader-int(Size(0))-int(Size(len("released")))-recordHeader-baseEnvelope-8))
				if r := x.release(base, 0, "released"); r.err != nil {
					t.Fatalf("release %d: %v", n, r.err)
				}
			}
			x.close()
			if most > bound {
				t.Errorf("it took %d bytes, counted are %d", most, bound)
			}
			if most < bound/2 {
				t.Errorf("it took %d bytes only, counted are %d", most, bound)
			}
		})
	}
}

// A full ledger is content exactly from the bound on, with nothing missing then;
// one that was content counts the disk as full exactly below the other (I36,
// FR-22).
func TestBoundsOfAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t)
		x.close()
		x.o.Reserve, x.o.Ballast = 90<<10, 1<<20
		x.f.capacity = 100 << 20
		x.open()
		free := func(bytes int64) Shortage {
			t.Helper()
			x.f.mu.Lock()
			x.f.capacity = bytes
			x.f.mu.Unlock()
			time.Sleep(5 * spaceRetry) // virtual time
			synctest.Wait()
			short, err := FindShortage("ledger", x.o)
			if err != nil {
				t.Fatal(err)
			}
			return short
		}
		full := func(want bool) {
			t.Helper()
			if got := x.l.Space().Full; got != want {
				t.Fatalf("full: %v, want %v", got, want)
			}
		}
		if short := free(x.o.FullBelow()); short != (Shortage{}) {
			t.Fatalf("%+v", short)
		}
		full(false)
		if short := free(x.o.FullBelow() - 1); short != (Shortage{Ballast: true}) {
			t.Fatalf("%+v", short)
		}
		full(true)
		free(0)
		for range 3 { // one fits into the segment in use; two spares are used up
			x.append(filler(60_000, "receipt"))
		}
		short := free(0)
		if short != (Shortage{Spares: 2, Ballast: true}) {
			t.Fatalf("%+v", short)
		}
		bound := x.o.ContentFrom(short.Spares, !short.Ballast)
		if want := int64(3<<20 + 2*MinSegment); bound != want {
			t.Fatalf("content from %d bytes, want %d", bound, want)
		}
		if short := free(x.o.ContentFrom(2, true) - 1); short != (Shortage{Spares: 2, Ballast: true}) {
			t.Fatalf("made too early: %+v", short)
		}
		full(true)
		if short := free(bound); short != (Shortage{}) {
			t.Fatalf("%+v", short)
		}
		full(false)
		if x.f.capacity != 2*x.o.Ballast {
			t.Fatalf("%d bytes are free", x.f.capacity)
		}
		x.close()
	})
}

// What is not whole counts as missing; before the first opening everything is.
func TestFindShortage(t *testing.T) {
	x := newFixture(t)
	x.close()
	x.o.Reserve, x.o.Ballast = 90<<10, 1<<20
	look := func(want Shortage) {
		t.Helper()
		if got, err := FindShortage("ledger", x.o); err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	}
	look(Shortage{Spares: 3, Ballast: true}) // one spare is of the fixture's own opening
	x.open()
	look(Shortage{}) // while it is open
	x.close()
	files := x.f.root.names["ledger"].names
	files[ballastName].data = files[ballastName].data[:4096]
	files[segmentName(5)].data = files[segmentName(5)].data[:4096]
	x.f.readOnly = true
	look(Shortage{Spares: 1, Ballast: true})
	if _, err := FindShortage("absent", x.o); !errors.Is(err, ErrNotExist) {
		t.Fatal(err)
	}
	x.o.Segment = 1
	if _, err := FindShortage("ledger", x.o); err == nil {
		t.Fatal("a segment of one byte")
	}
}
