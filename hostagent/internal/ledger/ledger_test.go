package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/protocol"
)

// Creating and opening are different verbs; opening never creates; a marker
// remembers a ledger that is gone (I9).
func TestVerbs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	o := Options{Generation: testGeneration, Segment: MinSegment}
	genesis := []Record{{KindReceipt, []byte("genesis")}}
	want := func(err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Fatalf("%v, want %v", err, target)
		}
	}
	_, err := Open(dir, o)
	want(err, ErrNotExist)
	_, err = Check(dir, o)
	want(err, ErrNotExist)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("opening made something")
	}
	_, err = Open(filepath.Join(dir, "deeper"), o)
	want(err, ErrNotExist)
	if err := Create(dir, o, nil); err == nil {
		t.Fatal("created without a first record")
	}
	if err := Create(dir, Options{Generation: "short"}, genesis); err == nil {
		t.Fatal("created without a generation")
	}
	if err := Create(dir, o, genesis); err != nil {
		t.Fatal(err)
	}
	want(Create(dir, o, genesis), ErrExists)

	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if l.Generation() != testGeneration {
		t.Fatalf("generation %s", l.Generation())
	}
	_, err = Open(dir, o)
	want(err, ErrLocked)
	if r, err := Check(dir, o); err != nil || r.Last != 1 || r.Receipts != 1 {
		t.Fatalf("check beside an open ledger: %+v, %v", r, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want(l.Close(), ErrClosed)
	want(l.Append(genesis, nil), ErrClosed)

	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, o)
	want(err, ErrLost)
	_, err = Check(dir, o)
	want(err, ErrLost)
	want(Create(dir, o, genesis), ErrExists)
	// With the marker elsewhere the loss of the whole state directory shows.
	elsewhere := o
	elsewhere.Marker = dir + markerSuffix
	_, err = Open(filepath.Join(dir, "state", "ledger"), elsewhere)
	want(err, ErrLost)

	// Another generation's files under this marker are a mistaken restore.
	other := filepath.Join(t.TempDir(), "ledger")
	if err := Create(other, Options{Generation: protocol.NewID(), Segment: MinSegment}, genesis); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, dir); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, Options{})
	if g, ok := errors.AsType[*GenerationError](err); !ok || g.Want != testGeneration {
		t.Fatalf("%v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	// An empty directory is not a ledger either.
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err = Open(dir, o); err == nil {
		t.Fatal("opened an empty directory")
	}
}

// A creation that a power cut interrupts leaves no ledger, or a whole one.
func TestCreateCutShort(t *testing.T) {
	o := Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: never}
	genesis := []Record{{KindReceipt, []byte("genesis")}, {KindIntent, []byte("and more")}}
	whole := newForgetFS()
	o.FS = whole
	if err := Create("ledger", o, genesis); err != nil {
		t.Fatal(err)
	}
	for steps := range whole.mutations {
		for _, kept := range []float64{0, 0.5, 1} {
			f := newForgetFS()
			f.countdown = steps
			o.FS = f
			if err := Create("ledger", o, genesis); !errors.Is(err, errPower) {
				t.Fatalf("step %d: %v", steps, err)
			}
			f.powerCut(seeded(uint64(steps)), kept)
			err := Create("ledger", o, genesis)
			if err != nil && !errors.Is(err, ErrExists) {
				t.Fatalf("step %d: created again: %v", steps, err)
			}
			l, err := Open("ledger", o)
			if err != nil {
				t.Fatalf("step %d: %v", steps, err)
			}
			if got := payloadsOf(t, l); len(got) != 2 {
				t.Fatalf("step %d: %q", steps, got)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if _, there, err := marked(o, "ledger"); !there || err != nil {
				t.Fatalf("step %d: no marker (%v)", steps, err)
			}
		}
	}
}

// Groups are answered in order, with contiguous sequences and places that
// read back, from many callers at once.
func TestAppendOrder(t *testing.T) {
	x := newFixture(t)
	var mu sync.Mutex
	var answered []Entry
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 40 {
				err := x.l.Append([]Record{{KindReceipt, fmt.Appendf(nil, "%d/%d", g, i)}, {KindIntent, []byte("intent")}},
					func(e []Entry, err error) {
						if err != nil {
							t.Errorf("append: %v", err)
						}
						mu.Lock()
						defer mu.Unlock()
						answered = append(answered, e...)
					})
				if err != nil {
					t.Errorf("append: %v", err)
				}
			}
		})
	}
	wg.Wait()
	x.close()
	if len(answered) != 8*40*2 {
		t.Fatalf("%d answers", len(answered))
	}
	x.open()
	defer x.close()
	for i, e := range answered {
		if e.Sequence != uint64(i)+2 {
			t.Fatalf("answer %d has sequence %d", i, e.Sequence)
		}
		got, err := x.l.Read(e.Position)
		if err != nil || got.Sequence != e.Sequence || got.Kind != e.Kind || !bytes.Equal(got.Payload, e.Payload) {
			t.Fatalf("read %d: %+v, %v", e.Sequence, got, err)
		}
	}
}

func TestReadRefusesAnyOtherPlace(t *testing.T) {
	x := newFixture(t)
	defer x.close()
	e := x.append("here")[0]
	ordinal, offset := e.Position.split()
	for _, p := range []Position{0, positionOf(99, offset)} {
		if _, err := x.l.Read(p); !errors.Is(err, ErrReleased) {
			t.Fatalf("read %x: %v", p, err)
		}
	}
	for _, at := range []int64{0, 8, offset - 8, offset + 8, MinSegment - 8, MinSegment, 1 << 31} {
		_, err := x.l.Read(positionOf(ordinal, at))
		if _, ok := errors.AsType[*DamageError](err); !ok {
			t.Fatalf("read at %d: %v", at, err)
		}
	}
}

// Writers check the ceilings that readers enforce (I33).
func TestCeilings(t *testing.T) {
	x := newFixture(t)
	defer x.close()
	for _, row := range []struct {
		name    string
		records []Record
	}{
		{"payload", []Record{{KindReceipt, make([]byte, MaxPayload+1)}}},
		{"group over a segment", []Record{{KindReceipt, make([]byte, MinSegment/2)}, {KindReceipt, make([]byte, MinSegment/2)}}},
		{"kind of our own", []Record{{KindBase, nil}}},
		{"unknown kind", []Record{{9, nil}}},
		{"nothing", nil},
	} {
		if err := x.l.Append(row.records, func([]Entry, error) { t.Errorf("%s: answered", row.name) }); err == nil {
			t.Fatalf("%s: appended", row.name)
		}
	}
	if err := x.l.Release(Release{Base: make([]byte, MaxBase+1)}, nil); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
	most := string(make([]byte, MinSegment-segmentHeader-recordHeader-8))
	x.append(most)
	x.reopen()
	x.want("genesis", most)
}

// The queue is bounded, and never waits for the disk.
func TestQueueFull(t *testing.T) {
	x := newFixture(t)
	x.close()
	x.o.Queue = 4 << 10
	x.open()
	syncing, proceed := make(chan struct{}, 100), make(chan struct{})
	x.f.mu.Lock()
	x.f.fail = func(op, _ string) error {
		if op == "sync" {
			syncing <- struct{}{}
			<-proceed
		}
		return nil
	}
	x.f.mu.Unlock()
	done := make(chan error, 10)
	queue := func() error {
		return x.l.Append([]Record{{KindReceipt, make([]byte, 1000)}}, func(_ []Entry, err error) { done <- err })
	}
	if err := queue(); err != nil {
		t.Fatal(err)
	}
	<-syncing // what is being written still counts
	var err error
	queued := 1
	for err == nil {
		if err = queue(); err == nil {
			queued++
		}
	}
	if !errors.Is(err, ErrQueueFull) || queued != 3 {
		t.Fatalf("%d queued, then %v", queued, err)
	}
	close(proceed)
	for range queued {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := queue(); err != nil {
		t.Fatal(err)
	}
	x.close()
}

// The last acknowledged record is attested after a while of idleness, once.
func TestAttestAfterIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t)
		x.close()
		x.o.AttestAfter = DefaultAttestAfter
		x.open()
		last := x.append("one")[0].Sequence
		attested := func() uint64 {
			t.Helper()
			synctest.Wait()
			r, err := Check("ledger", x.o)
			if err != nil {
				t.Fatal(err)
			}
			return r.Attested
		}
		time.Sleep(DefaultAttestAfter - time.Millisecond) // virtual time
		if got := attested(); got != last-1 {
			t.Fatalf("attested up to %d before the time, want %d", got, last-1)
		}
		time.Sleep(2 * time.Millisecond)
		if got := attested(); got != last {
			t.Fatalf("attested up to %d, want %d", got, last)
		}
		before := x.f.mutations
		time.Sleep(time.Hour)
		synctest.Wait()
		if x.f.mutations != before {
			t.Fatal("an idle ledger writes")
		}
		x.close()
		x.open()
		if got := x.l.Recovered().Last; got != last+1 {
			t.Fatalf("closing attested again: last is %d", got)
		}
		x.close()
	})
}

// A failed write or sync is final: everything later is refused with the first
// error, and a fresh process finds whole groups in order (I35).
func TestFailureIsFinal(t *testing.T) {
	for _, op := range []string{"write", "sync"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newFixture(t)
				x.append("acknowledged")
				synctest.Wait() // the spare is made
				x.f.mu.Lock()
				x.f.fail = func(got, _ string) error {
					if got == op {
						return errIO
					}
					return nil
				}
				x.f.mu.Unlock()
				first := x.try("unacknowledged")
				if _, ok := errors.AsType[*FailedError](first.err); !ok || !errors.Is(first.err, unix.EIO) {
					t.Fatalf("%v", first.err)
				}
				select {
				case <-x.l.Failed():
				default:
					t.Fatal("Failed is not closed")
				}
				x.f.mu.Lock()
				x.f.fail = nil
				before := x.f.mutations
				x.f.mu.Unlock()
				if second := x.try("later"); second.err != first.err {
					t.Fatalf("%v, want the first error", second.err)
				}
				if r := x.release("base", 0); r.err != first.err {
					t.Fatalf("release: %v, want the first error", r.err)
				}
				if err := x.l.Close(); !errors.Is(err, unix.EIO) {
					t.Fatalf("close: %v", err)
				}
				if x.f.mutations != before {
					t.Fatal("something was written after the failure")
				}
				x.f.restart()
				x.open()
				served := x.recovered()
				if len(served) < 2 || served[1] != "acknowledged" {
					t.Fatalf("recovered %q", served)
				}
				x.close()
				// What that process served is on the disk, although the sync that
				// should have brought it there had failed.
				x.f.powerCut(seeded(1), 0)
				x.open()
				x.want(served...)
				x.close()
			})
		})
	}
}

// The operating system's files: no links are followed, locks exclude.
func TestOperatingSystem(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "real"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	var o osFS
	if _, err := o.OpenFile(filepath.Join(dir, "link"), false); err == nil {
		t.Fatal("followed a link")
	}
	if _, err := o.OpenFile(filepath.Join(dir, "real"), true); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create over a file: %v", err)
	}
	if _, err := o.OpenFile(filepath.Join(dir, "none"), false); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("open of nothing: %v", err)
	}
	if _, err := o.ReadFile(filepath.Join(dir, "real"), 0); err == nil {
		t.Fatal("read over the limit")
	}
	held, err := o.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Lock(dir); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := o.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
