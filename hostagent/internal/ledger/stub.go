package ledger

import (
	"errors"

	"github.com/quittance/quittance/protocol"
)

var errUnbuilt = errors.New("ledger: this build has no storage yet")

// Ledger is an open log. Its methods may be called from any goroutine.
type Ledger struct{}

// Create makes a new ledger in dir, which must not exist, with first as its
// first group (the genesis receipt), and returns once everything is durable.
// It returns ErrExists where a ledger is or once was.
func Create(dir string, o Options, first []Record) error { return errUnbuilt }

// Open opens the ledger in dir; it never creates one.
func Open(dir string, o Options) (*Ledger, error) { return nil, errUnbuilt }

// Recovered is what Open found.
func (l *Ledger) Recovered() Recovered { return Recovered{} }

// Generation is the ledger's random identity.
func (l *Ledger) Generation() protocol.ID { return "" }

// Append queues records as one group, which survives a crash whole or not at
// all, and returns at once: it never waits for the disk. done is called from
// the writer goroutine, in the order of the calls, with the entries once they
// are durable or with the final *FailedError; it must not block. When Append
// itself returns an error nothing was queued and done is never called.
func (l *Ledger) Append(records []Record, done func([]Entry, error)) error { return errUnbuilt }

// Release queues a release in the same order as appends. done is called as
// with Append, with the base's entry first, before older segments are removed.
func (l *Ledger) Release(r Release, done func([]Entry, error)) error { return errUnbuilt }

// Read reads a durable record again and checks it.
func (l *Ledger) Read(p Position) (Entry, error) { return Entry{}, errUnbuilt }

// Space says how much can be written without new disk space.
func (l *Ledger) Space() Space { return Space{} }

// Failed is closed at the first write or sync error.
func (l *Ledger) Failed() <-chan struct{} { return nil }

// Err is the final *FailedError, or nil.
func (l *Ledger) Err() error { return nil }

// Close writes what is queued, attests it, and closes the files. It returns
// the final error if there was one.
func (l *Ledger) Close() error { return errUnbuilt }

// Report is what Check found.
type Report struct {
	Generation protocol.ID
	Segments   int    // files that hold records
	Spares     int    // empty files ahead
	First      uint64 // lowest sequence that is there
	Base       uint64 // sequence of the newest base, 0 if none
	Last       uint64
	Attested   uint64 // every record up to it is proved to have been durable
	Receipts   uint64 // receipts after the base
	TailBytes  int64  // length of a bad, unattested tail that Open would cut
}

// Check verifies the ledger in dir and changes nothing; *DamageError on damage.
func Check(dir string, o Options) (Report, error) { return Report{}, errUnbuilt }

// Backup copies the valid part of the ledger in dir into dst, which must not
// exist; the agent may be running.
func Backup(dir, dst string, o Options) (Report, error) { return Report{}, errUnbuilt }
