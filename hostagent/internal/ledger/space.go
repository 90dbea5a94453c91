package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quittance/quittance/hostagent/internal/failpoint"
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
	s := Space{Full: l.full}
	if l.plan.credit > 0 {
		return s // what is queued already needs more than there is
	}
	s.Room = max(l.plan.left-Size(MaxPayload), 0)
	for i, size := range l.plan.sizes {
		if i == 0 {
			s.Release = size - segmentHeader
			continue
		}
		s.AfterRelease += usable(size)
	}
	s.Room += s.AfterRelease
	return s
}

// wanted is the number of spares to keep: the reserve, and one that a release
// can begin.
func (l *Ledger) wanted() int {
	each := usable(l.o.Segment)
	return int((l.o.Reserve+each-1)/each + 1)
}

// spaceRetry is how often the disk is looked at while it is full, and always
// where there is a ballast.
const spaceRetry = time.Second

// prepareAll makes what is missing, as far as the disk has space: nothing may
// be promised before there is room to keep it (I36).
func (l *Ledger) prepareAll() error {
	for {
		if more, err := l.prepareOne(); !more {
			return err
		}
	}
}

// prepareSpares keeps enough spares and the ballast. It is the only goroutine
// that makes files.
func (l *Ledger) prepareSpares() {
	defer close(l.prepare)
	again := time.NewTimer(spaceRetry)
	defer again.Stop()
	for {
		more, err := l.prepareOne()
		if err != nil {
			l.fail("prepare disk space", err)
			signal(l.spareIn)
		}
		if more && err == nil {
			continue
		}
		var tick <-chan time.Time
		if err == nil && (l.isFull() || l.o.Ballast > 0) {
			again.Reset(spaceRetry)
			tick = again.C
		}
		select {
		case <-l.writer:
			return
		case <-l.spareOut:
		case <-tick:
		}
	}
}

// prepareOne makes one file that is missing, or gives up the ballast. It
// reports whether there may be more to do at once.
func (l *Ledger) prepareOne() (more bool, err error) {
	l.mu.Lock()
	missing := l.wanted() - len(l.spares)
	failed, ordinal, returned := l.err != nil, l.next, l.returned > 0
	l.mu.Unlock()
	if failed {
		return false, nil
	}
	if !returned {
		if full, err := l.watch(missing); full || err != nil {
			return false, err
		}
	}
	switch {
	case missing > 0:
		seg, err := l.newSpare(ordinal)
		if err == nil {
			l.addSpare(seg)
			return true, nil
		}
		if !noSpace(err) {
			return false, err
		}
	case l.o.Ballast > 0 && !l.ballast:
		err := l.newFile(l.ballastPath(), l.o.Ballast)
		if err == nil {
			l.ballast = true
			return true, nil
		}
		if !noSpace(err) {
			return false, err
		}
	default:
		l.setFull(false)
		return false, nil
	}
	l.mu.Lock()
	l.returned = 0 // others have it
	l.mu.Unlock()
	l.setFull(true)
	return false, l.giveUpBallast()
}

func (l *Ledger) isFull() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

// setFull notes whether the disk is full, and tells an operator once.
func (l *Ledger) setFull(full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case full && !l.full:
		l.o.Logger.Warn("no disk space to preallocate the ledger: new work should be refused, what is preallocated goes on",
			"spares", len(l.spares), "wanted", l.wanted())
	case !full && l.full:
		l.o.Logger.Info("the ledger has disk space again")
	}
	l.full = full
	signal(l.spareIn)
}

func (l *Ledger) addSpare(seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = seg.ordinal + 1
	l.returned = max(l.returned-1, 0)
	l.spares = append(l.spares, seg)
	l.plan.add(seg.size)
	signal(l.spareIn)
}

// newSpare makes one zero-filled segment durable.
func (l *Ledger) newSpare(ordinal uint64) (*segment, error) {
	if err := l.newFile(l.path(ordinal), l.o.Segment); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SpareMade)
	return l.open(ordinal)
}

// newFile makes one zero-filled file durable, its name too. Where the disk is
// full nothing of the file is left.
func (l *Ledger) newFile(name string, size int64) error {
	err := writeSegment(l.o.FS, name, nil, size)
	if err == nil {
		err = l.o.FS.SyncDir(l.dir)
	}
	if err == nil || !noSpace(err) {
		return err
	}
	there, existsErr := exists(l.o.FS, name)
	if existsErr != nil {
		return fmt.Errorf("look for a half-made file: %w", existsErr)
	}
	if there {
		if removal := errors.Join(l.o.FS.Remove(name), l.o.FS.SyncDir(l.dir)); removal != nil {
			return fmt.Errorf("remove a half-made file: %w", removal)
		}
	}
	return err
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
