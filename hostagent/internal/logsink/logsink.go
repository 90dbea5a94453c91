// Package logsink keeps the output of a worker: the body of the small process
// that the shim starts for each container (containerd's binary logging), and
// the reading side in the agent.
//
// The process opens its one file in a root-owned directory, then drops to an
// unprivileged uid without capabilities before its first read of the worker's
// bytes. It keeps a bounded head and tail, counts the rest, survives an agent
// restart, drains to the end of file at SIGTERM, and never interprets what it
// keeps (I4). It must not know allocations, receipts or the engine.
//
// # Life of a capture
//
//	Prepare ─► (none) ─ sink starts ─► running ─ end of output ─► finished
//	                                      └────── sink dies ────► lost
//
// A running sink is known by the lock that it holds on its file, not by a
// process number; the kernel gives the lock up with the process.
//
// The shim keeps the write ends of the pipes open until the task is deleted,
// so a sink that still runs after the worker's exit is as it should be.
package logsink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// DefaultUID is what the process becomes: nobody.
const DefaultUID = 65534

// Config is what one log sink is told, in its single argument.
type Config struct {
	Dir          string      // root-owned directory of all captures, absolute
	Nonce        protocol.ID // of the container
	CaptureBytes int64       // head and tail together, 0 to [protocol.MaxLogCapture]
	Journal      bool        // also send lines to the systemd journal
	UID          int         // 0: [DefaultUID]
}

func (c Config) check() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return errors.New("log sink: dir must be an absolute path")
	case !c.Nonce.Valid():
		return errors.New("log sink: nonce must be 32 lower-case hexadecimal digits")
	case c.CaptureBytes < 0 || c.CaptureBytes > protocol.MaxLogCapture:
		return fmt.Errorf("log sink: capture must be 0 to %d bytes", protocol.MaxLogCapture)
	case c.UID < 0:
		return errors.New("log sink: uid must not be below 0")
	}
	return nil
}

func (c Config) path() string { return path(c.Dir, c.Nonce) }

func path(dir string, nonce protocol.ID) string { return filepath.Join(dir, string(nonce)) }

// Argument is the one command-line argument that carries the configuration.
func (c Config) Argument() string {
	return url.Values{
		"dir":     {c.Dir},
		"nonce":   {string(c.Nonce)},
		"capture": {strconv.FormatInt(c.CaptureBytes, 10)},
		"journal": {strconv.FormatBool(c.Journal)},
		"uid":     {strconv.Itoa(c.UID)},
	}.Encode()
}

// ParseArgument reads exactly what [Config.Argument] writes.
func ParseArgument(argument string) (Config, error) {
	values, err := url.ParseQuery(argument)
	if err != nil {
		return Config{}, errors.New("log sink: the argument is not in the form that hostagent writes")
	}
	c := Config{Dir: values.Get("dir"), Nonce: protocol.ID(values.Get("nonce"))}
	capture, captureErr := strconv.ParseInt(values.Get("capture"), 10, 64)
	journal, journalErr := strconv.ParseBool(values.Get("journal"))
	uid, uidErr := strconv.Atoi(values.Get("uid"))
	if err := errors.Join(captureErr, journalErr, uidErr); err != nil {
		return Config{}, errors.New("log sink: capture, journal or uid in the argument is malformed")
	}
	c.CaptureBytes, c.Journal, c.UID = capture, journal, uid
	if err := c.check(); err != nil {
		return Config{}, err
	}
	if c.Argument() != argument {
		return Config{}, errors.New("log sink: the argument has members that hostagent does not write")
	}
	return c, nil
}

// Prepare makes the capture's file with its whole space allocated, so that a
// full disk refuses an allocation instead of losing a worker's output. Doing it
// again keeps what is there. The directory must exist and be root's alone.
func Prepare(c Config) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	f, err := os.OpenFile(c.path(), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("log sink: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("log sink: %w", err)
	}
	if info.Size() >= headerBytes {
		_, err := openCapture(f)
		return err
	}
	return formatCapture(f, c.CaptureBytes)
}

// Status is how a sink fares.
type Status string

// The statuses.
const (
	StatusNone     Status = "none"     // never begun, or no such capture
	StatusRunning  Status = "running"  // holds its lock
	StatusFinished Status = "finished" // saw the end of the output
	StatusLost     Status = "lost"     // began, ended, and never saw the end; or a power cut took the capture
)

// Receipt is what receipts say of a container whose task was created: ok while
// the sink runs or after it finished, else lost.
func (s Status) Receipt() protocol.LogSinkState {
	if s == StatusRunning || s == StatusFinished {
		return protocol.LogSinkOK
	}
	return protocol.LogSinkLost
}

// Inspect tells how the sink of the container fares.
func Inspect(dir string, nonce protocol.ID) (_ Status, err error) {
	f, err := os.OpenFile(path(dir, nonce), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return StatusNone, nil
	}
	if err != nil {
		return "", fmt.Errorf("log sink: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// The lock first: a sink that finishes in between is then seen as finished.
	held, err := locked(f)
	if err != nil {
		return "", err
	}
	c, err := openCapture(f)
	if errors.Is(err, errDamaged) && !held {
		// Nobody writes to it any more, and what it said is gone. An error here
		// would hold up the retirement for ever.
		return StatusLost, nil
	}
	if err != nil {
		return "", err
	}
	state, err := c.state()
	switch {
	case err != nil:
		return "", err
	case state == stateFinished:
		return StatusFinished, nil
	case held:
		return StatusRunning, nil
	case state == stateRunning:
		return StatusLost, nil
	}
	return StatusNone, nil
}

// awaitInterval is the time between two looks of AwaitEnd.
const awaitInterval = 5 * time.Millisecond

// AwaitEnd waits until the sink no longer runs and returns its status then. It
// is called after the task was deleted; at the end of the context it returns
// [StatusRunning] with the context's error.
func AwaitEnd(ctx context.Context, dir string, nonce protocol.ID) (Status, error) {
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	for {
		status, err := Inspect(dir, nonce)
		if err != nil || status != StatusRunning {
			return status, err
		}
		select {
		case <-ctx.Done():
			return status, ctx.Err()
		case <-tick.C:
		}
	}
}

// Read copies out what was captured, uninterpreted; number is put into the
// answer. It may be called while the sink runs. An absent capture is an error
// that wraps [os.ErrNotExist].
func Read(dir string, nonce protocol.ID, number protocol.Number) (_ protocol.Log, err error) {
	f, err := os.OpenFile(path(dir, nonce), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return protocol.Log{}, fmt.Errorf("log sink: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c, err := openCapture(f)
	if err != nil {
		return protocol.Log{}, err
	}
	return c.read(number)
}

// Remove removes the capture's file. A sink that still runs keeps writing to
// the file that has no name any more; wait for it first.
func Remove(dir string, nonce protocol.ID) (protocol.Removed, error) {
	if !nonce.Valid() {
		return "", errors.New("log sink: nonce must be 32 lower-case hexadecimal digits")
	}
	err := os.Remove(path(dir, nonce))
	if errors.Is(err, os.ErrNotExist) {
		return protocol.RemovedAbsent, nil
	}
	if err != nil {
		return "", fmt.Errorf("log sink: %w", err)
	}
	return protocol.RemovedByUs, nil
}

// List names every capture in the directory, for the sweep at start. Files
// that are not ours by name are left out.
func List(dir string) ([]protocol.ID, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("log sink: %w", err)
	}
	var out []protocol.ID
	for _, entry := range entries {
		if id := protocol.ID(entry.Name()); id.Valid() && entry.Type().IsRegular() {
			out = append(out, id)
		}
	}
	return out, nil
}
