// Package audit verifies receipts as somebody who trusts only a host's public
// key: signatures and hashes over a whole log or over single receipts, and that
// what the receipts say is a history that the agent's rules allow.
//
// It owns verification and its report. It must not know sockets or files: it
// is given bytes.
//
// # What is checked of a log
//
//  1. every leaf is a receipt in canonical form, of one generation, and the
//     indices are contiguous (I8)
//  2. the checkpoint is signed by a given key (tlog.ParseCheckpoint)
//  3. the leaves, with the roots of the pruned prefix, hash to the checkpoint's
//     root: nothing was changed, left out or added
//  4. the history: numbers accepted once, in order, without gaps (I5); every
//     number's receipts in their order, each at most once; the exit never
//     amended (I23); consumption names its exact retirement (I20); release
//     only of what was consumed or is stuck (I21)
package audit

import (
	"errors"
	"fmt"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// MaxFindings bounds a report: whoever broke a log broke it thoroughly.
const MaxFindings = 50

// Log is a contiguous stretch of one receipt log up to its end.
type Log struct {
	// Leaves are the exact receipts, the first one at the log's first index.
	Leaves [][]byte
	// Checkpoint is the signed checkpoint over the log. It may cover fewer
	// leaves than are given: the rest is reported as not covered.
	Checkpoint string
	// FirstProof is the inclusion proof of the first leaf. It is needed when the
	// log is pruned below it, because it carries the pruned prefix's roots.
	FirstProof *tlog.Proof
}

// Report is what was found.
type Report struct {
	Generation protocol.ID     `json:"generation"`
	First      protocol.Index  `json:"first"`    // index of the first receipt that was verified
	Receipts   int64           `json:"receipts"` // verified under the checkpoint
	Uncovered  int64           `json:"uncovered"`
	Size       int64           `json:"size"` // of the log at the checkpoint
	Root       protocol.Digest `json:"root"`
	Accepted   protocol.Number `json:"accepted"` // frontiers at the end, 0 where no receipt says
	Released   protocol.Number `json:"released"`
	Live       int             `json:"live"` // accepted and not consumed
	Findings   []Finding       `json:"findings"`
}

// Finding is one thing that is wrong.
type Finding struct {
	Index  *protocol.Index `json:"index"` // null: concerns the whole log
	Detail string          `json:"detail"`
}

func (f Finding) String() string {
	if f.Index == nil {
		return f.Detail
	}
	return fmt.Sprintf("receipt %d: %s", *f.Index, f.Detail)
}

// ErrEmpty is returned for a log without receipts: there is nothing to trust.
var ErrEmpty = errors.New("there are no receipts to verify")

// Check verifies a log. Whatever is wrong with the log itself is a finding; an
// error means that it cannot even be read that far.
func Check(log Log, keys ...*tlog.PublicKey) (Report, error) {
	if len(log.Leaves) == 0 {
		return Report{}, ErrEmpty
	}
	checkpoint, err := tlog.ParseCheckpoint(log.Checkpoint, keys...)
	if err != nil {
		return Report{}, err
	}
	receipts, err := decode(log.Leaves)
	if err != nil {
		return Report{}, err
	}
	first := receipts[0].Index
	report := Report{
		Generation: checkpoint.Generation, First: first, Size: checkpoint.Tree.Size,
		Root: tlog.DigestOf(checkpoint.Tree.Root), Findings: []Finding{},
	}
	if receipts[0].Generation != checkpoint.Generation {
		return report, fmt.Errorf("receipts are of generation %s, the checkpoint of %s", receipts[0].Generation, checkpoint.Generation)
	}
	covered := checkpoint.Tree.Size - int64(first)
	if covered < 1 || covered > int64(len(receipts)) {
		return report, fmt.Errorf("the checkpoint covers %d receipts; those given are %d to %d",
			checkpoint.Tree.Size, first, receipts[len(receipts)-1].Index)
	}
	report.Receipts, report.Uncovered = covered, int64(len(receipts))-covered
	if err := checkRoot(log, first, covered, checkpoint.Tree, keys); err != nil {
		report.Findings = append(report.Findings, Finding{nil, err.Error()})
	}
	told := newStory(first)
	for i, r := range receipts[:covered] {
		told.add(r, tlog.LeafDigest(log.Leaves[i]))
	}
	told.checkKey(receipts[0], keys)
	report.Accepted, report.Released, report.Live = told.accepted, told.released, told.live()
	report.Findings = append(report.Findings, told.findings...)
	if len(report.Findings) > MaxFindings {
		report.Findings = append(report.Findings[:MaxFindings], Finding{nil, "more findings are left out"})
	}
	return report, nil
}

// decode reads the leaves and checks that they are one contiguous stretch.
func decode(leaves [][]byte) ([]protocol.Receipt, error) {
	receipts := make([]protocol.Receipt, len(leaves))
	for i, leaf := range leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			return nil, fmt.Errorf("receipt at position %d: %w", i, err)
		}
		if i > 0 {
			if before := receipts[i-1]; r.Index != before.Index+1 || r.Generation != before.Generation {
				return nil, fmt.Errorf("receipt %d of generation %s follows receipt %d of generation %s",
					r.Index, r.Generation, before.Index, before.Generation)
			}
		}
		receipts[i] = r
	}
	return receipts, nil
}

// checkRoot hashes the covered leaves over the pruned prefix and compares the
// root with the signed one.
func checkRoot(log Log, first protocol.Index, covered int64, tree tlog.Tree, keys []*tlog.PublicKey) error {
	var forest forest
	if first > 0 {
		if log.FirstProof == nil {
			return errors.New("the log begins after pruned receipts, and there is no proof of its first one")
		}
		if log.FirstProof.Index != first {
			return fmt.Errorf("the first receipt's proof speaks of receipt %d", log.FirstProof.Index)
		}
		under, err := log.FirstProof.Verify(log.Leaves[0], keys...)
		if err != nil {
			return fmt.Errorf("first receipt: %w", err)
		}
		forest, err = prefixOf(int64(first), under.Tree.Size, log.FirstProof.Hashes)
		if err != nil {
			return err
		}
	}
	for _, leaf := range log.Leaves[:covered] {
		forest.add(tlog.LeafHash(leaf))
	}
	if forest.root() != tree.Root {
		return errors.New("the receipts do not hash to the signed root: one was changed, left out or added")
	}
	return nil
}
