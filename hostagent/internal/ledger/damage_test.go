package ledger

import (
	"errors"
	"fmt"
	"testing"
)

// matrixFiles is a ledger over three segments with groups of one to three
// records, its last record attested or not.
func matrixFiles(t *testing.T, attested bool) map[string][]byte {
	x := newFixture(t)
	for i := range 10 {
		x.append(filler(900, fmt.Sprint("single ", i)))
		x.append(filler(12000, fmt.Sprint("a", i)), "", filler(300, fmt.Sprint("c", i)))
	}
	x.append("last but one")
	x.append("last")
	files := x.f.content("ledger")
	x.close()
	if attested {
		files = x.f.content("ledger")
	}
	return files
}

// TestDamageMatrix flips, zeroes, swaps and cuts every record (FR-21, I5).
// What a later record attests is damage, named by file and offset, and nothing
// is touched; what nothing attests is cut.
func TestDamageMatrix(t *testing.T) {
	for _, attested := range []bool{true, false} {
		files := matrixFiles(t, attested)
		records := layout(t, files)
		if len(records) < 20 || records[len(records)-1].file == records[0].file {
			t.Fatalf("%d records are no matrix", len(records))
		}
		proved := records[len(records)-1].durable
		last := records[len(records)-1].sequence
		for i, r := range records {
			// An unattested record takes its group with it.
			survives := r.sequence - 1
			for j := i; j > 0 && records[j-1].more; j-- {
				survives--
			}
			expect := func(files map[string][]byte, at laid) {
				t.Helper()
				if at.sequence <= proved {
					wantDamage(t, files, at.file, at.offset)
				} else {
					wantLast(t, files, survives)
				}
			}
			name := fmt.Sprintf("attested=%v/record %d of %d", attested, r.sequence, last)
			for _, at := range []int64{0, 3, 4, 8, 16, 24, 55, 56, 57, 58, recordHeader} {
				if at >= recordHeader+int64(len(r.payload)) {
					continue
				}
				t.Run(fmt.Sprintf("%s/flip byte %d", name, at), func(t *testing.T) {
					damaged := cloneFiles(files)
					damaged[r.file][r.offset+at] ^= 0x10
					expect(damaged, r)
				})
			}
			t.Run(name+"/zero", func(t *testing.T) {
				damaged := cloneFiles(files)
				clear(damaged[r.file][r.offset : r.offset+r.size])
				expect(damaged, r)
			})
			if i+1 < len(records) && records[i+1].file == r.file {
				t.Run(name+"/swap with the next", func(t *testing.T) {
					next := records[i+1]
					damaged := cloneFiles(files)
					b := damaged[r.file][r.offset:]
					swapped := append(append([]byte{}, b[r.size:r.size+next.size]...), b[:r.size]...)
					copy(b, swapped)
					if i+2 == len(records) {
						wantLast(t, damaged, survives) // what attested it is no record any more
						return
					}
					expect(damaged, r)
				})
			}
			t.Run(name+"/cut", func(t *testing.T) {
				damaged := cloneFiles(files)
				damaged[r.file] = damaged[r.file][:r.offset+r.size/2]
				if r.file != records[len(records)-1].file {
					wantDamage(t, damaged, r.file, r.offset)
				} else {
					// The stated limit: with the whole tail goes what attested
					// it. Only the controller's witness shows that (I9).
					wantLast(t, damaged, survives)
				}
			})
		}
	}
}

// TestDamagedTailBytes flips every byte of an unattested last group and cuts
// it at every byte: the group goes, whole, and nothing before it.
func TestDamagedTailBytes(t *testing.T) {
	x := newFixture(t)
	x.append("kept")
	x.append("one", "two", "three")
	files := x.f.content("ledger")
	x.close()
	records := layout(t, files)
	begin := records[len(records)-3]
	final := records[len(records)-1]
	for at := begin.offset; at < final.offset+recordHeader+int64(len(final.payload)); at++ {
		damaged := cloneFiles(files)
		damaged[begin.file][at] ^= 0x01
		padding := false
		for _, r := range records {
			padding = padding || at >= r.offset+recordHeader+int64(len(r.payload)) && at < r.offset+r.size
		}
		if !padding { // that is neither covered nor read
			wantLast(t, damaged, begin.sequence-1)
		}
		damaged = cloneFiles(files)
		damaged[begin.file] = damaged[begin.file][:at]
		wantLast(t, damaged, begin.sequence-1)
	}
	// Only the padding of the last record is cut off: nothing is lost.
	for at := final.offset + recordHeader + int64(len(final.payload)); at < final.offset+final.size; at++ {
		damaged := cloneFiles(files)
		damaged[final.file] = damaged[final.file][:at]
		wantLast(t, damaged, final.sequence)
	}
}

// TestDamagedSegments damages whole files and headers.
func TestDamagedSegments(t *testing.T) {
	files := matrixFiles(t, true)
	first, second, third := segmentName(1), segmentName(2), segmentName(3)
	var endOfFirst int64
	for _, r := range layout(t, files) {
		if r.file == first {
			endOfFirst = r.offset + r.size
		}
	}
	rows := []struct {
		name   string
		damage func(files map[string][]byte)
		file   string
		offset int64
	}{
		{"first segment missing", func(f map[string][]byte) { delete(f, first) }, first, 0},
		{"middle segment missing", func(f map[string][]byte) { delete(f, second) }, second, 0},
		{"last used segment missing, a spare behind it", func(f map[string][]byte) { delete(f, third) }, third, 0},
		{"first segment zeroed", func(f map[string][]byte) { clear(f[first]) }, first, 0},
		{"middle segment zeroed", func(f map[string][]byte) { clear(f[second]) }, first, endOfFirst},
		{"segments swapped", func(f map[string][]byte) { f[first], f[second] = f[second], f[first] }, first, 0},
		{"a copy in another's place", func(f map[string][]byte) { f[second] = f[first] }, second, 0},
	}
	for i := range headerBytes {
		rows = append(rows, struct {
			name   string
			damage func(files map[string][]byte)
			file   string
			offset int64
		}{fmt.Sprintf("header byte %d", i), func(f map[string][]byte) { f[second][i] ^= 0x40 }, second, 0})
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			damaged := cloneFiles(files)
			row.damage(damaged)
			wantDamage(t, damaged, row.file, row.offset)
		})
	}
	t.Run("another generation", func(t *testing.T) {
		f := newForgetFS()
		f.load("ledger", files)
		f.readOnly = true
		_, err := Open("ledger", Options{Generation: "ffffffffffffffffffffffffffffffff", FS: f})
		if g, ok := errors.AsType[*GenerationError](err); !ok || g.Got != testGeneration {
			t.Fatalf("%v", err)
		}
	})
}

// TestTornRoll cuts a segment whose first group did not become durable: it is
// a spare again, whatever of its header and group had arrived.
func TestTornRoll(t *testing.T) {
	x := newFixture(t)
	var after map[string][]byte
	for rolled := false; !rolled; {
		x.append(filler(20000, "fill"))
		after = x.f.content("ledger")
		second := after[segmentName(2)]
		rolled = len(second) > 0 && second[0] != 0
	}
	x.close()
	records := layout(t, after)
	group := records[len(records)-1]
	if group.file != segmentName(2) || group.offset != segmentHeader {
		t.Fatalf("the last group lies in %s at %d", group.file, group.offset)
	}
	for _, row := range []struct {
		name string
		from int64
		to   int64
	}{
		{"header lost", 0, segmentHeader},
		{"group lost", segmentHeader, segmentHeader + group.size},
		{"part of the group lost", segmentHeader + 1000, segmentHeader + 2000},
		{"everything lost", 0, segmentHeader + group.size},
	} {
		t.Run(row.name, func(t *testing.T) {
			damaged := cloneFiles(after)
			clear(damaged[group.file][row.from:row.to])
			wantLast(t, damaged, group.sequence-1)
		})
	}
}

// TestTornBase falls back to what was before a release whose group is not
// whole, and refuses when the older segments are gone with it.
func TestTornBase(t *testing.T) {
	x := newFixture(t)
	x.append("one")
	older := x.f.content("ledger")
	if r := x.release("base", 0, "released"); r.err != nil {
		t.Fatal(r.err)
	}
	x.close() // the answer came before the attest and the removal
	newer := x.f.content("ledger")
	base := layout(t, newer)
	if base[0].kind != KindBase || string(base[1].payload) != "released" || base[2].kind != KindAttest {
		t.Fatalf("layout: %v", base)
	}
	both := cloneFiles(newer)
	both[segmentName(1)] = older[segmentName(1)]
	t.Run("leftovers of the release go", func(t *testing.T) {
		l, err := openDamaged(t, both, false)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}()
		if rec := l.Recovered(); string(rec.Base) != "base" || len(payloadsOf(t, l)) != 1 {
			t.Fatalf("recovered %q", rec.Base)
		}
		if l.o.FS.(*forgetFS).content("ledger")[segmentName(1)] != nil {
			t.Fatal("the released segment is still there")
		}
	})
	for i, name := range []string{"base", "released"} {
		t.Run(name+" torn, unattested", func(t *testing.T) {
			torn := cloneFiles(both)
			b := torn[base[0].file]
			clear(b[base[2].offset : base[2].offset+base[2].size])
			b[base[i].offset+recordHeader] ^= 1
			l, err := openDamaged(t, torn, false)
			if err != nil {
				t.Fatal(err)
			}
			if rec := l.Recovered(); rec.Base != nil || rec.Last != base[0].sequence-1 {
				t.Fatalf("recovered base %q up to %d", rec.Base, rec.Last)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		})
		t.Run(name+" damaged, attested", func(t *testing.T) {
			torn := cloneFiles(both)
			torn[base[0].file][base[i].offset+recordHeader] ^= 1
			wantDamage(t, torn, base[0].file, base[i].offset)
		})
		t.Run(name+" damaged, older segments gone", func(t *testing.T) {
			torn := cloneFiles(newer)
			torn[base[0].file][base[i].offset+recordHeader] ^= 1
			wantDamage(t, torn, segmentName(1), 0)
		})
	}
}
