package ledger

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzOpen opens a segment that holds anything behind a good header. It must
// end in a refusal that touches nothing, or in a ledger whose records read
// back and which, opened again, is the same.
func FuzzOpen(f *testing.F) {
	p := place{ordinal: 1}
	generation, err := generationBytes(testGeneration)
	if err != nil {
		f.Fatal(err)
	}
	p.generation = generation
	head := header{place: p, size: MinSegment, first: 1}.encode()
	var log []byte
	var chain digest
	for n := range uint64(5) {
		log, chain = appendRecord(log, p, segmentHeader+int64(len(log)), record{
			sequence: n + 1, durable: n / 2, previous: chain, kind: KindReceipt, more: n == 3, payload: bytes.Repeat([]byte{byte(n)}, int(n)*9),
		})
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		files := map[string][]byte{segmentName(1): append(bytes.Clone(head), b[:min(len(b), MinSegment)]...)}
		l, err := openDamaged(t, files, false)
		if err != nil {
			if _, ok := errors.AsType[*DamageError](err); !ok {
				t.Fatalf("%v", err)
			}
			return
		}
		first := payloadsOf(t, l)
		left := l.o.FS.(*forgetFS)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		again, err := openDamaged(t, left.content("ledger"), false)
		if err != nil {
			t.Fatal(err)
		}
		if second := payloadsOf(t, again); len(second) != len(first) || again.Recovered().CutBytes != 0 {
			t.Fatalf("%d records, then %d with %d bytes to cut", len(first), len(second), again.Recovered().CutBytes)
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzRecord reads anything as a record or a header. What is accepted is
// exactly what would be written.
func FuzzRecord(f *testing.F) {
	p := place{ordinal: 3}
	b, _ := appendRecord(nil, p, 1024, record{sequence: 7, durable: 6, kind: KindIntent, payload: []byte("payload")})
	f.Add(b, int64(1024))
	f.Add(header{place: p, size: MinSegment, first: 9, base: true}.encode(), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, offset int64) {
		if r, ok := parseRecord(b, p, offset); ok {
			again, _ := appendRecord(nil, p, offset, r)
			if n := recordHeader + len(r.payload); !bytes.Equal(again[:n], b[:n]) {
				t.Fatalf("%x is written as %x", b, again)
			}
		}
		if h, ok := parseHeader(b, p.ordinal); ok {
			if again := h.encode(); !bytes.Equal(again[:headerBytes], b[:headerBytes]) {
				t.Fatalf("%x is written as %x", b, again)
			}
		}
	})
}

// The form on disk, written out: ledgers outlive the program that wrote them.
func TestFormatGolden(t *testing.T) {
	generation, err := generationBytes(testGeneration)
	if err != nil {
		t.Fatal(err)
	}
	p := place{generation, 2}
	var before digest
	for i := range before {
		before[i] = byte(0xa0 + i)
	}
	h := header{place: p, size: 0x10000, first: 0x0102, base: true, before: before}.encode()
	wantHeader := "QLEDGER1" + "\x01\x00\x00\x00" + goldenHeaderSum +
		"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f" +
		"\x02\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x01\x00\x00\x00\x00\x00" +
		"\x02\x01\x00\x00\x00\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + string(before[:])
	if got := string(h[:headerBytes]); got != wantHeader || !zero(h[headerBytes:]) || len(h) != segmentHeader {
		t.Fatalf("header\n%q, want\n%q", got, wantHeader)
	}
	b, _ := appendRecord(nil, p, segmentHeader, record{sequence: 0x0102, durable: 0x0101, previous: before, kind: KindReceipt, more: true, payload: []byte("leaf")})
	wantRecord := "\x04\x00\x00\x00" + goldenRecordSum + "\x02\x01\x00\x00\x00\x00\x00\x00" +
		"\x01\x01\x00\x00\x00\x00\x00\x00" + string(before[:]) + "\x01\x01\x00\x00" + "leaf"
	if string(b) != wantRecord {
		t.Fatalf("record\n%q, want\n%q", b, wantRecord)
	}
}

// CRC-32C, computed by another program.
const (
	goldenHeaderSum = "\x12\x84\x01\x41"
	goldenRecordSum = "\x6c\x20\x24\xb0"
)
