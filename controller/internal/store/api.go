package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quittance/quittance/controller/internal/attempt"
	"github.com/quittance/quittance/protocol"
)

// Config names a store and bounds it.
type Config struct {
	Dir         string        // directory of the store, mode 0700, made by [Create]
	Scope       attempt.Scope // must equal the scope that the store was made with
	MaxActive   int           // records in active/, 1 … MaxMaxActive
	History     int           // archived records kept by Trim, 1 … MaxHistory
	DiskReserve int64         // bytes that Admit leaves free on the file system, beyond one full record
	FS          FS            // nil: the operating system's
	// Written, where it is set, is told of every durable write of a record: from
	// is nil for the first one. It is called by the owner goroutine and must be
	// short.
	Written func(from, to attempt.Record, took time.Duration)
}

// Bounds of the configuration.
const (
	MaxMaxActive       = 1024
	MaxHistory         = 100_000
	MaxHostGenerations = 64
)

// Revision counts the writes of one record, from 1.
type Revision int64

// Entry is a record as it is durable.
type Entry struct {
	Key      string
	Revision Revision
	Record   attempt.Record
}

// HistoryEntry names an archived record.
type HistoryEntry struct {
	Sequence int64 // order of archival, from 1
	Key      string
}

// Witness is the most that was seen of a host generation's receipts.
type Witness struct {
	Checkpoint string         `json:"checkpoint"` // signed note, "" before the first
	Highest    *protocol.Seen `json:"highest"`    // null before the first receipt
}

// The refusals. Each changed nothing.
var (
	ErrClosed     = errors.New("the attempt store is closed")
	ErrNotFound   = errors.New("the attempt store has no active record with this key")
	ErrKeyUsed    = errors.New("the attempt key was used before")
	ErrFull       = errors.New("the attempt store has max_active records: settle or resolve one")
	ErrNoSpace    = errors.New("the attempt store's disk is full: free space on its file system")
	ErrNotSettled = errors.New("an earlier write of this record is not settled yet: wait for it, then read the record again")
	ErrHistory    = errors.New("the attempt store has more archived records than its history allows: trim first")
	ErrHeld       = errors.New("the record may not be archived yet")
	ErrScope      = errors.New("the attempt store belongs to another scope (API origin, provider, consumer or generation): restore the configuration or run controller store rotate")
	ErrLocked     = errors.New("the attempt store is open in another process")
	ErrExists     = errors.New("the directory holds an attempt store already")
	ErrNoStore    = errors.New("the directory holds no attempt store: create one")
	ErrWitness    = errors.New("the witness is lower than the one kept")
	ErrSequence   = errors.New("the service keeps a sequence number that is not from this attempt store: make sure that it is the right service, put the newest copy of the store back, or hand the provider's identity over")
	ErrHosts      = errors.New("the attempt store keeps witnesses of as many host generations as it may")
)

// ConflictError is a compare-and-set with an old revision; Current is the
// truth.
type ConflictError struct{ Current Entry }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("attempt %s has revision %d: decide again", e.Current.Key, e.Current.Revision)
}

// FailedError is a storage failure that poisoned the store (I35).
type FailedError struct{ Cause error }

func (e *FailedError) Error() string {
	return "attempt store failed and takes no more writes until a restart: " + e.Cause.Error()
}

func (e *FailedError) Unwrap() error { return e.Cause }

// DamageError is a file that is not what the store wrote.
type DamageError struct {
	File   string // relative to the store's directory
	Reason string
	Remedy string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("attempt store file %s %s: %s", e.File, e.Reason, e.Remedy)
}

// Write is a change that was accepted and is on its way to the disk. It is
// owned by the store until it settles, whoever waits.
type Write struct {
	done   chan struct{}
	entry  Entry // set before done is closed
	err    error // likewise
	giveUp func()
}

// Done is closed when the write has settled.
func (w *Write) Done() <-chan struct{} { return w.done }

// Wait returns the durable entry or the failure. Where ctx ends first it
// returns an error that is [ErrNotSettled] and ctx's cause: the write stays
// owned, the record takes no other write until it settles, and Close waits for
// it.
func (w *Write) Wait(ctx context.Context) (Entry, error) {
	select {
	case <-w.done:
		return w.entry, w.err
	default:
	}
	select {
	case <-w.done:
		return w.entry, w.err
	case <-ctx.Done():
		w.giveUp()
		return Entry{}, errors.Join(ErrNotSettled, context.Cause(ctx))
	}
}
