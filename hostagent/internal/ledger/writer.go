package ledger

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/quittance/quittance/hostagent/internal/failpoint"
)

// batchBytes is where a batch is written although more waits, so that memory
// stays bounded and the first of a long queue need not wait for the last.
const batchBytes = 4 << 20

// idleBytes is the size of a write buffer that is kept for the next batch.
const idleBytes = 1 << 20

// operation is one queued Append or Release.
type operation struct {
	records []Record
	base    []byte
	release bool
	keep    uint64
	size    int64 // on disk
	done    func([]Entry, error)
}

// answer calls done, the first time.
func (op *operation) answer(entries []Entry, err error) {
	if done := op.done; done != nil {
		op.done = nil
		done(entries, err)
	}
}

// Append queues records as one group, which survives a crash whole or not at
// all, and returns at once: it never waits for the disk. done is called from
// the writer goroutine, in the order of the calls, with the entries once they
// are durable or with the final *FailedError; it must not block. When Append
// itself returns an error (ErrTooLarge, ErrQueueFull, ErrNoSpace, ErrClosed)
// nothing was queued and done is never called.
func (l *Ledger) Append(records []Record, done func([]Entry, error)) error {
	size, err := groupSize(records, l.o.groupLimit())
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return errors.New("ledger: an append has at least one record")
	}
	return l.enqueue(&operation{records: records, size: size, done: done})
}

// Release queues a release in the same order as appends. done is called as
// with Append, with the base's entry first, before older segments are removed.
// A base that does not fit into a segment is refused with ErrNoSpace while
// the disk is full.
func (l *Ledger) Release(r Release, done func([]Entry, error)) error {
	size, err := groupSize(r.Records, l.o.groupLimit()/2)
	if err != nil {
		return err
	}
	if len(r.Base) > MaxBase {
		return ErrTooLarge
	}
	// The attest that follows is part of the release: nothing is removed
	// before the base is attested.
	size += Size(baseEnvelope+len(r.Base)) + Size(0)
	return l.enqueue(&operation{records: r.Records, base: r.Base, release: true, keep: r.Keep, size: size, done: done})
}

func (l *Ledger) enqueue(op *operation) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.queued > 0 && l.queued+op.size > l.o.Queue:
		return ErrQueueFull
	case l.err == nil && !l.plan.place(op.size, op.release, l.full, l.o.Segment):
		return ErrNoSpace
	}
	l.queue = append(l.queue, op)
	l.queued += op.size
	signal(l.wake)
	return nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Failed is closed at the first write or sync error.
func (l *Ledger) Failed() <-chan struct{} { return l.failed }

// Err is the final *FailedError, or nil.
func (l *Ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		return nil
	}
	return l.err
}

// fail makes err the final state unless there is one, and gives the final one.
func (l *Ledger) fail(op string, err error) *FailedError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = &FailedError{Op: op, Err: err}
		l.o.Logger.Error("ledger failed: nothing is acknowledged any more", "at", op, "error", err)
		close(l.failed)
	}
	return l.err
}

// Close writes what is queued, attests it, and closes the files. It returns
// the final error if there was one.
func (l *Ledger) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.prepare
		return ErrClosed
	}
	l.closed = true
	l.mu.Unlock()
	signal(l.wake)
	close(l.stop)
	<-l.writer
	<-l.prepare
	return errors.Join(l.Err(), l.closeFiles())
}

// start prepares the space and begins writing behind what was found.
func (l *Ledger) start(found *scan) error {
	last := found.used[len(found.used)-1]
	w := &writer{
		l: l, segment: l.segments[last.ordinal], end: last.end,
		next: found.last + 1, hash: found.lastHash, durable: found.last,
	}
	l.plan.left = w.segment.size - w.end
	l.next = last.ordinal + 1 + uint64(len(l.spares))
	for _, s := range l.spares {
		l.plan.sizes = append(l.plan.sizes, s.size)
	}
	if err := l.prepareAll(); err != nil {
		return err
	}
	go l.prepareSpares()
	go w.run()
	return nil
}

// writer is the one goroutine that writes records; everything in it is its
// own.
type writer struct {
	l       *Ledger
	segment *segment
	end     int64  // in segment, behind what is written and in buf
	next    uint64 // sequence
	hash    digest // of record next−1
	durable uint64 // highest sequence synced

	buf        []byte // to be written at end−len(buf)
	unattested bool   // the last record written is not an attest
	waiting    []answer
}

// answer is owed to an operation once its records are durable.
type answer struct {
	op      *operation
	entries []Entry
}

func (w *writer) run() {
	defer close(w.l.writer)
	idle := time.NewTimer(w.l.o.AttestAfter)
	defer idle.Stop()
	for {
		ops, closing := w.take()
		switch {
		case len(ops) > 0:
			if !w.process(ops) {
				w.refuse()
				return
			}
			idle.Reset(w.l.o.AttestAfter)
			continue
		case closing:
			if w.l.Err() == nil {
				w.attest()
			}
			return
		}
		select {
		case <-w.l.wake:
		case <-idle.C:
			if w.l.Err() != nil || !w.attest() {
				w.refuse()
				return
			}
		}
	}
}

func (w *writer) take() (ops []*operation, closing bool) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	ops, w.l.queue = w.l.queue, nil
	return ops, w.l.closed
}

// process writes the operations and answers them. False means that the ledger
// has failed; they have been answered all the same.
func (w *writer) process(ops []*operation) bool {
	if final := w.l.Err(); final != nil { // the preparing goroutine has failed
		for _, op := range ops {
			op.answer(nil, final)
		}
		return false
	}
	for i, op := range ops {
		where, err := w.write(op)
		if err == nil && (len(w.buf) >= batchBytes || i == len(ops)-1) {
			where, err = "commit", w.commit()
		}
		if err != nil {
			final := w.l.fail(where, err)
			// Earlier operations of this batch may be answered already, and so
			// may a release that fails while removing what it released.
			for _, op := range ops {
				op.answer(nil, final)
			}
			return false
		}
	}
	return true
}

// write encodes an operation behind the others; only a release, or a full
// segment, makes it go to the disk at once.
func (w *writer) write(op *operation) (where string, err error) {
	if op.release {
		return w.release(op)
	}
	if op.size > w.segment.size-w.end {
		if err := w.roll(false, op.size); err != nil {
			return "begin a segment", err
		}
	}
	a := answer{op: op, entries: make([]Entry, 0, len(op.records))}
	for i, r := range op.records {
		a.entries = append(a.entries, w.encode(r.Kind, r.Payload, i+1 < len(op.records)))
	}
	w.waiting = append(w.waiting, a)
	return "", nil
}

func (w *writer) encode(kind Kind, payload []byte, more bool) Entry {
	e := Entry{Sequence: w.next, Kind: kind, Position: positionOf(w.segment.ordinal, w.end), Payload: payload}
	before := len(w.buf)
	w.buf, w.hash = appendRecord(w.buf, place{w.l.generation, w.segment.ordinal}, w.end, record{
		sequence: w.next, durable: w.durable, previous: w.hash, kind: kind, more: more, payload: payload,
	})
	w.end += int64(len(w.buf) - before)
	w.next++
	w.unattested = kind != KindAttest
	return e
}

// commit writes what is encoded, syncs it once, and answers.
func (w *writer) commit() error {
	if len(w.buf) > 0 {
		if err := failpoint.Write(); err != nil {
			return err
		}
		if _, err := w.segment.file.WriteAt(w.buf, w.end-int64(len(w.buf))); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CommitWritten)
		if err := failpoint.Sync(); err != nil {
			return err
		}
		if err := w.segment.file.Sync(); err != nil {
			return err
		}
		failpoint.Hit(failpoint.CommitSynced)
		w.durable = w.next - 1
		w.buf = w.buf[:0]
		if cap(w.buf) > idleBytes {
			w.buf = nil
		}
	}
	var answered int64
	for _, a := range w.waiting {
		a.op.answer(a.entries, nil)
		answered += a.op.size
	}
	clear(w.waiting)
	w.waiting = w.waiting[:0]
	w.l.mu.Lock()
	w.l.queued -= answered
	w.l.mu.Unlock()
	return nil
}

// roll goes on in the next spare. What is before it is made durable first: the
// new header attests it.
func (w *writer) roll(base bool, need int64) error {
	if err := w.commit(); err != nil {
		return err
	}
	next, err := w.l.takeSpare()
	if err != nil {
		return err
	}
	if want := segmentHeader + need; want > next.size {
		want = (want + 4095) &^ 4095
		if err := rewrite(next.file, nil, next.size, want); err != nil {
			return err
		}
		if err := next.file.Sync(); err != nil {
			return err
		}
		next.size = want
	}
	next.first = w.next
	w.l.files.Lock()
	w.l.segments[next.ordinal] = next
	w.l.files.Unlock()
	h := header{place: place{w.l.generation, next.ordinal}, size: next.size, first: w.next, base: base, before: w.hash}
	w.segment, w.buf, w.end = next, h.encode(), segmentHeader
	return nil
}

// release writes base and records at the front of a new segment, makes them
// durable and attested, and removes what is not needed any more.
func (w *writer) release(op *operation) (where string, err error) {
	if err := w.roll(true, op.size); err != nil {
		return "begin a release", err
	}
	keep := w.l.keepFrom(op.keep, w.segment.ordinal)
	payload := binary.LittleEndian.AppendUint64(make([]byte, 0, baseEnvelope+len(op.base)), keep)
	e := w.encode(KindBase, append(payload, op.base...), len(op.records) > 0)
	e.Payload = op.base
	a := answer{op: op, entries: []Entry{e}}
	for i, r := range op.records {
		a.entries = append(a.entries, w.encode(r.Kind, r.Payload, i+1 < len(op.records)))
	}
	w.waiting = append(w.waiting, a)
	if err := w.commit(); err != nil {
		return "commit a release", err
	}
	failpoint.Hit(failpoint.ReleaseBaseSynced)
	w.encode(KindAttest, nil, false)
	if err := w.commit(); err != nil {
		return "attest a release", err
	}
	if err := w.l.removeBelow(keep); err != nil {
		return "remove released segments", err
	}
	return "", nil
}

// keepFrom is the lowest ordinal that must exist for sequence keep to stay
// readable; the base's own when none before it must.
func (l *Ledger) keepFrom(keep, base uint64) uint64 {
	l.files.RLock()
	defer l.files.RUnlock()
	from, lowest := base, base
	var first uint64
	for ordinal, seg := range l.segments {
		lowest = min(lowest, ordinal)
		if keep > 0 && seg.first <= keep && seg.first > first && ordinal <= base {
			from, first = ordinal, seg.first
		}
	}
	if keep > 0 && first == 0 {
		return lowest // older than anything that is there
	}
	return from
}

// removeBelow removes whole segments, oldest first, and syncs the directory.
func (l *Ledger) removeBelow(keep uint64) error {
	gone := l.forgetBelow(keep)
	for _, seg := range gone {
		if err := errors.Join(seg.file.Close(), l.o.FS.Remove(l.path(seg.ordinal))); err != nil {
			return err
		}
		failpoint.Hit(failpoint.ReleaseRemovedOne)
	}
	if len(gone) == 0 {
		return nil
	}
	err := l.o.FS.SyncDir(l.dir)
	// Their space is the ledger's own, however full the disk is.
	l.mu.Lock()
	l.returned = min(l.returned+len(gone), max(l.wanted()-len(l.spares), 0))
	l.mu.Unlock()
	signal(l.spareOut)
	return err
}

// forgetBelow takes segments away from readers, and gives them, ascending.
// Those who read already are done when it returns.
func (l *Ledger) forgetBelow(keep uint64) []*segment {
	l.files.Lock()
	defer l.files.Unlock()
	var gone []*segment
	for _, ordinal := range slices.Sorted(maps.Keys(l.segments)) {
		if ordinal < keep {
			gone = append(gone, l.segments[ordinal])
			delete(l.segments, ordinal)
		}
	}
	return gone
}

// attest attests the last record when nothing else is about to. False means
// that the ledger has failed.
func (w *writer) attest() bool {
	if !w.unattested {
		return true
	}
	l := w.l
	l.mu.Lock()
	// Whatever is queued attests as well; and a segment is not begun for this.
	idle := len(l.queue) == 0 && l.plan.left >= Size(0)
	if idle {
		l.plan.left -= Size(0)
	}
	l.mu.Unlock()
	if !idle {
		return true
	}
	w.encode(KindAttest, nil, false)
	if err := w.commit(); err != nil {
		l.fail("attest", err)
		return false
	}
	return true
}

// refuse answers everything with the final error until Close.
func (w *writer) refuse() {
	for {
		ops, closing := w.take()
		for _, op := range ops {
			op.answer(nil, w.l.Err())
		}
		if len(ops) == 0 && closing {
			return
		}
		if len(ops) == 0 {
			<-w.l.wake
		}
	}
}
