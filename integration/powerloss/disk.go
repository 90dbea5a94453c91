package powerloss

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// disk is the FUSE file behind the loop device. It remembers everything.
type disk struct {
	fs.Inode

	mu    sync.Mutex
	image []byte
	base  []byte // image at the start of the recording
	log   []event
	on    bool
}

// event is one thing that happened to the disk or was promised about it.
type event struct {
	kind   eventKind
	offset int64
	data   []byte // of a write
	covers int    // of a flush: the writes among the first covers events are durable
	ack    string // of a promise
}

type eventKind byte

const (
	writeEvent eventKind = iota
	flushEvent
	ackEvent
)

func (e event) String() string {
	switch e.kind {
	case writeEvent:
		return fmt.Sprintf("write %d+%d", e.offset, len(e.data))
	case flushEvent:
		return fmt.Sprintf("flush of %d", e.covers)
	}
	return "promise " + e.ack
}

var (
	_ fs.NodeOpener    = (*disk)(nil)
	_ fs.NodeReader    = (*disk)(nil)
	_ fs.NodeWriter    = (*disk)(nil)
	_ fs.NodeFsyncer   = (*disk)(nil)
	_ fs.NodeGetattrer = (*disk)(nil)
	_ fs.NodeAllocater = (*disk)(nil)
)

// start begins the recording.
func (d *disk) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base, d.log, d.on = slices.Clone(d.image), nil, true
}

// stop ends the recording and gives it.
func (d *disk) stop() *Recording {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on = false
	return &Recording{base: d.base, log: d.log}
}

func (d *disk) ack(promise string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on {
		d.log = append(d.log, event{kind: ackEvent, ack: promise})
	}
}

// Open implements fs.NodeOpener. Direct: no page cache of FUSE's own may hold
// writes back from the log.
func (d *disk) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Getattr implements fs.NodeGetattrer.
func (d *disk) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	out.Mode, out.Size = 0o600, uint64(len(d.image))
	return 0
}

// Read implements fs.NodeReader.
func (d *disk) Read(_ context.Context, _ fs.FileHandle, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if offset < 0 || offset >= int64(len(d.image)) {
		return fuse.ReadResultData(nil), 0
	}
	return fuse.ReadResultData(dest[:copy(dest, d.image[offset:])]), 0
}

// Write implements fs.NodeWriter.
func (d *disk) Write(_ context.Context, _ fs.FileHandle, data []byte, offset int64) (uint32, syscall.Errno) {
	return uint32(len(data)), d.write(offset, data)
}

func (d *disk) write(offset int64, data []byte) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if offset < 0 || offset+int64(len(data)) > int64(len(d.image)) {
		return syscall.ENOSPC
	}
	copy(d.image[offset:], data)
	if d.on {
		d.log = append(d.log, event{kind: writeEvent, offset: offset, data: slices.Clone(data)})
	}
	return 0
}

// Allocate implements fs.NodeAllocater: the loop driver discards and zeroes
// with it. Both are a write of zeros here.
func (d *disk) Allocate(_ context.Context, _ fs.FileHandle, offset, size uint64, _ uint32) syscall.Errno {
	if size > uint64(len(d.image)) {
		return syscall.ENOSPC
	}
	return d.write(int64(offset), make([]byte, size))
}

// Fsync implements fs.NodeFsyncer. Writes that were done before it was asked
// for are durable once it has answered; it is logged at that moment, so that
// nothing promised before can rely on it.
func (d *disk) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on {
		d.log = append(d.log, event{kind: flushEvent, covers: len(d.log)})
	}
	return 0
}
