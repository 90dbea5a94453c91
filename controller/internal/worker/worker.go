// Package worker speaks to one allocation's worker over channels that the
// host handed out: the ready rule and the adapters. It owns what a worker may
// say and how its failures are classed. It must not know attempts' records,
// the job service, or anything outside its allocation.
//
// # Adapters
//
// An [Adapter] belongs to one attempt and one allocation. Prepare admits the
// input and binds a [Handle] to one channel; Execute consumes the handle and
// returns the outcome. A handle dies with the next Prepare, even a failed one,
// and a foreign, used or stale handle is refused before anything is sent.
//
// # Failures
//
// Every failure is a *[Failure] with its class. Two kinds of error are none:
// the cause of a context that the caller ended (a stop), which is returned as
// it is, and [ErrHandle], which is a fault of our own program.
package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"

	"github.com/quittance/quittance/protocol"
)

// Class says what kind of failure ended a preparation or an execution.
type Class string

// The classes. worker_oom is decided by the executor on the host's facts; no
// adapter returns it.
const (
	InvalidInput  Class = "invalid_input"  // the job's fault, before execution
	WorkerFailed  Class = "worker_failed"  // the worker said so after execution began
	WorkerTimeout Class = "worker_timeout" // our own deadline, proved by our own timer
	WorkerLost    Class = "worker_lost"    // end of stream or reset
	WorkerOOM     Class = "worker_oom"     // lost or failed, and the host's receipt says killed
	Protocol      Class = "protocol"       // a malformed reply
	Unavailable   Class = "unavailable"    // never became ready
)

// Failure is a classed failure. Evidence is what the worker said, bounded and
// unparsed: protected, never shown as our own message (I4, I37).
type Failure struct {
	Class    Class
	Detail   string // our own words
	Evidence []byte // at most MaxEvidence bytes; nil where the worker said nothing
	Cause    error
}

// MaxEvidence bounds the worker's own bytes kept in a [Failure].
const MaxEvidence = 64 << 10

func (f *Failure) Error() string { return string(f.Class) + ": " + f.Detail }

func (f *Failure) Unwrap() error { return f.Cause }

func fail(class Class, cause error, format string, args ...any) *Failure {
	return &Failure{Class: class, Detail: fmt.Sprintf(format, args...), Cause: cause}
}

// Refusals of a dialer that mean something to the ready rule.
var (
	// ErrNotConnectable: the worker does not listen yet; ask again.
	ErrNotConnectable = errors.New("the worker does not listen yet")
	// ErrGone: the worker's process has ended or is being retired.
	ErrGone = errors.New("the worker has ended")
)

// Dialer opens one more channel to the allocation's worker. It returns an
// error that wraps [ErrNotConnectable] or [ErrGone] where the host said so.
type Dialer interface {
	Channel(ctx context.Context) (net.Conn, error)
}

// Report tells the user what the attempt waits for; it is sequential and
// awaited, and its error ends the phase.
type Report func(ctx context.Context, condition string) error

// The conditions that this package reports.
const (
	ConditionStarting = "starting_worker"
	ConditionLoading  = "loading_model"
)

// Input is the exact input of a job: its identity, and the bytes behind a
// descriptor that was verified before and is never opened again by path.
type Input struct {
	ContentType string
	Length      int64
	SHA256      protocol.Digest
	Bytes       io.ReaderAt
}

// MemoryInput is an input whose bytes the job itself carried.
func MemoryInput(contentType string, data []byte) Input {
	return Input{ContentType: contentType, Length: int64(len(data)), SHA256: protocol.DigestOf(data), Bytes: readerAt(data)}
}

type readerAt []byte

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(r)) {
		return 0, io.EOF
	}
	n := copy(p, r[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// errChanged says that the verified input is no longer the bytes that are read.
var errChanged = errors.New("the input's bytes differ from those that were verified")

// checkedReader sends an input and hashes it again on the way. It holds the
// last byte back until the digest is proved, so that a difference ends the
// request before it is whole.
type checkedReader struct {
	in     Input
	sum    hash.Hash
	sent   int64
	failed error // why the input could not be given out
}

func newCheckedReader(in Input) *checkedReader {
	return &checkedReader{in: in, sum: sha256.New()}
}

func (r *checkedReader) Read(p []byte) (int, error) {
	n, err := r.read(p)
	if err != nil && err != io.EOF {
		r.failed = err
	}
	return n, err
}

func (r *checkedReader) read(p []byte) (int, error) {
	left := r.in.Length - r.sent
	if left == 0 {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if left > 1 {
		left-- // the last byte goes alone, after the check below
	}
	n, err := r.in.Bytes.ReadAt(p[:min(int64(len(p)), left)], r.sent)
	if n == 0 {
		if err == nil || errors.Is(err, io.EOF) {
			err = errChanged // shorter than it was
		}
		return 0, err
	}
	r.sum.Write(p[:n])
	if r.sent+int64(n) == r.in.Length {
		if protocol.Digest(fmt.Sprintf("sha256:%x", r.sum.Sum(nil))) != r.in.SHA256 {
			return 0, errChanged
		}
	}
	r.sent += int64(n)
	return n, nil
}
