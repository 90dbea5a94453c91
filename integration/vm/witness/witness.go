// Package witness keeps what left the virtual machine before its power was cut,
// and says whether the machine still stands by it afterwards.
//
// It owns the notes of the guest's load and settle commands and what must be
// true of them. It verifies by itself: the Merkle tree and its proofs are
// computed here from the standards, not by the code under test. It must not know
// machines.
//
//	leaf BASE64              a receipt as it was read, in the order of the log
//	gap FIRST                the agent released what lies between the last one and FIRST
//	proved JOB BASE64 BASE64 a receipt with its proof: from the job service, or JOB is -
//	checkpoint BASE64        a signed checkpoint, after all leaves that it covers
//	frontier NUMBER          the highest number accepted, with nothing under way
//	created OPERATION JOB    the job service acknowledged the job
//	ended JOB STATE HASH     the job ended, with the SHA-256 of its result
//
// # Gaps
//
// The controller releases history as soon as an attempt is archived, and the
// agent serves it no longer: whoever follows the log can be outrun. What was not
// read is filled from the receipts that the job service holds of every job, each
// with a proof of the host's that it stands in the log at its index. What nobody
// ever acknowledged to anybody (the agent's start, a release) may stay unread;
// its hash does not: every signed root must be computable from what was read and
// what proofs show, so the log never forked; every receipt that was read must
// have gone into that or be proved by itself, so none was lost; and a number
// must have its whole life, so none can hide in a gap.
package witness

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// NoJob stands where a proof came from the agent itself.
const NoJob = "-"

// Witness is what left the machine. Nothing of it may ever be taken back.
type Witness struct {
	key      *tlog.PublicKey
	leaves   [][]byte                  // the whole log, by index; nil: not read
	ahead    map[int][]byte            // proved before they were due
	shown    map[node]hash             // whole subtrees, by signed proofs
	proved   map[int]bool              // receipts with a proof of their own
	largest  int                       // the size of the largest tree that was signed
	signed   []tlog.Tree               // checkpoints that could not be computed yet
	latest   tlog.Tree                 // of the last checkpoint
	frontier protocol.Number           // 0: not noted
	jobs     []string                  // acknowledged, in order
	ended    map[string]string         // state and hash of the result by job
	bundles  map[string]map[int][]byte // receipts that the job service has, by job and index
}

// New makes a witness of nothing yet.
func New() *Witness {
	return &Witness{
		ahead: map[int][]byte{}, shown: map[node]hash{}, proved: map[int]bool{},
		ended: map[string]string{}, bundles: map[string]map[int][]byte{},
	}
}

// SetKey names the host's key, learned before any power cut.
func (w *Witness) SetKey(text string) (err error) {
	w.key, err = tlog.ParsePublicKey(text)
	return err
}

// Receipts is how far the log is known, unread ones included.
func (w *Witness) Receipts() int { return len(w.leaves) }

// Unread is how many receipts were released before they were read, and which
// nothing has filled.
func (w *Witness) Unread() int {
	n := 0
	for _, leaf := range w.leaves {
		if leaf == nil {
			n++
		}
	}
	return n
}

// Jobs are the acknowledged jobs in their order.
func (w *Witness) Jobs() []string { return slices.Clone(w.jobs) }

// Ends are the state and the hash of the result of every job that ended.
func (w *Witness) Ends() map[string]string { return maps.Clone(w.ended) }

// HasReceipts reports whether the job service's receipts of a job are held.
func (w *Witness) HasReceipts(job string) bool { return len(w.bundles[job]) > 0 }

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
	case verb == "gap" && len(rest) == 1:
		return w.takeGap(rest[0])
	case verb == "proved" && len(rest) == 3:
		leaf, leafErr := base64.StdEncoding.DecodeString(rest[1])
		proof, proofErr := base64.StdEncoding.DecodeString(rest[2])
		if err := errors.Join(leafErr, proofErr); err != nil {
			return err
		}
		return w.takeProof(rest[0], leaf, string(proof))
	case verb == "checkpoint" && len(rest) == 1:
		text, err := base64.StdEncoding.DecodeString(rest[0])
		if err != nil {
			return err
		}
		return w.check(string(text))
	case verb == "frontier" && len(rest) == 1:
		n, err := strconv.ParseInt(rest[0], 10, 64)
		w.frontier = protocol.Number(n)
		return err
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
	if before, proved := w.ahead[len(w.leaves)]; proved && !bytes.Equal(before, leaf) {
		return fmt.Errorf("receipt %d was read, and another one was proved", r.Index)
	}
	delete(w.ahead, len(w.leaves))
	w.leaves = append(w.leaves, leaf)
	return nil
}

// takeGap leaves room for what the agent said is released.
func (w *Witness) takeGap(text string) error {
	first, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	if first <= len(w.leaves) {
		return fmt.Errorf("after leaf %s the agent says that it begins with %d", w.Last(), first)
	}
	for i := len(w.leaves); i < first; i++ {
		w.leaves = append(w.leaves, w.ahead[i])
		delete(w.ahead, i)
	}
	return nil
}

// takeProof accepts a receipt out of order, with a proof that it stands in a log
// that the host signed (I10).
func (w *Witness) takeProof(job string, leaf []byte, text string) error {
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		return fmt.Errorf("a proved receipt: %w", err)
	}
	i := int(r.Index)
	proof, err := tlog.ParseProof(text)
	if err != nil {
		return fmt.Errorf("receipt %d: %w", i, err)
	}
	checkpoint, err := tlog.ParseCheckpoint(proof.Checkpoint, w.key)
	if err != nil {
		return fmt.Errorf("receipt %d: %w", i, err)
	}
	size := int(checkpoint.Tree.Size)
	path := make([]hash, len(proof.Hashes))
	for n, h := range proof.Hashes {
		path[n] = h
	}
	root, shown, err := climb(i, size, leafHash(leaf), path)
	if err == nil && (proof.Index != r.Index || root != checkpoint.Tree.Root) {
		err = errors.New("it does not stand there in the log that the host signed")
	}
	if err != nil {
		return fmt.Errorf("receipt %d with its proof: %w", i, err)
	}
	if err := w.place(i, leaf); err != nil {
		return err
	}
	for n, h := range shown {
		if before, known := w.shown[n]; known && before != h {
			return fmt.Errorf("receipt %d: its proof shows another history than one before it", i)
		}
		w.shown[n] = h
	}
	w.proved[i], w.largest = true, max(w.largest, size)
	if job != NoJob {
		if w.bundles[job] == nil {
			w.bundles[job] = map[int][]byte{}
		}
		w.bundles[job][i] = leaf
	}
	return nil
}

// place puts a proved leaf where it belongs.
func (w *Witness) place(i int, leaf []byte) error {
	held := w.ahead[i]
	if i < len(w.leaves) {
		held = w.leaves[i]
	}
	switch {
	case held != nil && !bytes.Equal(held, leaf):
		return fmt.Errorf("receipt %d was noted, and another one is proved", i)
	case i < len(w.leaves):
		w.leaves[i] = leaf
	default:
		w.ahead[i] = leaf
	}
	return nil
}

func (w *Witness) takeEnd(job, end string) error {
	if before, known := w.ended[job]; known && before != end {
		return fmt.Errorf("job %s had ended as %q and is now %q", job, before, end)
	}
	w.ended[job] = end
	return nil
}

// check takes a checkpoint, which must cover all that was covered before and
// nothing that was not noted.
func (w *Witness) check(text string) error {
	checkpoint, err := tlog.ParseCheckpoint(text, w.key)
	if err != nil {
		return err
	}
	if size := int(checkpoint.Tree.Size); size < int(w.latest.Size) || size > len(w.leaves) {
		return fmt.Errorf("the checkpoint covers %d receipts, %d are held and %d were covered before", size, len(w.leaves), w.latest.Size)
	}
	w.latest, w.signed = checkpoint.Tree, append(w.signed, checkpoint.Tree)
	return w.verify()
}

// verify compares every signed root with that of what was read, as soon as it
// can be computed.
func (w *Witness) verify() error {
	var open []tlog.Tree
	for _, signed := range w.signed {
		got, err := w.span(signed)
		switch {
		case err != nil:
			return err
		case !got.known:
			open = append(open, signed)
		case got.hash != signed.Root:
			return fmt.Errorf("the signed root of %d receipts is %x, that of what was read is %x", signed.Size, signed.Root, got.hash)
		}
	}
	w.signed = open
	return nil
}

func (w *Witness) span(signed tlog.Tree) (span, error) {
	return tree{w.leaves, w.shown}.span(0, int(signed.Size))
}

// Whole checks that what was noted is one history, and that nothing of it was
// lost: see the package comment. It is for when nothing is under way and the job
// service's receipts were noted.
func (w *Witness) Whole() error {
	if err := w.verify(); err != nil {
		return err
	}
	var problems []error
	for _, signed := range w.signed {
		problems = append(problems, fmt.Errorf("nothing shows what the signed root of %d receipts is made of; unread: %s", signed.Size, w.unread()))
	}
	if w.largest > int(w.latest.Size) {
		problems = append(problems, fmt.Errorf("a proof is of %d receipts, the log ends with %d", w.largest, w.latest.Size))
	}
	for _, i := range slices.Sorted(maps.Keys(w.ahead)) {
		problems = append(problems, fmt.Errorf("receipt %d was proved, the log ends with %s", i, w.Last()))
	}
	last, err := w.span(w.latest)
	if err != nil {
		return err
	}
	if lost := slices.DeleteFunc(last.unseen, func(i int) bool { return w.proved[i] }); len(lost) > 0 {
		problems = append(problems, fmt.Errorf("receipts %v were read, and nothing shows that the log still has them", lost))
	}
	for job, end := range w.ended {
		if strings.HasPrefix(end, string(api.JobFinished)+" ") {
			problems = append(problems, w.executed(job))
		}
	}
	return errors.Join(problems...)
}

// unread lists the receipts that were not read, for people.
func (w *Witness) unread() string {
	var list []string
	for i, leaf := range w.leaves {
		if leaf == nil {
			list = append(list, strconv.Itoa(i))
		}
	}
	return strings.Join(list, " ")
}

// lived are the receipts of an allocation that gave a result.
var lived = []protocol.Kind{protocol.KindAccepted, protocol.KindStarted, protocol.KindExited, protocol.KindRetired, protocol.KindConsumed}

// executed checks that the job service holds every receipt of an allocation
// that was made for the job: whoever is given a result can prove it.
func (w *Witness) executed(job string) error {
	kinds := map[protocol.Number]map[protocol.Kind]bool{}
	for _, leaf := range w.bundles[job] {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			return err
		}
		if r.Number == nil {
			return fmt.Errorf("job %s has receipt %d, which is no allocation's", job, r.Index)
		}
		if kinds[*r.Number] == nil {
			kinds[*r.Number] = map[protocol.Kind]bool{}
		}
		kinds[*r.Number][r.Kind] = true
		if r.Kind != protocol.KindAccepted {
			continue
		}
		accepted, err := protocol.BodyOf[protocol.AcceptedBody](r)
		if err != nil {
			return err
		}
		if !strings.Contains(accepted.Purpose, job) {
			return fmt.Errorf("job %s has receipt %d, whose purpose is %s", job, r.Index, accepted.Purpose)
		}
	}
	for _, has := range kinds {
		if !slices.ContainsFunc(lived, func(k protocol.Kind) bool { return !has[k] }) {
			return nil
		}
	}
	return fmt.Errorf("job %s finished, and the job service has %d receipts of it and no whole allocation's", job, len(w.bundles[job]))
}

// ranks give the order of an allocation's receipts; those of one rank may
// repeat or be left out.
var ranks = map[protocol.Kind]int{
	protocol.KindAccepted: 1, protocol.KindStarted: 2, protocol.KindOOMObserved: 3, protocol.KindExited: 4,
	protocol.KindStuck: 5, protocol.KindUnstuck: 5, protocol.KindRetired: 6, protocol.KindConsumed: 7,
}

// Story checks what the whole log tells. settled says that nothing is under way:
// every allocation must have been consumed.
func (w *Witness) Story(settled bool) error {
	var problems []error
	highest := protocol.Number(0)
	reached := map[protocol.Number]int{}
	purposes := map[string]protocol.Number{}
	for i, leaf := range w.leaves {
		if leaf == nil {
			continue // a number whose receipt this was is found below
		}
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
		case r.Kind == protocol.KindConsumed && reached[n] != ranks[protocol.KindRetired]: // I16 I20
			problems = append(problems, fmt.Errorf("receipt %d consumes number %d, of which no retirement was seen", i, n))
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
	for n := protocol.Number(1); settled && n <= highest; n++ {
		if reached[n] != ranks[protocol.KindConsumed] {
			problems = append(problems, fmt.Errorf("number %d was never consumed", n))
		}
	}
	if settled && w.frontier > 0 && w.frontier != highest {
		problems = append(problems, fmt.Errorf("the host accepted %d numbers, the log tells of %d", w.frontier, highest))
	}
	return errors.Join(problems...)
}
