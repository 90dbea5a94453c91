package ledger

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// newer turns the header of a segment into that of a later format, whole.
func newer(t *testing.T, segment []byte, ordinal uint64) {
	t.Helper()
	h, ok := parseHeader(segment, ordinal)
	if !ok {
		t.Fatal("no header")
	}
	binary.LittleEndian.PutUint32(segment[8:], Format+1)
	binary.LittleEndian.PutUint32(segment[12:], h.place.checksum(0, segment[:12], segment[16:headerBytes]))
}

// A ledger that a later program went on with is refused with the remedy, and
// untouched: its last segments are no torn tail (I9).
func TestLaterFormatIsRefused(t *testing.T) {
	x := newFixture(t)
	for range 4 {
		x.append(filler(40<<10, "receipt")) // a segment each
	}
	x.close()
	files := x.f.content("ledger")
	var begun []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		ordinal, ok := parseSegmentName(name)
		if !ok || zero(files[name][:segmentHeader]) {
			continue
		}
		if _, ok := parseHeader(files[name], ordinal); ok {
			begun = append(begun, name)
		}
	}
	if len(begun) < 3 {
		t.Fatalf("only %d segments", len(begun))
	}
	for _, name := range begun {
		changed := cloneFiles(files)
		ordinal, _ := parseSegmentName(name)
		newer(t, changed[name], ordinal)
		for what, open := range map[string]func(*forgetFS) error{
			"open": func(f *forgetFS) error {
				_, err := Open("ledger", Options{Segment: MinSegment, AttestAfter: never, FS: f})
				return err
			},
			"check": func(f *forgetFS) error {
				_, err := Check("ledger", Options{FS: f})
				return err
			},
		} {
			f := newForgetFS()
			f.load("ledger", changed)
			f.readOnly = true
			err := open(f)
			refusal, ok := errors.AsType[*FormatError](err)
			if !ok || refusal.File != "ledger/"+name || refusal.Format != Format+1 || !strings.Contains(err.Error(), "run the version that wrote it") {
				t.Errorf("%s with a later %s: %v", what, name, err)
			}
		}
		// A version that rotted, without its checksum, is damage or a tail.
		rotten := cloneFiles(files)
		rotten[name][8] ^= 4
		f := newForgetFS()
		f.load("ledger", rotten)
		l, err := Open("ledger", Options{Segment: MinSegment, AttestAfter: never, FS: f})
		if _, refused := errors.AsType[*FormatError](err); refused {
			t.Errorf("a rotten version in %s was taken for a later format", name)
		}
		if err == nil {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
