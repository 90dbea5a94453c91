package receiptlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Snapshot is what a release keeps of the log. Its bytes go into the release's
// base; [Log.Prune] applies it once that base is durable.
type Snapshot struct {
	pruned  int64
	first   protocol.Index
	leaves  map[protocol.Index][]byte
	encoded []byte
}

// First is the first index that is served after the release: that of the next
// leaf, which is the released receipt.
func (s *Snapshot) First() protocol.Index { return s.first }

// Bytes is the snapshot as [Restore] reads it.
func (s *Snapshot) Bytes() []byte { return s.encoded }

// Snapshot describes the log as a release leaves it, queued leaves included:
// pruned at the size that the controller's checkpoint witnessed, with the
// carried receipts (sorted, without repetition) still readable by number and
// by proof. It changes nothing. It fails when witnessed lies above what is
// durable or below the present pruned size, or a carried receipt is not served
// now.
func (l *Log) Snapshot(witnessed int64, carried []protocol.Index) (*Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if witnessed > l.durable {
		return nil, l.aheadError()
	}
	if !slices.IsSorted(carried) {
		return nil, errors.New("receiptlog: carried indices are not sorted")
	}
	t, err := l.tree.prune(witnessed, carried)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{pruned: witnessed, first: protocol.Index(t.size), leaves: make(map[protocol.Index][]byte, len(carried))}
	for _, index := range carried {
		leaf, err := l.queuedLeaf(index)
		if err != nil {
			return nil, fmt.Errorf("carry receipt %d: %w", index, err)
		}
		s.leaves[index] = leaf
	}
	s.encoded = encodeSnapshot(t, s.leaves)
	return s, nil
}

// queuedLeaf finds a leaf's bytes, those not yet durable included.
func (l *Log) queuedLeaf(index protocol.Index) ([]byte, error) {
	if i := int64(index) - l.durable; i >= 0 {
		if i >= int64(len(l.pending)) {
			return nil, l.aheadError()
		}
		return l.pending[i], nil
	}
	leaf, position, err := l.locate(index)
	if err != nil || leaf != nil {
		return leaf, err
	}
	e, err := l.source.Read(position)
	return e.Payload, err
}

// Prune applies a snapshot of this log once the base that holds it is durable.
func (l *Log) Prune(s *Snapshot) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.first < l.first || int64(s.first) > l.durable {
		return fmt.Errorf("receiptlog: snapshot up to index %d does not lie between first %d and durable %d", s.first, l.first, l.durable)
	}
	t, err := l.tree.prune(s.pruned, slices.Sorted(maps.Keys(s.leaves)))
	if err != nil {
		return err
	}
	l.tree = t
	l.positions = slices.Clone(l.positions[s.first-l.first:])
	l.first = s.first
	l.carried = s.leaves
	l.notify()
	return nil
}

// The snapshot's form, integers little-endian:
//
//	"QRL1" · pruned u64 · size u64
//	count u32 · (stored index u64 · hash 32)…       kept below pruned, ascending
//	(hash 32)…                                      leaves pruned … size−1
//	count u32 · (index u64 · length u32 · leaf)…    carried, ascending
const snapshotMagic = "QRL1"

func encodeSnapshot(t *tree, leaves map[protocol.Index][]byte) []byte {
	b := []byte(snapshotMagic)
	b = binary.LittleEndian.AppendUint64(b, uint64(t.pruned))
	b = binary.LittleEndian.AppendUint64(b, uint64(t.size))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(t.kept)))
	for _, stored := range slices.Sorted(maps.Keys(t.kept)) {
		h := t.kept[stored]
		b = binary.LittleEndian.AppendUint64(b, uint64(stored))
		b = append(b, h[:]...)
	}
	for index := t.pruned; index < t.size; index++ {
		h, _ := t.leaf(index)
		b = append(b, h[:]...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(leaves)))
	for _, index := range slices.Sorted(maps.Keys(leaves)) {
		b = binary.LittleEndian.AppendUint64(b, uint64(index))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(leaves[index])))
		b = append(b, leaves[index]...)
	}
	return b
}

var errSnapshot = errors.New("receiptlog: the base holds no whole receipt log snapshot")

// reader takes a snapshot's bytes apart; after the first shortage bad is set
// and everything reads as zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u64() int64 {
	if b := r.take(8); b != nil {
		return int64(binary.LittleEndian.Uint64(b))
	}
	return 0
}

func (r *reader) u32() int {
	if b := r.take(4); b != nil {
		return int(binary.LittleEndian.Uint32(b))
	}
	return 0
}

// count reads how many entries of at least that many bytes follow.
func (r *reader) count(each int) int {
	n := r.u32()
	if n > len(r.b)/each {
		r.bad, r.b = true, nil
		return 0
	}
	return n
}

func (r *reader) hash() (h tlog.Hash) {
	copy(h[:], r.take(tlogHashSize))
	return h
}

const tlogHashSize = xtlog.HashSize

// Restore is the log as a base's snapshot left it. The receipts after the base
// follow by Append and Durable. It checks that the snapshot is whole: exactly
// the hashes that pruning keeps, and every carried leaf under its own hash.
func Restore(source Source, signer *tlog.Signer, snapshot []byte) (*Log, error) {
	t, leaves, err := decodeSnapshot(snapshot)
	if err != nil {
		return nil, err
	}
	l := New(source, signer)
	l.tree, l.carried = t, leaves
	l.first, l.durable = protocol.Index(t.size), t.size
	return l, nil
}

func decodeSnapshot(snapshot []byte) (*tree, map[protocol.Index][]byte, error) {
	r := &reader{b: snapshot}
	if string(r.take(len(snapshotMagic))) != snapshotMagic {
		return nil, nil, errSnapshot
	}
	t := newTree()
	t.pruned = r.u64()
	size := r.u64()
	if t.pruned < 0 || size < t.pruned || size > 1<<53 || (size-t.pruned) > int64(len(r.b))/tlogHashSize {
		return nil, nil, errSnapshot
	}
	t.size, t.base = t.pruned, xtlog.StoredHashIndex(0, t.pruned)
	var order []int64
	for range r.count(8 + tlogHashSize) {
		stored := r.u64()
		t.kept[stored] = r.hash()
		order = append(order, stored)
	}
	// Appending needs the roots of the prefix: look before it would panic.
	for _, stored := range neededBelow(t.pruned, nil) {
		if _, ok := t.kept[stored]; !ok {
			return nil, nil, errSnapshot
		}
	}
	for t.size < size {
		t.append(r.hash())
	}
	leaves := map[protocol.Index][]byte{}
	var carried []protocol.Index
	for range r.count(8 + 4 + 1) {
		index := protocol.Index(r.u64())
		leaf := r.take(r.u32())
		h, ok := t.leaf(int64(index))
		if len(leaf) == 0 || len(leaf) > protocol.MaxReceiptBytes || !ok || tlog.LeafHash(leaf) != h {
			return nil, nil, errSnapshot
		}
		leaves[index] = slices.Clone(leaf)
		carried = append(carried, index)
	}
	strictly := slices.IsSorted(carried) && len(leaves) == len(carried)
	if r.bad || len(r.b) != 0 || !strictly || !slices.Equal(order, neededBelow(t.pruned, carried)) {
		return nil, nil, errSnapshot
	}
	return t, leaves, nil
}
