package ledger

import (
	"errors"
	"fmt"

	"github.com/quittance/quittance/protocol"
)

// Refusals. None of them changes anything, and the ledger goes on.
var (
	// ErrExists is returned by Create where a ledger is or, as its marker
	// tells, once was.
	ErrExists = errors.New("a ledger exists, or existed, here: open it, restore its backup, or abandon it with `hostagent ledger abandon`")
	// ErrNotExist is returned by Open, Check and Backup where no ledger is and
	// no marker remembers one.
	ErrNotExist = errors.New("no ledger here: create one with `hostagent init`")
	// ErrLost is returned by Open where the marker remembers a ledger that is
	// not there.
	ErrLost = errors.New("the ledger is gone although its marker remembers it: restore its backup, or abandon it with `hostagent ledger abandon`")
	// ErrLocked is returned by Open while another process has the ledger open.
	ErrLocked = errors.New("the ledger is open in another process: stop that agent first")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the ledger is closed")
	// ErrQueueFull is returned by Append and Release when Options.Queue bytes
	// wait for the disk. Nothing was queued; it may be tried again.
	ErrQueueFull = errors.New("the ledger's queue is full")
	// ErrNoSpace is returned by Append and Release when the records do not fit
	// into what is preallocated and the disk has no space for more. Nothing
	// was queued; space is looked for again every second.
	ErrNoSpace = errors.New("no disk space left for the ledger: free space on the state directory's file system")
	// ErrTooLarge is returned by Append and Release for a payload or group
	// over its ceiling, which Open would not read back (I33).
	ErrTooLarge = errors.New("record or group is over the ledger's size ceiling")
	// ErrReleased is returned by Read for a position whose segment a release
	// has removed.
	ErrReleased = errors.New("this part of the ledger has been released")
)

// DamageError says that bytes are bad or missing although a later valid record
// or header proves that they were durable. Opening touched nothing.
type DamageError struct {
	File     string // path of the segment
	Offset   int64  // of the bad bytes
	Sequence uint64 // the record expected there; 0 if unknown
	Reason   string // what is wrong
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("ledger damaged: %s at byte %d (sequence %d): %s; keep the files, then restore a backup or run `hostagent ledger abandon`",
		e.File, e.Offset, e.Sequence, e.Reason)
}

// GenerationError says that the directory holds another generation than the
// one that was asked for or that the marker remembers.
type GenerationError struct {
	Want, Got protocol.ID
}

func (e *GenerationError) Error() string {
	return fmt.Sprintf("the ledger is of generation %s where %s is expected: restore the right one, or abandon it with `hostagent ledger abandon`", e.Got, e.Want)
}

// FormatError says that a later program wrote a segment in a format which this
// one does not read. Opening touched nothing.
type FormatError struct {
	File   string // path of the segment
	Format uint32 // that it has
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has ledger format %d and this program reads formats up to %d: run the version that wrote it, or a later one", e.File, e.Format, Format)
}

// FailedError is the final state after a write or sync error (I35): nothing
// is acknowledged any more. Only a fresh process may read the state again.
type FailedError struct {
	Op  string // what was being done
	Err error  // the first, primary error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("ledger failed at %s: %v; nothing is acknowledged any more, restart the agent", e.Op, e.Err)
}

// Unwrap gives the primary error.
func (e *FailedError) Unwrap() error { return e.Err }
