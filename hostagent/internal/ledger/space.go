package ledger

import (
	"errors"
	"slices"
	"time"
)

// plan foresees where queued groups will lie, so that an append that has no
// place can be refused before it is queued.
type plan struct {
	left   int64   // bytes left in the segment of the last queued group
	sizes  []int64 // of the spares that no queued group has begun
	credit int     // segments begun by queued groups before they are prepared
}

// place finds the place of one group; false if it has none. full means that
// no further spare can be hoped for. usual is the size of a new spare.
func (p *plan) place(size int64, fresh, full bool, usual int64) bool {
	if !fresh && size <= p.left {
		p.left -= size
		return true
	}
	capacity := usual
	if len(p.sizes) > 0 {
		capacity = p.sizes[0]
	}
	if full && (len(p.sizes) == 0 || segmentHeader+size > capacity) {
		return false
	}
	if len(p.sizes) > 0 {
		p.sizes = slices.Delete(p.sizes, 0, 1)
	} else {
		p.credit++
	}
	p.left = max(capacity-segmentHeader-size, 0)
	return true
}

// add counts a spare that was prepared.
func (p *plan) add(size int64) {
	if p.credit > 0 {
		p.credit--
		return
	}
	p.sizes = append(p.sizes, size)
}

// usable is what a segment holds for certain, whatever the groups' sizes: the
// last group that does not fit leaves its place empty.
func usable(size int64) int64 {
	return max(size-segmentHeader-Size(MaxPayload), (size-segmentHeader)/2)
}

// Space says how much can be written without new disk space.
func (l *Ledger) Space() Space {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Space{Room: max(l.plan.left-Size(MaxPayload), 0), Full: l.full}
	for _, size := range l.plan.sizes {
		s.Room += usable(size)
	}
	return s
}

// wanted is the number of spares to keep.
func (l *Ledger) wanted() int {
	each := usable(l.o.Segment)
	return int(max((l.o.Reserve+each-1)/each, 1))
}

// spaceRetry is how often a full disk is tried again.
const spaceRetry = time.Second

// prepareSpares keeps enough spares in reserve. It is the only goroutine that
// makes files.
func (l *Ledger) prepareSpares() {
	defer close(l.prepare)
	retry := time.NewTimer(spaceRetry)
	defer retry.Stop()
	for {
		l.mu.Lock()
		short := len(l.spares) < l.wanted() && l.err == nil
		ordinal := l.next
		l.mu.Unlock()
		var again <-chan time.Time
		if short {
			seg, err := l.newSpare(ordinal)
			switch {
			case err == nil:
				l.addSpare(seg)
				continue
			case noSpace(err):
				l.outOfSpace()
				retry.Reset(spaceRetry)
				again = retry.C
			default:
				l.fail("prepare a segment", err)
				signal(l.spareIn)
			}
		}
		select {
		case <-l.writer:
			return
		case <-l.spareOut:
		case <-again:
		}
	}
}

func (l *Ledger) addSpare(seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full {
		l.o.Logger.Info("the ledger has disk space again")
	}
	l.full = false
	l.next = seg.ordinal + 1
	l.spares = append(l.spares, seg)
	l.plan.add(seg.size)
	signal(l.spareIn)
}

func (l *Ledger) outOfSpace() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.full {
		l.o.Logger.Warn("no disk space to preallocate the ledger: new work should be refused, what is preallocated goes on",
			"spares", len(l.spares), "wanted", l.wanted())
	}
	l.full = true
	signal(l.spareIn)
}

// newSpare makes one zero-filled file durable, its name too. When it fails
// nothing of the file is left.
func (l *Ledger) newSpare(ordinal uint64) (*segment, error) {
	name := l.path(ordinal)
	err := writeSegment(l.o.FS, name, nil, l.o.Segment)
	if err == nil {
		err = l.o.FS.SyncDir(l.dir)
	}
	if err == nil {
		return l.open(ordinal)
	}
	if !noSpace(err) {
		return nil, err
	}
	if there, existsErr := exists(l.o.FS, name); existsErr != nil || !there {
		return nil, errors.Join(err, existsErr)
	}
	if removal := errors.Join(l.o.FS.Remove(name), l.o.FS.SyncDir(l.dir)); removal != nil {
		// Not "no space" any more: half a segment stays behind.
		return nil, errors.New("remove a half-made segment: " + removal.Error())
	}
	return nil, err
}

// errClosing ends a wait for a spare that will not come before Close is done.
var errClosing = errors.New("closing while the disk has no space for what is queued")

// takeSpare gives the next spare, waiting for one to be prepared.
func (l *Ledger) takeSpare() (*segment, error) {
	stop := l.stop
	for {
		l.mu.Lock()
		if len(l.spares) > 0 {
			seg := l.spares[0]
			l.spares = slices.Delete(l.spares, 0, 1)
			l.mu.Unlock()
			signal(l.spareOut)
			return seg, nil
		}
		full, failed, closed := l.full, l.err, l.closed
		l.mu.Unlock()
		if failed != nil {
			return nil, failed.Err
		}
		if full && closed {
			return nil, errClosing
		}
		select {
		case <-l.spareIn:
		case <-stop:
			stop = nil // look once more, then only at spareIn
		}
	}
}
