package cgroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// settleFirst, settleMost and settleTries bound the wait between the kernel's
// announcement of an OOM and the counter that says that it killed: looks at
// doubling distances, for about ten seconds, because on a machine without memory
// whoever kills may itself wait to run.
const (
	settleFirst = 2 * time.Millisecond
	settleMost  = 250 * time.Millisecond
	settleTries = 46
)

// Watch follows a group's OOM counters while its container lives: the kernel's
// own notification (inotify on memory.events, the event descriptor of
// memory.oom_control), with polling as a safety net. It owns one goroutine;
// Close ends it.
type Watch struct {
	g        *Group
	interval time.Duration
	readings chan Reading
	wake     *os.File // inotify or event descriptor
	cancel   context.CancelFunc
	done     chan struct{}

	mu     sync.Mutex // guards events and the draining of wake on v1
	events int64
}

// Watch begins to follow the group. interval is the safety net's; a kernel
// notification is acted on at once.
func (g *Group) Watch(interval time.Duration) (*Watch, error) {
	if interval <= 0 {
		return nil, errors.New("cgroup: watch interval must be above 0")
	}
	first, err := g.Read()
	if err != nil {
		return nil, err
	}
	var wake *os.File
	if g.m.mode == protocol.CgroupV2 {
		wake, err = inotifyOn(filepath.Join(g.dir(g.m.memory), "memory.events"))
	} else {
		wake, err = eventsOf(filepath.Join(g.dir(g.m.memory), leafName))
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{
		g: g, interval: interval, readings: make(chan Reading, 1), wake: wake, cancel: cancel, done: make(chan struct{}),
	}
	go w.run(ctx, first)
	return w, nil
}

// Readings delivers a reading each time that oom_kill rose; one that was not
// received yet is replaced by a newer one. It is never closed.
func (w *Watch) Readings() <-chan Reading { return w.readings }

// LimitEvents counts the leaf's own OOM events so far, those included that the
// kernel has announced and nobody has read yet: the evidence that [Verdict]
// wants on v1. On v2 it is 0.
func (w *Watch) LimitEvents() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
	return w.events
}

// Close ends the watch and waits for its goroutine. LimitEvents stays valid.
func (w *Watch) Close() error {
	w.LimitEvents()
	w.cancel()
	w.mu.Lock()
	err := w.wake.Close()
	w.mu.Unlock()
	<-w.done
	return err
}

func (w *Watch) run(ctx context.Context, last Reading) {
	defer close(w.done)
	notified := make(chan struct{}, 1)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		w.awaitNotifications(notified)
	}()
	defer func() { <-waited }()
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	// After a notification the counter follows within microseconds, normally.
	settle := time.NewTimer(time.Hour)
	defer settle.Stop()
	tries, pause := 0, settleFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-notified:
			tries, pause = settleTries, settleFirst
		case <-settle.C:
		case <-tick.C:
		}
		now, err := w.g.Read()
		if err == nil && rose(last.Counters.OOMKill, now.Counters.OOMKill) {
			last, tries = now, 0
			w.publish(now)
		}
		if tries > 0 {
			tries--
			settle.Reset(pause)
			pause = min(2*pause, settleMost)
		}
	}
}

func rose(before, after *int64) bool {
	return after != nil && *after > 0 && (before == nil || *after > *before)
}

// publish replaces what nobody has received yet.
func (w *Watch) publish(r Reading) {
	for {
		select {
		case w.readings <- r:
			return
		default:
		}
		select {
		case <-w.readings:
		default:
		}
	}
}

// awaitNotifications blocks in the runtime's poller until the descriptor is
// closed.
func (w *Watch) awaitNotifications(notified chan<- struct{}) {
	raw, err := w.wake.SyscallConn()
	if err != nil {
		return // closed already
	}
	for {
		err := raw.Read(func(uintptr) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.drain()
		})
		if err != nil {
			return // closed: the only way in which waiting on these descriptors ends
		}
		select {
		case notified <- struct{}{}:
		default:
		}
	}
}

// drain reads what the kernel has announced, without waiting, and reports
// whether there was anything. The caller holds mu.
func (w *Watch) drain() bool {
	raw, err := w.wake.SyscallConn()
	if err != nil {
		return false
	}
	var buffer [4096]byte
	n := 0
	if err := raw.Control(func(fd uintptr) { n, err = unix.Read(int(fd), buffer[:]) }); err != nil || n <= 0 {
		return false
	}
	if w.g.m.mode == protocol.CgroupV1 && n == 8 {
		// The removal of the leaf fires the descriptor too; an event counts
		// only while the leaf is there to have had it.
		if _, err := os.Lstat(filepath.Join(w.g.dir(w.g.m.memory), leafName)); err == nil {
			w.events += int64(binary.NativeEndian.Uint64(buffer[:8]))
		}
	}
	return true
}

func inotifyOn(file string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cgroup: inotify: %w; raise fs.inotify.max_user_instances", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, file, unix.IN_MODIFY); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup: watch %s: %w", file, err), f.Close())
	}
	return f, nil
}

func eventsOf(leaf string) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cgroup: event descriptor: %w", err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	control, err := os.Open(filepath.Join(leaf, "memory.oom_control"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup: %w", err), f.Close())
	}
	err = writeControl(filepath.Join(leaf, "cgroup.event_control"), fmt.Sprintf("%d %d", fd, control.Fd()))
	if err = errors.Join(err, control.Close()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
