// Package logsink keeps the output of a worker: the body of the small process
// that the shim starts for each container (containerd's binary logging), and
// the reading side in the agent.
//
// The process opens its one file in a root-owned directory, then drops to an
// unprivileged uid without capabilities before its first read of the worker's
// bytes. It keeps a bounded head and tail, counts the rest, survives an agent
// restart, drains to the end of file at SIGTERM, and never interprets what it
// keeps (I4). It must not know allocations, receipts or the engine.
package logsink

import (
	"context"
	"errors"

	"github.com/quittance/quittance/protocol"
)

// DefaultUID is what the process becomes: nobody.
const DefaultUID = 65534

// Config is what one log sink is told, in its single argument.
type Config struct {
	Dir          string      // root-owned directory of all captures
	Nonce        protocol.ID // of the container
	CaptureBytes int64       // head and tail together, 0 to [protocol.MaxLogCapture]
	Journal      bool        // also send lines to the systemd journal
	UID          int         // 0: [DefaultUID]
}

// Argument is the one command-line argument that carries the configuration.
func (c Config) Argument() string { return "" }

// ParseArgument reads what [Config.Argument] wrote.
func ParseArgument(argument string) (Config, error) { return Config{}, errors.ErrUnsupported }

// Prepare makes the capture's file. It is made before the container, so that a
// missing or finished capture can be told from one that was never begun. Doing
// it again keeps what is there.
func Prepare(c Config) error { return errors.ErrUnsupported }

// Main is the whole process `hostagent log-sink ARGUMENT` below the shim: it
// reads descriptors 3 and 4, reports readiness by closing 5, and returns its
// exit code.
func Main(argument string) int { return 1 }

// Status is how a sink fares.
type Status string

// The statuses.
const (
	StatusNone     Status = "none"     // never begun
	StatusRunning  Status = "running"  // holds its lock
	StatusFinished Status = "finished" // saw the end of the output
	StatusLost     Status = "lost"     // began, ended, and never saw the end
)

// Inspect tells how the sink of the container fares.
func Inspect(dir string, nonce protocol.ID) (Status, error) { return "", errors.ErrUnsupported }

// AwaitEnd waits until the sink is no longer running and says what receipts
// say: ok where it finished or never began, lost otherwise. At the end of the
// context a sink that still runs is ok: its output is held open by somebody.
func AwaitEnd(ctx context.Context, dir string, nonce protocol.ID) (protocol.LogSinkState, error) {
	return "", errors.ErrUnsupported
}

// Read copies out what was captured, uninterpreted; number is put into the
// answer. It may be called while the sink runs.
func Read(dir string, nonce protocol.ID, number protocol.Number) (protocol.Log, error) {
	return protocol.Log{}, errors.ErrUnsupported
}

// Remove removes the capture's file.
func Remove(dir string, nonce protocol.ID) (protocol.Removed, error) {
	return "", errors.ErrUnsupported
}

// List names every capture in the directory, for the sweep at start.
func List(dir string) ([]protocol.ID, error) { return nil, errors.ErrUnsupported }
