package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/protocol"
)

const testGeneration protocol.ID = "000102030405060708090a0b0c0d0e0f"

// never is an attest time that no test reaches.
const never = time.Hour

// fixture is a ledger in a forgetful file system.
type fixture struct {
	t *testing.T
	f *forgetFS
	o Options
	l *Ledger
}

func newFixture(t *testing.T) *fixture {
	x := &fixture{t: t, f: newForgetFS()}
	x.o = Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: never, FS: x.f}
	if err := Create("ledger", x.o, []Record{{KindReceipt, []byte("genesis")}}); err != nil {
		t.Fatal(err)
	}
	x.open()
	return x
}

func (x *fixture) open() {
	x.t.Helper()
	l, err := Open("ledger", x.o)
	if err != nil {
		x.t.Fatal(err)
	}
	x.l = l
}

func (x *fixture) close() {
	x.t.Helper()
	if err := x.l.Close(); err != nil {
		x.t.Fatal(err)
	}
}

// reopen closes and opens.
func (x *fixture) reopen() {
	x.t.Helper()
	x.close()
	x.open()
}

type outcome struct {
	entries []Entry
	err     error
}

// append appends one group of receipts and waits for its answer.
func (x *fixture) append(payloads ...string) []Entry {
	x.t.Helper()
	r := x.try(payloads...)
	if r.err != nil {
		x.t.Fatal(r.err)
	}
	return r.entries
}

func (x *fixture) try(payloads ...string) outcome {
	x.t.Helper()
	var records []Record
	for _, p := range payloads {
		records = append(records, Record{KindReceipt, []byte(p)})
	}
	done := make(chan outcome, 1)
	if err := x.l.Append(records, func(e []Entry, err error) { done <- outcome{e, err} }); err != nil {
		return outcome{nil, err}
	}
	return <-done
}

func (x *fixture) release(base string, keep uint64, payloads ...string) outcome {
	x.t.Helper()
	r := Release{Base: []byte(base), Keep: keep}
	for _, p := range payloads {
		r.Records = append(r.Records, Record{KindReceipt, []byte(p)})
	}
	done := make(chan outcome, 1)
	if err := x.l.Release(r, func(e []Entry, err error) { done <- outcome{e, err} }); err != nil {
		return outcome{nil, err}
	}
	return <-done
}

// recovered lists the payloads behind the base.
func (x *fixture) recovered() []string {
	x.t.Helper()
	return payloadsOf(x.t, x.l)
}

func payloadsOf(t *testing.T, l *Ledger) []string {
	t.Helper()
	var out []string
	for e, err := range l.Recovered().Records {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(e.Payload))
	}
	return out
}

func (x *fixture) want(payloads ...string) {
	x.t.Helper()
	if got := x.recovered(); !slices.Equal(got, payloads) {
		x.t.Fatalf("recovered %.60q, want %.60q", got, payloads)
	}
}

// segments lists the names of the segment files.
func (x *fixture) segments() []string {
	var out []string
	for name := range x.f.content("ledger") {
		out = append(out, strings.TrimSuffix(strings.TrimLeft(name, "0"), segmentSuffix))
	}
	slices.Sort(out)
	return out
}

// laid is one record as it lies in a file.
type laid struct {
	record
	file   string
	offset int64
	size   int64
}

// layout reads where the records of a whole ledger lie.
func layout(t *testing.T, files map[string][]byte) []laid {
	t.Helper()
	var out []laid
	for _, name := range slices.Sorted(maps.Keys(files)) {
		ordinal, _ := parseSegmentName(name)
		h, ok := parseHeader(files[name], ordinal)
		if !ok {
			continue
		}
		for offset := int64(segmentHeader); offset < int64(len(files[name])); {
			r, ok := parseRecord(files[name][offset:], h.place, offset)
			if !ok {
				break
			}
			out = append(out, laid{r, name, offset, Size(len(r.payload))})
			offset += Size(len(r.payload))
		}
	}
	return out
}

func cloneFiles(files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, b := range files {
		out[name] = slices.Clone(b)
	}
	return out
}

// openDamaged opens these files; the file system refuses every change when
// damage is expected, so that touching anything shows.
func openDamaged(t *testing.T, files map[string][]byte, readOnly bool) (*Ledger, error) {
	t.Helper()
	f := newForgetFS()
	f.load("ledger", files)
	f.readOnly = readOnly
	return Open("ledger", Options{Generation: testGeneration, Segment: MinSegment, AttestAfter: never, FS: f})
}

// wantDamage checks that opening names the file and the place and touches
// nothing (FR-21).
func wantDamage(t *testing.T, files map[string][]byte, file string, offset int64) {
	t.Helper()
	l, err := openDamaged(t, files, true)
	if err == nil {
		t.Fatalf("opened up to %d; damage in %s at %d expected", l.Recovered().Last, file, offset)
	}
	d, ok := errors.AsType[*DamageError](err)
	if !ok {
		t.Fatalf("%v; damage expected", err)
	}
	if d.File != "ledger/"+file || d.Offset != offset {
		t.Fatalf("damage named in %s at %d, is in %s at %d (%v)", d.File, d.Offset, file, offset, err)
	}
}

// wantLast checks that opening succeeds, ends at this sequence, and that a
// second opening finds nothing left to cut.
func wantLast(t *testing.T, files map[string][]byte, last uint64) {
	t.Helper()
	l, err := openDamaged(t, files, false)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.Recovered().Last; got != last {
		t.Fatalf("ends at %d, want %d", got, last)
	}
	for _, err := range l.Recovered().Records {
		if err != nil {
			t.Fatal(err)
		}
	}
	fs := l.o.FS.(*forgetFS)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := openDamaged(t, fs.content("ledger"), false)
	if err != nil {
		t.Fatal(err)
	}
	if r := again.Recovered(); r.CutBytes != 0 || r.Last != last {
		t.Fatalf("opened again: ends at %d with %d bytes to cut, want %d and none", r.Last, r.CutBytes, last)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func filler(n int, what string) string { return fmt.Sprintf("%s %s", what, strings.Repeat("·", n/2)) }

func seeded(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, n)) }
