// Package journal makes one durable history out of the ledger and the receipt
// log: what core decides is appended to both, in one order, and is served from
// the receipt log only once the ledger says that it is on disk.
//
// It owns that order and the composition of a release's base. It must not know
// what an entry says; the fold is core's.
package journal

import (
	"errors"
	"fmt"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/hostagent/internal/receiptlog"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Journal is an open ledger with its receipt log. Append and Release belong to
// the one goroutine that decides order (core's).
type Journal struct {
	ledger *ledger.Ledger
	log    *receiptlog.Log
}

// Create makes a new ledger in dir that holds only its genesis receipt, and
// returns once that is durable.
func Create(dir string, o ledger.Options, genesis core.Entry) error {
	return ledger.Create(dir, o, records([]core.Entry{genesis}))
}

// ErrContent says that the ledger is sound and this program cannot go on from
// what it says: a later program wrote it, or it belongs to another key. Starting
// again changes nothing.
var ErrContent = errors.New("its content is not for this program")

// Open opens the ledger in dir and folds it. It never creates one. Its errors
// are those of package ledger, or [ErrContent].
func Open(dir string, o ledger.Options, signer *tlog.Signer) (*Journal, *core.State, error) {
	l, err := ledger.Open(dir, o)
	if err != nil {
		return nil, nil, err
	}
	j, s, err := fold(l, signer)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("ledger %s: %w", dir, err), l.Close())
	}
	return j, s, nil
}

func fold(l *ledger.Ledger, signer *tlog.Signer) (*Journal, *core.State, error) {
	if signer.Generation() != l.Generation() {
		return nil, nil, fmt.Errorf("%w: the host key is of another generation: put back the key that `hostagent init` made with this ledger", ErrContent)
	}
	recovered := l.Recovered()
	s, log := core.NewState(), receiptlog.New(l, signer)
	if recovered.Base != nil {
		state, tree, err := core.OpenBase(recovered.Base)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrContent, err)
		}
		if log, err = receiptlog.Restore(l, signer, tree); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrContent, err)
		}
		s = state
	}
	for e, err := range recovered.Records {
		if err != nil {
			return nil, nil, err
		}
		receipt := e.Kind == ledger.KindReceipt
		if err := core.Apply(s, core.Entry{Receipt: receipt, Payload: e.Payload}); err != nil {
			return nil, nil, fmt.Errorf("%w: sequence %d: %w", ErrContent, e.Sequence, err)
		}
		if receipt {
			log.Append(e.Payload)
			log.Durable([]ledger.Entry{e})
		}
	}
	if s.Generation != l.Generation() || s.HostKey != signer.PublicKey() {
		return nil, nil, fmt.Errorf("%w: genesis names another generation or host key: restore the state directory as a whole", ErrContent)
	}
	return &Journal{ledger: l, log: log}, s, nil
}

// Receipts is the receipt log; everything that it serves is durable.
func (j *Journal) Receipts() *receiptlog.Log { return j.log }

// Space implements core.Journal.
func (j *Journal) Space() core.Space {
	s := j.ledger.Space()
	return core.Space{Room: s.Room, AfterRelease: s.AfterRelease, Release: s.Release, Full: s.Full}
}

// Failed is closed when the ledger can make nothing durable any more, even if
// nothing was being written; [Journal.Err] says why. The process must end (I35).
func (j *Journal) Failed() <-chan struct{} { return j.ledger.Failed() }

// Err is the ledger's final error, nil while it works.
func (j *Journal) Err() error { return j.ledger.Err() }

// Close closes the ledger; what was appended before is durable then, or the
// error says why not.
func (j *Journal) Close() error { return j.ledger.Close() }

// Append implements core.Journal.
func (j *Journal) Append(entries []core.Entry, done func(error)) {
	j.queue(entries)
	err := j.ledger.Append(records(entries), func(written []ledger.Entry, err error) {
		if err == nil {
			j.log.Durable(written)
		}
		done(err)
	})
	if err != nil {
		done(err)
	}
}

// Release implements core.Journal.
func (j *Journal) Release(base *core.ReleaseBase, entries []core.Entry, done func(error)) {
	kept := make([]protocol.Index, len(base.Kept))
	for i, w := range base.Kept {
		kept[i] = w.Entry.Index
	}
	// The snapshot is of everything before the released receipt.
	snapshot, err := j.log.Snapshot(max(base.WitnessSize, j.log.Pruned()), kept)
	if err != nil {
		done(err)
		return
	}
	j.queue(entries)
	err = j.ledger.Release(ledger.Release{Base: base.Encode(snapshot.Bytes()), Records: records(entries)},
		func(written []ledger.Entry, err error) {
			if err == nil {
				j.log.Durable(written)
				err = j.log.Prune(snapshot)
			}
			done(err)
		})
	if err != nil {
		done(err)
	}
}

// queue gives the leaves their places in the tree.
func (j *Journal) queue(entries []core.Entry) {
	for _, e := range entries {
		if e.Receipt {
			j.log.Append(e.Payload)
		}
	}
}

func records(entries []core.Entry) []ledger.Record {
	out := make([]ledger.Record, len(entries))
	for i, e := range entries {
		out[i] = ledger.Record{Kind: ledger.KindIntent, Payload: e.Payload}
		if e.Receipt {
			out[i].Kind = ledger.KindReceipt
		}
	}
	return out
}
