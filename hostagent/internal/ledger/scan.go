package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const segmentSuffix = ".segment"

func segmentName(ordinal uint64) string { return fmt.Sprintf("%010d%s", ordinal, segmentSuffix) }

// parseSegmentName reads what segmentName wrote; false for any other name.
func parseSegmentName(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return n, err == nil && n > 0 && segmentName(n) == name
}

// used is a segment that holds records.
type used struct {
	ordinal uint64
	first   uint64 // sequence of its first record
	size    int64  // by its header
	end     int64  // behind its last record
}

// spot is a place in the log.
type spot struct {
	ordinal uint64
	offset  int64
}

// scan is what reading a whole ledger found, and what Open has to mend.
type scan struct {
	dir        string
	generation [16]byte
	used       []used   // those that must exist, ascending; never empty
	obsolete   []uint64 // below them: a release was cut short while removing
	spares     []uint64 // behind the last used one
	base       spot     // of the newest base; zero if there is none
	baseSeq    uint64
	last       uint64 // highest sequence
	lastHash   digest
	attested   uint64 // highest sequence proved durable
	durable    spot   // behind the last attested record: from here on everything is rewritten
	tail       int64  // length of what is cut
	receipts   uint64 // after the base
}

// scanner reads a ledger's directory without changing it.
type scanner struct {
	fs  FS
	dir string
}

// bad is a stop that may be a torn tail or damage: evidence decides.
type bad struct {
	spot   spot
	reason string
}

// run reads everything that must exist. *DamageError where durable records
// are bad or missing.
func (s *scanner) run() (*scan, error) {
	ordinals, err := s.list()
	if err != nil {
		return nil, err
	}
	out := &scan{dir: s.dir}
	from, err := s.findBase(ordinals, out)
	if err != nil {
		return nil, err
	}
	cut, _ := slices.BinarySearch(ordinals, from)
	out.obsolete, ordinals = ordinals[:cut], ordinals[cut:]
	for i, ordinal := range ordinals {
		if ordinal != from+uint64(i) {
			return nil, &DamageError{File: s.path(from + uint64(i)), Reason: "the segment is missing, later ones exist"}
		}
	}
	if len(ordinals) == 0 {
		return nil, &DamageError{File: s.path(from), Reason: "the first segment that must exist is missing"}
	}
	if err := s.walk(ordinals, out); err != nil {
		return nil, err
	}
	return out, nil
}

func (s *scanner) path(ordinal uint64) string { return filepath.Join(s.dir, segmentName(ordinal)) }

// list gives the ordinals of the segment files, ascending.
func (s *scanner) list() ([]uint64, error) {
	names, err := s.fs.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	var ordinals []uint64
	for _, name := range names {
		if ordinal, ok := parseSegmentName(name); ok {
			ordinals = append(ordinals, ordinal)
		}
	}
	slices.Sort(ordinals)
	return ordinals, nil
}

// read gives a segment's bytes, at most limit of them; a file over maxFile is
// refused before memory is taken for it.
func (s *scanner) read(ordinal uint64, limit int64) (_ []byte, err error) {
	f, err := s.fs.OpenFile(s.path(ordinal), false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxFile {
		return nil, &DamageError{File: s.path(ordinal), Offset: maxFile, Reason: "the file is longer than any segment can be"}
	}
	b := make([]byte, min(size, limit))
	if n, err := f.ReadAt(b, 0); err != nil && !(errors.Is(err, io.EOF) && n == len(b)) {
		return nil, fmt.Errorf("read %s: %w", s.path(ordinal), err)
	}
	return b, nil
}

// findBase looks for the newest whole base group, newest segment first, and
// gives the lowest ordinal that must exist. Without a base the log begins with
// segment 1. A segment of a later format is among the newest, so nothing was
// taken for a torn tail before it is met.
func (s *scanner) findBase(ordinals []uint64, out *scan) (uint64, error) {
	for _, ordinal := range slices.Backward(ordinals) {
		b, err := s.read(ordinal, segmentHeader)
		if err != nil {
			return 0, err
		}
		if version, newer := newerFormat(b, ordinal); newer {
			return 0, &FormatError{File: s.path(ordinal), Format: version}
		}
		h, ok := parseHeader(b, ordinal)
		if !ok || !h.base {
			continue
		}
		if b, err = s.read(ordinal, h.size); err != nil {
			return 0, err
		}
		keep, ok := baseGroup(b, h)
		if !ok {
			continue // a release that did not become durable, or damage: walking tells
		}
		out.base, out.baseSeq = spot{ordinal, segmentHeader}, h.first
		return keep, nil
	}
	return 1, nil
}

// baseGroup checks that a segment begins with a whole group whose first record
// is a base, and reads the base's envelope.
func baseGroup(b []byte, h header) (keep uint64, ok bool) {
	offset := int64(segmentHeader)
	for sequence := h.first; offset < int64(len(b)); sequence++ {
		r, ok := parseRecord(b[offset:], h.place, offset)
		if !ok || r.sequence != sequence {
			return 0, false
		}
		if sequence == h.first {
			if r.kind != KindBase || len(r.payload) < baseEnvelope {
				return 0, false
			}
			keep = binary.LittleEndian.Uint64(r.payload)
			if keep == 0 || keep > h.place.ordinal {
				return 0, false
			}
		}
		if !r.more {
			return keep, true
		}
		offset += Size(len(r.payload))
	}
	return 0, false
}

// walker carries the chain from segment to segment.
type walker struct {
	scan    *scan
	next    uint64 // sequence expected
	hash    digest // of the record before it
	group   *bad   // where an unfinished group began
	groupAt walkerMark
	pending []recordEnd // ends of records not attested so far, ascending
}

type recordEnd struct {
	sequence uint64
	end      spot
}

// walkerMark is what must be restored when an unfinished group is cut.
type walkerMark struct {
	next     uint64
	hash     digest
	receipts uint64
}

// attest notes that everything up to sequence was durable.
func (w *walker) attest(sequence uint64) {
	if sequence <= w.scan.attested {
		return
	}
	w.scan.attested = sequence
	i := 0
	for i < len(w.pending) && w.pending[i].sequence <= sequence {
		w.scan.durable = w.pending[i].end
		i++
	}
	w.pending = w.pending[i:]
}

// walk verifies the segments in order, decides between tail and damage where
// it has to stop, and fills in the rest of the scan.
func (s *scanner) walk(ordinals []uint64, out *scan) error {
	w := &walker{scan: out}
	next := s.prefetch(ordinals)
	defer next.stop()
	for i, ordinal := range ordinals {
		b, err := next.read()
		if err != nil {
			return err
		}
		h, ok := parseHeader(b, ordinal)
		if !ok {
			if i == 0 {
				return &DamageError{File: s.path(ordinal), Reason: "the log's first header is bad"}
			}
			return s.end(w, ordinals[i-1:], &bad{spot{ordinal, 0}, "the segment's header is bad"})
		}
		if i == 0 {
			out.generation = h.place.generation
			w.next, w.hash = h.first, h.before
			// A base's header is no more proved durable than its first record.
			out.durable = spot{ordinal, 0}
			if ordinal == 1 && (h.first != 1 || h.before != digest{}) {
				return &DamageError{File: s.path(ordinal), Reason: "the first segment does not begin with sequence 1"}
			}
		}
		if err := s.follows(w, h, i); err != nil {
			return err
		}
		w.attest(h.first - 1)
		stop := w.segment(b, h)
		if i+1 < len(ordinals) && stop.reason == "" {
			// Zeros to the end: the log goes on in the next segment, if that
			// one is begun.
			begun, err := s.begun(ordinals[i+1])
			if err != nil {
				return err
			}
			if begun {
				continue
			}
		}
		return s.end(w, ordinals[i:], &stop)
	}
	return nil
}

// follows checks that a valid header continues the chain. One that does not is
// always damage: it proves that what it names was there.
func (s *scanner) follows(w *walker, h header, i int) error {
	ordinal := h.place.ordinal
	switch {
	case h.place.generation != w.scan.generation:
		return &DamageError{File: s.path(ordinal), Sequence: w.next, Reason: "the segment belongs to another generation"}
	case w.group != nil:
		return s.damage(w.group, w.groupAt.next)
	case h.first > w.next && i > 0:
		last := w.scan.used[len(w.scan.used)-1]
		return s.damage(&bad{spot{last.ordinal, last.end}, "the segment ends early: records that the next one attests are missing"}, w.next)
	case h.first != w.next || h.before != w.hash:
		return &DamageError{File: s.path(ordinal), Sequence: w.next, Reason: "the segment does not continue the one before it"}
	}
	return nil
}

func (s *scanner) damage(b *bad, sequence uint64) error {
	return &DamageError{File: s.path(b.spot.ordinal), Offset: b.spot.offset, Sequence: sequence, Reason: b.reason}
}

// begun reports whether a segment's header holds anything.
func (s *scanner) begun(ordinal uint64) (bool, error) {
	b, err := s.read(ordinal, segmentHeader)
	return err == nil && !zero(b), err
}

// segment verifies the records of one segment. The stop has no reason where
// only zeros follow.
func (w *walker) segment(b []byte, h header) bad {
	u := used{ordinal: h.place.ordinal, first: h.first, size: h.size, end: segmentHeader}
	w.scan.used = append(w.scan.used, u)
	self := &w.scan.used[len(w.scan.used)-1]
	for {
		here := spot{u.ordinal, self.end}
		if self.end >= int64(len(b)) {
			return bad{spot: here}
		}
		rest := b[self.end:]
		r, ok := parseRecord(rest, h.place, self.end)
		if !ok {
			if zero(rest) {
				return bad{spot: here}
			}
			return bad{here, "the record's checksum or form is bad"}
		}
		if r.sequence != w.next || r.previous != w.hash {
			return bad{here, "the record does not continue the chain"}
		}
		if w.group == nil && r.more {
			w.group = &bad{here, "the group is not whole"}
			w.groupAt = walkerMark{w.next, w.hash, w.scan.receipts}
		} else if !r.more {
			w.group = nil
		}
		if r.kind == KindReceipt && r.sequence > w.scan.baseSeq {
			w.scan.receipts++
		}
		w.hash = hashOf(rest[:recordHeader+len(r.payload)])
		self.end += Size(len(r.payload))
		w.pending = append(w.pending, recordEnd{r.sequence, spot{u.ordinal, self.end}})
		w.next++
		w.attest(r.durable)
	}
}

// end decides about the place where the log stops. ordinals begin with the
// last used segment.
func (s *scanner) end(w *walker, ordinals []uint64, stop *bad) error {
	out := w.scan
	evidence, tail, err := s.evidence(ordinals, stop.spot, out.generation)
	if err != nil {
		return err
	}
	if evidence >= w.next {
		if stop.reason == "" {
			stop.reason = "the record is missing"
		}
		return s.damage(stop, w.next)
	}
	if w.group != nil {
		if max(evidence, out.attested) >= w.groupAt.next {
			return s.damage(w.group, w.groupAt.next)
		}
		at := w.group.spot
		for out.used[len(out.used)-1].ordinal != at.ordinal {
			out.used = out.used[:len(out.used)-1]
		}
		tail += out.used[len(out.used)-1].end - at.offset
		out.used[len(out.used)-1].end = at.offset
		w.next, w.hash, out.receipts = w.groupAt.next, w.groupAt.hash, w.groupAt.receipts
	}
	// A segment without records is a spare again, its header cut.
	if n := len(out.used) - 1; n > 0 && out.used[n].end == segmentHeader {
		out.used = out.used[:n]
		tail += segmentHeader
	}
	if w.next == out.used[0].first {
		return s.damage(&bad{spot{out.used[0].ordinal, segmentHeader}, "the log holds no record"}, w.next)
	}
	out.last, out.lastHash, out.tail = w.next-1, w.hash, tail
	lastUsed := out.used[len(out.used)-1].ordinal
	for _, ordinal := range ordinals {
		if ordinal > lastUsed {
			out.spares = append(out.spares, ordinal)
		}
	}
	return nil
}

// evidence looks behind a stop for anything valid, and gives the highest
// sequence that it attests and how many bytes there are not zero.
func (s *scanner) evidence(ordinals []uint64, from spot, generation [16]byte) (attested uint64, tail int64, err error) {
	for _, ordinal := range ordinals {
		if ordinal < from.ordinal {
			continue
		}
		b, err := s.read(ordinal, maxFile)
		if err != nil {
			return 0, 0, err
		}
		offset := int64(segmentHeader)
		if ordinal == from.ordinal && from.offset > 0 {
			offset = from.offset
		} else if h, ok := parseHeader(b, ordinal); ok && h.place.generation == generation {
			attested = max(attested, h.first-1)
			tail += segmentHeader
		} else if !zero(b[:min(len(b), segmentHeader)]) {
			tail += segmentHeader
		}
		if offset >= int64(len(b)) {
			continue
		}
		tail += int64(len(bytes.TrimRight(b[offset:], "\x00")))
		attested = max(attested, search(b, place{generation, ordinal}, offset))
	}
	return attested, tail, nil
}

// search tries every place where a record can begin. The checksum covers the
// place, so whatever is found was written there.
func search(b []byte, p place, offset int64) (attested uint64) {
	const page = 4096
	for ; offset+recordHeader <= int64(len(b)); offset += 8 {
		if offset%page == 0 && offset+page <= int64(len(b)) && zero(b[offset:offset+page]) {
			offset += page - 8
			continue
		}
		// A record's sequence is never zero: most zeros end here.
		if binary.LittleEndian.Uint64(b[offset+8:]) == 0 {
			continue
		}
		if r, ok := parseRecord(b[offset:], p, offset); ok {
			attested = max(attested, r.durable)
		}
	}
	return attested
}

var zeros [64 << 10]byte

func zero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if !bytes.Equal(b[:n], zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}
