package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/quittance/quittance/protocol"
)

// Ledger is an open log. Its methods may be called from any goroutine.
type Ledger struct {
	dir        string
	o          Options
	generation [16]byte
	lock       io.Closer
	recovered  Recovered

	// mu guards what callers and the writer share.
	mu       sync.Mutex
	queue    []*operation
	queued   int64 // bytes in queue and in the batch being written
	plan     plan
	spares   []*segment // prepared, ascending, not yet taken
	next     uint64     // ordinal of the next spare to make
	full     bool       // no space for what should be prepared
	returned int        // segments whose space a release has given back, for spares
	closed   bool
	err      *FailedError
	failed   chan struct{}
	wake     chan struct{} // capacity 1: the queue grew, or closing
	spareIn  chan struct{} // capacity 1: a spare was added
	spareOut chan struct{} // capacity 1: a spare was taken, or space may be back

	// files guards the set of segments that hold records, for readers.
	files    sync.RWMutex
	segments map[uint64]*segment

	ballast bool // the ballast is there; the preparing goroutine's own after Open

	stop    chan struct{} // closed by Close
	writer  chan struct{} // closed when the writer goroutine has ended
	prepare chan struct{} // closed when the preparing goroutine has ended
}

// segment is an open segment file.
type segment struct {
	ordinal uint64
	first   uint64 // 0 while a spare
	size    int64
	file    File
}

// Open opens the ledger in dir; it never creates one. When it returns,
// everything that was found is durable, also where an earlier sync had failed
// (I35), and what is to be preallocated is there unless the disk is full, which
// Space tells (I36). Errors: ErrNotExist, ErrLost, ErrLocked, *DamageError, *FormatError,
// *GenerationError, or what the file system said.
func Open(dir string, o Options) (_ *Ledger, err error) {
	o, err = o.withDefaults()
	if err != nil {
		return nil, err
	}
	remembered, there, err := marked(o, dir)
	if err != nil {
		return nil, fmt.Errorf("read the ledger's marker: %w", err)
	}
	if is, err := exists(o.FS, dir); err != nil {
		return nil, err
	} else if !is {
		if there {
			return nil, fmt.Errorf("%s: %w", dir, ErrLost)
		}
		return nil, fmt.Errorf("%s: %w", dir, ErrNotExist)
	}
	lock, err := o.FS.Lock(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	l := &Ledger{
		dir: dir, o: o, lock: lock, segments: map[uint64]*segment{},
		failed: make(chan struct{}), wake: make(chan struct{}, 1),
		spareIn: make(chan struct{}, 1), spareOut: make(chan struct{}, 1),
		stop: make(chan struct{}), writer: make(chan struct{}), prepare: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.closeFiles())
		}
	}()
	found, err := (&scanner{o.FS, dir}).run()
	if errors.Is(err, ErrNotExist) {
		err = ErrLost
	}
	if err != nil {
		return nil, err
	}
	l.generation = found.generation
	for _, want := range []protocol.ID{o.Generation, remembered} {
		if got := generationID(found.generation); want != "" && want != got {
			return nil, &GenerationError{Want: want, Got: got}
		}
	}
	if err := l.mend(found); err != nil {
		return nil, fmt.Errorf("make the ledger durable again: %w", err)
	}
	if err := l.recover(found); err != nil {
		return nil, err
	}
	if err := l.start(found); err != nil {
		return nil, fmt.Errorf("prepare the ledger's disk space: %w", err)
	}
	return l, nil
}

// mend opens the files, cuts the tail, and writes every byte behind the last
// attested record again in place. Only then are leftovers of a release
// removed.
func (l *Ledger) mend(found *scan) error {
	if found.tail > 0 {
		l.o.Logger.Warn("cutting an unattested tail of the ledger: it was never acknowledged, or the disk lost it",
			"bytes", found.tail, "last", found.last)
	}
	for _, u := range found.used {
		seg, err := l.open(u.ordinal)
		if err != nil {
			return err
		}
		seg.first, seg.size = u.first, u.size
		l.segments[u.ordinal] = seg
		if u.ordinal < found.durable.ordinal {
			continue
		}
		var from int64
		if u.ordinal == found.durable.ordinal {
			from = found.durable.offset
		}
		b := make([]byte, u.end-from)
		// The padding of the last record may be cut off: it is zeros.
		if _, err := seg.file.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := rewrite(seg.file, b, from, u.size); err != nil {
			return err
		}
		if err := seg.file.Sync(); err != nil {
			return err
		}
	}
	for i, ordinal := range found.spares {
		seg, err := l.open(ordinal)
		if err != nil {
			return err
		}
		seg.size = max(seg.size, l.o.Segment)
		err = rewrite(seg.file, nil, 0, seg.size)
		if noSpace(err) && i == len(found.spares)-1 {
			// It was never whole. Without it there is less in reserve.
			if err := errors.Join(seg.file.Close(), l.o.FS.Remove(l.path(ordinal))); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return errors.Join(err, seg.file.Close())
		}
		l.spares = append(l.spares, seg)
		if err := seg.file.Sync(); err != nil {
			return err
		}
	}
	for _, ordinal := range found.obsolete {
		if err := l.o.FS.Remove(l.path(ordinal)); err != nil {
			return err
		}
	}
	if err := l.findBallast(); err != nil {
		return err
	}
	if err := l.o.FS.SyncDir(l.dir); err != nil {
		return err
	}
	return mark(l.o, l.dir, generationID(l.generation))
}

func (l *Ledger) path(ordinal uint64) string { return filepath.Join(l.dir, segmentName(ordinal)) }

func (l *Ledger) open(ordinal uint64) (*segment, error) {
	file, err := l.o.FS.OpenFile(l.path(ordinal), false)
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &segment{ordinal: ordinal, size: size, file: file}, nil
}

// recover fills in what callers fold.
func (l *Ledger) recover(found *scan) error {
	l.recovered = Recovered{BaseSequence: found.baseSeq, Last: found.last, CutBytes: found.tail}
	if found.baseSeq > 0 {
		e, err := l.Read(positionOf(found.base.ordinal, found.base.offset))
		if err != nil {
			return err
		}
		l.recovered.Base = e.Payload
	}
	from := 0
	for i, u := range found.used {
		if u.ordinal == found.base.ordinal {
			from = i
		}
	}
	segments := found.used[from:]
	l.recovered.Records = func(yield func(Entry, error) bool) {
		for _, u := range segments {
			if !l.each(u, func(e Entry, err error) bool {
				if e.Kind == KindBase || e.Kind == KindAttest {
					return true
				}
				return yield(e, err)
			}) {
				return
			}
		}
	}
	return nil
}

// each reads the records of one segment in order. It reports whether to go on.
func (l *Ledger) each(u used, yield func(Entry, error) bool) bool {
	b, err := (&scanner{l.o.FS, l.dir}).read(u.ordinal, u.end)
	if err == nil && int64(len(b)) < u.end {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		yield(Entry{}, err)
		return false
	}
	p := place{l.generation, u.ordinal}
	for offset := int64(segmentHeader); offset < u.end; {
		r, ok := parseRecord(b[offset:], p, offset)
		if !ok {
			yield(Entry{}, &DamageError{File: l.path(u.ordinal), Offset: offset, Reason: "the record changed after it was verified"})
			return false
		}
		e := entryOf(r, positionOf(u.ordinal, offset))
		e.Payload = bytes.Clone(e.Payload) // whoever keeps it must not keep the whole segment
		if !yield(e, nil) {
			return false
		}
		offset += Size(len(r.payload))
	}
	return true
}

func entryOf(r record, p Position) Entry {
	e := Entry{Sequence: r.sequence, Kind: r.kind, Position: p, Payload: r.payload}
	if r.kind == KindBase {
		e.Payload = r.payload[baseEnvelope:]
	}
	return e
}

// Recovered is what Open found.
func (l *Ledger) Recovered() Recovered { return l.recovered }

// Generation is the ledger's random identity.
func (l *Ledger) Generation() protocol.ID { return generationID(l.generation) }

// Read reads a durable record again and checks it. It returns ErrReleased
// where a release has removed it, and *DamageError where it does not read back
// as it was written.
func (l *Ledger) Read(p Position) (Entry, error) {
	ordinal, offset := p.split()
	l.files.RLock()
	defer l.files.RUnlock()
	seg := l.segments[ordinal]
	if seg == nil {
		return Entry{}, ErrReleased
	}
	const usual = 4 << 10
	b, err := readUpTo(seg.file, offset, usual)
	if err != nil {
		return Entry{}, err
	}
	if length := declared(b); length > int64(len(b)) && length <= seg.size-offset {
		if b, err = readUpTo(seg.file, offset, length); err != nil {
			return Entry{}, err
		}
	}
	r, ok := parseRecord(b, place{l.generation, ordinal}, offset)
	if !ok || offset < segmentHeader {
		return Entry{}, &DamageError{File: l.path(ordinal), Offset: offset, Reason: "no whole record is at this place"}
	}
	return entryOf(r, p), nil
}

func readUpTo(file File, offset, length int64) ([]byte, error) {
	b := make([]byte, length)
	n, err := file.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// closeFiles closes every file and frees the lock.
func (l *Ledger) closeFiles() error {
	l.files.Lock()
	defer l.files.Unlock()
	var errs []error
	for _, seg := range l.segments {
		errs = append(errs, seg.file.Close())
	}
	for _, seg := range l.spares {
		errs = append(errs, seg.file.Close())
	}
	l.segments, l.spares = nil, nil
	errs = append(errs, l.lock.Close())
	return errors.Join(errs...)
}
