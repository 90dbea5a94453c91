package logsink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// The file of a capture, all integers big-endian:
//
//	 0  magic "QLOGSNK1"
//	 8  bytes of head, fixed
//	16  bytes of tail, fixed
//	24  state
//	32  begun: bytes of output that writing has begun for
//	40  done: bytes of output that are in place
//	48  0, or 1 + the position at which storing failed
//	56  reserved, 0
//	64  head, then tail as a ring
//
// A reader takes done before it copies the data and begun after it: what lies
// between begun − tail and done was not overwritten meanwhile.
const (
	headerBytes  = 64
	offsetHead   = 8
	offsetTail   = 16
	offsetState  = 24
	offsetBegun  = 32
	offsetDone   = 40
	offsetFailed = 48
)

const magic = "QLOGSNK1"

const (
	statePrepared uint64 = iota
	stateRunning
	stateFinished
)

// capture is an open file of the form above. The writing half belongs to the
// sink's one writer.
type capture struct {
	file       *os.File
	head, tail int64
	total      int64 // writer's own count
	failed     bool  // storing failed: only counting goes on
}

func formatCapture(f *os.File, bytes int64) error {
	var header [headerBytes]byte
	copy(header[:], magic)
	binary.BigEndian.PutUint64(header[offsetHead:], uint64(bytes/2))
	binary.BigEndian.PutUint64(header[offsetTail:], uint64(bytes-bytes/2))
	// The space first: a file as long as its header is a whole one.
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, headerBytes+bytes)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("log sink: allocate %d bytes: %w", headerBytes+bytes, err)
	}
	if _, err := f.WriteAt(header[:], 0); err != nil {
		return fmt.Errorf("log sink: %w", err)
	}
	return nil
}

// errDamaged means that a file is not as formatCapture leaves it. Captures are
// not synced, so a power cut leaves them cut short or full of zeros.
var errDamaged = errors.New("log sink: the file is no capture of ours, or not a whole one")

// openCapture reads and checks the fixed part of the header.
func openCapture(f *os.File) (*capture, error) {
	var header [headerBytes]byte
	if _, err := f.ReadAt(header[:], 0); errors.Is(err, io.EOF) {
		return nil, errDamaged
	} else if err != nil {
		return nil, fmt.Errorf("log sink: header: %w", err)
	}
	head := int64(binary.BigEndian.Uint64(header[offsetHead:]))
	tail := int64(binary.BigEndian.Uint64(header[offsetTail:]))
	if string(header[:len(magic)]) != magic || head < 0 || tail < 0 ||
		head > protocol.MaxLogCapture || tail > protocol.MaxLogCapture-head { // each alone first: their sum may overflow
		return nil, errDamaged
	}
	return &capture{file: f, head: head, tail: tail}, nil
}

func (c *capture) get(offset int64) (uint64, error) {
	var b [8]byte
	if _, err := c.file.ReadAt(b[:], offset); err != nil {
		return 0, fmt.Errorf("log sink: header: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

func (c *capture) put(offset int64, value uint64) error {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], value)
	if _, err := c.file.WriteAt(b[:], offset); err != nil {
		return fmt.Errorf("log sink: header: %w", err)
	}
	return nil
}

func (c *capture) state() (uint64, error) { return c.get(offsetState) }

// begin marks the capture as running. A capture that already ran belongs to an
// earlier sink.
func (c *capture) begin() error {
	state, err := c.state()
	if err != nil {
		return err
	}
	if state != statePrepared {
		return errors.New("log sink: this capture was used before")
	}
	return c.put(offsetState, stateRunning)
}

// add takes one piece of output. It never fails the worker: where storing
// fails, the rest is counted only, and the place of the failure is kept.
func (c *capture) add(p []byte) error {
	if err := c.put(offsetBegun, uint64(c.total+int64(len(p)))); err != nil {
		return err
	}
	if !c.failed {
		if err := c.store(p); err != nil {
			c.failed = true
			if err := c.put(offsetFailed, uint64(c.total)+1); err != nil {
				return err
			}
		}
	}
	c.total += int64(len(p))
	return c.put(offsetDone, uint64(c.total))
}

// store puts the bytes where they belong: head first, then round the ring.
func (c *capture) store(p []byte) error {
	at := c.total
	if at < c.head {
		n := min(c.head-at, int64(len(p)))
		if _, err := c.file.WriteAt(p[:n], headerBytes+at); err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	if c.tail == 0 {
		return nil
	}
	if skip := int64(len(p)) - c.tail; skip > 0 {
		p, at = p[skip:], at+skip
	}
	for len(p) > 0 {
		place := (at - c.head) % c.tail
		n := min(c.tail-place, int64(len(p)))
		if _, err := c.file.WriteAt(p[:n], headerBytes+c.head+place); err != nil {
			return err
		}
		p, at = p[n:], at+n
	}
	return nil
}

func (c *capture) read(number protocol.Number) (protocol.Log, error) {
	doneRaw, err := c.get(offsetDone)
	if err != nil {
		return protocol.Log{}, err
	}
	data := make([]byte, c.head+c.tail)
	n, err := c.file.ReadAt(data, headerBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return protocol.Log{}, fmt.Errorf("log sink: %w", err)
	}
	begunRaw, err := c.get(offsetBegun)
	if err != nil {
		return protocol.Log{}, err
	}
	failedRaw, err := c.get(offsetFailed)
	if err != nil {
		return protocol.Log{}, err
	}
	done, begun := int64(doneRaw), int64(begunRaw)
	if done < 0 || begun < done || failedRaw > begunRaw+1 {
		return protocol.Log{}, errors.New("log sink: the header's counts contradict each other")
	}
	out := protocol.Log{Number: number, Head: []byte{}, Tail: []byte{}, TotalBytes: done}
	if failedRaw > 0 {
		stop := int64(failedRaw - 1)
		done, begun = min(done, stop), min(begun, stop)
	}
	// The file is as long as what was written to it; the rest was never stored.
	out.Head = append(out.Head, data[:min(done, c.head, int64(n))]...)
	for at := max(c.head, begun-c.tail); at < done; {
		place := (at - c.head) % c.tail
		end := place + min(c.tail-place, done-at)
		if end > int64(n)-c.head {
			return protocol.Log{}, errors.New("log sink: the file is shorter than its header says")
		}
		out.Tail = append(out.Tail, data[c.head+place:c.head+end]...)
		at += end - place
	}
	out.DroppedBytes = out.TotalBytes - int64(len(out.Head)) - int64(len(out.Tail))
	return out, nil
}

// lock takes the lock that says that the sink runs.
func lock(f *os.File) error {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("log sink: another sink holds this capture: %w", err)
	}
	return nil
}

// locked asks for that lock without taking it.
func locked(f *os.File) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("log sink: lock: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}
