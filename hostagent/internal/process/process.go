// Package process is one process of the machine, held so that it cannot be
// mistaken for another: a pidfd whose process was proved by its start time. It
// signals, waits and reports what a process is waiting for, and it owns the two
// facts that make start times and durations comparable: the boot identity and
// the boot-time clock. It must not know containers, allocations or cgroups.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// ErrGone says that the process no longer exists: its number is free, belongs
// to another process now, or belongs to it as a zombie whose end was observed.
var ErrGone = errors.New("process is gone")

// Identity is a process number with the start time that makes it unique within
// one boot of the machine.
//
// Two processes can share it only where a number comes round within one clock
// tick (10 ms), which takes intent; whoever takes a process up again later asks
// its cgroup too.
type Identity struct {
	PID        int64
	StartTicks int64 // field 22 of /proc/PID/stat, in clock ticks since boot
}

// Identify reads the identity of the process that has the number now. It
// returns [ErrGone] where there is none.
func Identify(pid int64) (Identity, error) {
	stat, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, StartTicks: stat.startTicks}, nil
}

// Handle holds a process by a pidfd: a number that is used again does not
// change whom it means. It is safe for concurrent use; Close ends its waits.
type Handle struct {
	id     Identity
	file   *os.File
	closed atomic.Bool
}

// Open takes hold of exactly the process id. The order matters: the descriptor
// first, then the start time is read and compared, so that a number used again
// in between is noticed (I17). It returns [ErrGone] where the process ended,
// or where the number belongs to another one.
func Open(id Identity) (*Handle, error) {
	if id.PID <= 1 || id.StartTicks <= 0 {
		return nil, fmt.Errorf("process %d with start time %d is no identity that a worker can have", id.PID, id.StartTicks)
	}
	fd, err := unix.PidfdOpen(int(id.PID), unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", id.PID, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	now, err := Identify(id.PID)
	if err == nil && now != id {
		err = ErrGone
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Handle{id: id, file: file}, nil
}

// Identity is what the handle was opened for.
func (h *Handle) Identity() Identity { return h.id }

// Exited reports whether the process has ended; a zombie has.
func (h *Handle) Exited() (bool, error) {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("pidfd of process %d: %w", h.id.PID, err)
	}
	var exited bool
	var pollErr error
	err = raw.Control(func(fd uintptr) { exited, pollErr = readable(fd) })
	if err = errors.Join(err, pollErr); err != nil {
		return false, fmt.Errorf("pidfd of process %d: %w", h.id.PID, err)
	}
	return exited, nil
}

// Wait returns nil once the process has ended (a zombie has), the context's
// error, or [os.ErrClosed] after Close. Only one Wait at a time.
func (h *Handle) Wait(ctx context.Context) error {
	err := h.wait(ctx)
	if err != nil && h.closed.Load() {
		return os.ErrClosed
	}
	return err
}

func (h *Handle) wait(ctx context.Context) error {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("pidfd of process %d: %w", h.id.PID, err)
	}
	if err := h.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("pidfd of process %d cannot be waited for: %w", h.id.PID, err)
	}
	// A deadline in the past is the way to end a wait in the runtime's poller.
	interrupted := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { interrupted <- h.file.SetReadDeadline(time.Unix(1, 0)) })
	var pollErr error
	err = raw.Read(func(fd uintptr) bool {
		var exited bool
		exited, pollErr = readable(fd)
		return exited || pollErr != nil
	})
	if !stop() {
		if interruptErr := <-interrupted; interruptErr != nil && err == nil {
			err = interruptErr
		}
		if err != nil {
			return ctx.Err()
		}
	}
	if err = errors.Join(err, pollErr); err != nil {
		return fmt.Errorf("pidfd of process %d: %w", h.id.PID, err)
	}
	return nil
}

// Signal sends sig to exactly this process, never to a later owner of its
// number (FR-20). It returns [ErrGone] where the process was already reaped.
func (h *Handle) Signal(sig unix.Signal) error {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("pidfd of process %d: %w", h.id.PID, err)
	}
	var sendErr error
	err = raw.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if errors.Is(sendErr, unix.ESRCH) {
		return ErrGone
	}
	if err = errors.Join(err, sendErr); err != nil {
		return fmt.Errorf("signal %s to process %d: %w", unix.SignalName(sig), h.id.PID, err)
	}
	return nil
}

// Close lets go of the process without touching it.
func (h *Handle) Close() error {
	h.closed.Store(true)
	return h.file.Close()
}

// readable polls one pidfd without waiting: it is readable once its process ended.
func readable(fd uintptr) (bool, error) {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(set, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return n > 0, err
	}
}

// Observation is what an operator needs to know of a process that does not end.
type Observation struct {
	State       string // the letter of /proc/PID/stat: R, S, D, T, Z …
	WaitChannel string // the kernel function that it sleeps in, "" where the kernel does not say
}

// Observe reads the state of exactly the process id, for a stuck receipt. It
// returns [ErrGone] where that process is no more.
func Observe(id Identity) (Observation, error) {
	channel, err := os.ReadFile(procPath(id.PID, "wchan"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) {
		return Observation{}, fmt.Errorf("wait channel of process %d: %w", id.PID, err)
	}
	stat, err := readStat(id.PID)
	if err != nil {
		return Observation{}, err
	}
	if stat.startTicks != id.StartTicks {
		return Observation{}, ErrGone
	}
	wait := string(bytes.TrimSpace(channel))
	if wait == "0" {
		wait = ""
	}
	return Observation{State: stat.state, WaitChannel: wait}, nil
}

// BootID is the identity of this boot of the machine: process numbers, start
// times and boot-time clock readings of another one mean nothing here.
func BootID() (protocol.ID, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("boot identity: %w", err)
	}
	id := protocol.ID(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if !id.Valid() {
		return "", fmt.Errorf("boot identity: %s does not hold a UUID", path)
	}
	return id, nil
}

// Now reads the boot-time clock: time since boot, suspend included, which
// nobody can set (I25).
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("process: the boot-time clock cannot be read: %v", err)) // only on kernels older than 2.6.39
	}
	return time.Duration(ts.Nano())
}

// ParseSignal reads a signal's name as in "SIGTERM".
func ParseSignal(name string) (unix.Signal, error) {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return 0, fmt.Errorf("signal: %q is not the name of a signal; write it as in SIGTERM", name)
	}
	return sig, nil
}

type stat struct {
	state      string
	startTicks int64
}

func procPath(pid int64, name string) string {
	return "/proc/" + strconv.FormatInt(pid, 10) + "/" + name
}

func readStat(pid int64) (stat, error) {
	text, err := os.ReadFile(procPath(pid, "stat"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, ErrGone
	}
	if err != nil {
		return stat{}, fmt.Errorf("state of process %d: %w", pid, err)
	}
	s, err := parseStat(text)
	if err != nil {
		return stat{}, fmt.Errorf("state of process %d: %w", pid, err)
	}
	return s, nil
}

// parseStat reads fields 3 and 22. The command in field 2 is chosen by the
// process and may hold spaces and brackets, so fields are counted from the
// last closing bracket.
func parseStat(text []byte) (stat, error) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return stat{}, errors.New("no command in /proc stat line")
	}
	fields := strings.Fields(string(text[end+1:]))
	const state, start = 0, 22 - 3 // counted from field 3
	if len(fields) <= start {
		return stat{}, fmt.Errorf("only %d fields after the command in /proc stat line", len(fields))
	}
	ticks, err := strconv.ParseInt(fields[start], 10, 64)
	if err != nil {
		return stat{}, errors.New("field 22 of /proc stat line is no number")
	}
	return stat{state: fields[state], startTicks: ticks}, nil
}
