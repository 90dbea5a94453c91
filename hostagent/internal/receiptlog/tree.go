package receiptlog

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	xtlog "golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// tree is an append-only Merkle tree without most of what lies below pruned.
// Hashes are addressed by golang.org/x/mod/sumdb/tlog's stored hash index.
type tree struct {
	pruned int64               // leaves of the pruned prefix
	kept   map[int64]tlog.Hash // all hashes with a stored index below base
	base   int64               // stored index of above[0], that of leaf pruned
	above  []tlog.Hash         // contiguous from base
	size   int64               // leaves
}

func newTree() *tree { return &tree{kept: map[int64]tlog.Hash{}} }

// append adds a leaf by its hash.
func (t *tree) append(leaf tlog.Hash) {
	n := t.size
	h := leaf
	t.above = append(t.above, h)
	// Each trailing one bit of n completes a subtree with an older sibling.
	for level := range bits.TrailingZeros64(uint64(n) + 1) {
		left, ok := t.at(xtlog.StoredHashIndex(level, n>>level-1))
		if !ok {
			panic(fmt.Sprintf("receiptlog: left sibling of leaf %d at level %d was pruned", n, level))
		}
		h = xtlog.NodeHash(left, h)
		t.above = append(t.above, h)
	}
	t.size++
}

func (t *tree) at(stored int64) (tlog.Hash, bool) {
	if stored >= t.base {
		if i := stored - t.base; i < int64(len(t.above)) {
			return t.above[i], true
		}
		return tlog.Hash{}, false
	}
	h, ok := t.kept[stored]
	return h, ok
}

// ReadHashes implements the reader of x/mod's tlog.
func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, stored := range indexes {
		h, ok := t.at(stored)
		if !ok {
			return nil, fmt.Errorf("receiptlog: hash %d is not kept (pruned below size %d)", stored, t.pruned)
		}
		out[i] = h
	}
	return out, nil
}

// prune makes the tree that keeps, below size, only the prefix's roots and what
// the carried leaves (sorted) need. The receiver stays as it is.
func (t *tree) prune(size int64, carried []protocol.Index) (*tree, error) {
	if size < t.pruned || size > t.size {
		return nil, fmt.Errorf("receiptlog: cannot prune at size %d: the tree has %d leaves and was pruned at %d", size, t.size, t.pruned)
	}
	next := &tree{pruned: size, kept: map[int64]tlog.Hash{}, base: xtlog.StoredHashIndex(0, size), size: t.size}
	for _, stored := range neededBelow(size, carried) {
		h, ok := t.at(stored)
		if !ok {
			return nil, fmt.Errorf("receiptlog: hash %d is needed to prune at size %d and is not kept: a carried receipt was not carried before", stored, size)
		}
		next.kept[stored] = h
	}
	if skip := next.base - t.base; skip < int64(len(t.above)) {
		next.above = slices.Clone(t.above[skip:])
	}
	return next, nil
}

// neededBelow lists, sorted, the stored indexes below the prefix of size
// leaves that must be kept.
func neededBelow(size int64, carried []protocol.Index) []int64 {
	need := map[int64]bool{}
	for lo := int64(0); lo < size; {
		level := bits.Len64(uint64(size-lo)) - 1
		hi := lo + 1<<level
		need[xtlog.StoredHashIndex(level, lo>>level)] = true
		from, _ := slices.BinarySearch(carried, protocol.Index(lo))
		for _, index := range carried[from:] {
			if int64(index) >= hi {
				break
			}
			need[xtlog.StoredHashIndex(0, int64(index))] = true
			for l := range level {
				need[xtlog.StoredHashIndex(l, int64(index)>>l^1)] = true
			}
		}
		lo = hi
	}
	return slices.Sorted(maps.Keys(need))
}

// leaf is the hash of the leaf with that index, if it is kept.
func (t *tree) leaf(index int64) (tlog.Hash, bool) {
	if index < 0 || index >= t.size {
		return tlog.Hash{}, false
	}
	return t.at(xtlog.StoredHashIndex(0, index))
}
