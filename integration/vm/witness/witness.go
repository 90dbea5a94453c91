// Package witness keeps what left the virtual machine before its power was cut,
// and says whether the machine still stands by it afterwards.
//
// It owns the notes of the guest's load and settle commands and what must be
// true of them. It verifies by itself: the Merkle tree is computed here from the
// standard, not by the code under test. It must not know machines.
//
//	leaf BASE64            a receipt as it was read, in the order of the log
//	checkpoint BASE64      a signed checkpoint, after all leaves that it covers
//	created OPERATION JOB  the job service acknowledged the job
//	ended JOB STATE HASH   the job ended, with the SHA-256 of its result
package witness

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Witness is what left the machine. Nothing of it may ever be taken back.
type Witness struct {
	key     *tlog.PublicKey
	leaves  [][]byte          // the whole log, by index
	covered int               // leaves that a checked checkpoint covers
	jobs    []string          // acknowledged, in order
	ended   map[string]string // state and hash of the result by job
}

// New makes a witness of nothing yet.
func New() *Witness { return &Witness{ended: map[string]string{}} }

// SetKey names the host's key, learned before any power cut.
func (w *Witness) SetKey(text string) (err error) {
	w.key, err = tlog.ParsePublicKey(text)
	return err
}

// Receipts is how many leaves are held.
func (w *Witness) Receipts() int { return len(w.leaves) }

// Jobs are the acknowledged jobs in their order.
func (w *Witness) Jobs() []string { return slices.Clone(w.jobs) }

// Ends are the state and the hash of the result of every job that ended.
func (w *Witness) Ends() map[string]string { return maps.Clone(w.ended) }

// Last is the index of the last leaf, as the guest wants it.
func (w *Witness) Last() string {
	if len(w.leaves) == 0 {
		return ""
	}
	return fmt.Sprint(len(w.leaves) - 1)
}

// Take keeps one note of the guest's load, settle or follow.
func (w *Witness) Take(note string) error {
	fields := strings.Fields(note)
	if len(fields) < 2 {
		return fmt.Errorf("the guest noted %q", note)
	}
	switch verb, rest := fields[0], fields[1:]; {
	case verb == "leaf" && len(rest) == 1:
		leaf, err := base64.StdEncoding.DecodeString(rest[0])
		if err != nil {
			return err
		}
		return w.takeLeaf(leaf)
	case verb == "checkpoint" && len(rest) == 1:
		text, err := base64.StdEncoding.DecodeString(rest[0])
		if err != nil {
			return err
		}
		return w.check(string(text))
	case verb == "created" && len(rest) == 2:
		if !slices.Contains(w.jobs, rest[1]) {
			w.jobs = append(w.jobs, rest[1])
		}
		return nil
	case verb == "ended" && len(rest) == 3:
		return w.takeEnd(rest[0], rest[1]+" "+rest[2])
	}
	return fmt.Errorf("the guest noted %q", note)
}

// takeLeaf accepts exactly the next index (I8).
func (w *Witness) takeLeaf(leaf []byte) error {
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		return fmt.Errorf("after leaf %s: %w", w.Last(), err)
	}
	if int(r.Index) != len(w.leaves) {
		return fmt.Errorf("after leaf %s came index %d", w.Last(), r.Index)
	}
	w.leaves = append(w.leaves, leaf)
	return nil
}

func (w *Witness) takeEnd(job, end string) error {
	if before, known := w.ended[job]; known && before != end {
		return fmt.Errorf("job %s had ended as %q and is now %q", job, before, end)
	}
	w.ended[job] = end
	return nil
}

// check verifies a checkpoint against the leaves, all of which it must cover
// that were held before it was asked for.
func (w *Witness) check(text string) error {
	checkpoint, err := tlog.ParseCheckpoint(text, w.key)
	if err != nil {
		return err
	}
	size := int(checkpoint.Tree.Size)
	if size < w.covered || size > len(w.leaves) {
		return fmt.Errorf("the checkpoint covers %d receipts, %d are held and %d were covered before", size, len(w.leaves), w.covered)
	}
	hashes := make([][32]byte, size)
	for i, leaf := range w.leaves[:size] {
		hashes[i] = sha256.Sum256(append([]byte{0}, leaf...))
	}
	if got := root(hashes); got != checkpoint.Tree.Root {
		return fmt.Errorf("the signed root of %d receipts is %x, that of what was read is %x", size, checkpoint.Tree.Root, got)
	}
	w.covered = size
	return nil
}

// root is the Merkle tree hash of RFC 6962, section 2.1, written down from
// there and not from the code under test.
func root(hashes [][32]byte) [32]byte {
	switch len(hashes) {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return hashes[0]
	}
	half := 1
	for half*2 < len(hashes) {
		half *= 2
	}
	left, right := root(hashes[:half]), root(hashes[half:])
	return sha256.Sum256(slices.Concat([]byte{1}, left[:], right[:]))
}

// ranks give the order of an allocation's receipts; those of one rank may
// repeat or be left out.
var ranks = map[protocol.Kind]int{
	protocol.KindAccepted: 1, protocol.KindStarted: 2, protocol.KindOOMObserved: 3, protocol.KindExited: 4,
	protocol.KindStuck: 5, protocol.KindUnstuck: 5, protocol.KindRetired: 6, protocol.KindConsumed: 7,
}

// Story checks what the whole log tells. whole says that nothing is under way:
// every allocation must have been consumed.
func (w *Witness) Story(whole bool) error {
	var problems []error
	highest := protocol.Number(0)
	reached := map[protocol.Number]int{}
	purposes := map[string]protocol.Number{}
	for i, leaf := range w.leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			return err
		}
		if r.Number == nil {
			continue
		}
		n, rank := *r.Number, ranks[r.Kind]
		switch {
		case r.Kind == protocol.KindAccepted && n != highest+1: // I5
			problems = append(problems, fmt.Errorf("receipt %d accepts %d after %d", i, n, highest))
		case r.Kind != protocol.KindAccepted && reached[n] == 0:
			problems = append(problems, fmt.Errorf("receipt %d, %s, is of number %d that was never accepted", i, r.Kind, n))
		case rank < reached[n] || rank == reached[n] && (rank == 1 || rank == 2 || rank == 4 || rank >= 6):
			problems = append(problems, fmt.Errorf("receipt %d: number %d is %s out of order", i, n, r.Kind))
		}
		reached[n] = rank
		if r.Kind == protocol.KindAccepted {
			highest = n
			accepted, err := protocol.BodyOf[protocol.AcceptedBody](r)
			if err != nil {
				return err
			}
			if before, used := purposes[accepted.Purpose]; used { // I27: langid is not declared pure
				problems = append(problems, fmt.Errorf("attempt %s has numbers %d and %d", accepted.Purpose, before, n))
			}
			purposes[accepted.Purpose] = n
		}
	}
	for n := protocol.Number(1); whole && n <= highest; n++ {
		if reached[n] != ranks[protocol.KindConsumed] {
			problems = append(problems, fmt.Errorf("number %d was never consumed", n))
		}
	}
	return errors.Join(problems...)
}
