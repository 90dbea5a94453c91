package audit

import (
	"errors"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// forest is the perfect subtrees that a log of some size consists of, from the
// left, largest first: all that is needed to go on hashing (RFC 6962).
type forest struct {
	size  int64
	trees []tree
}

// tree is one perfect subtree.
type tree struct {
	leaves int64 // a power of two
	root   tlog.Hash
}

// add appends one leaf.
func (f *forest) add(leaf tlog.Hash) {
	f.size++
	next := tree{1, leaf}
	for len(f.trees) > 0 && f.trees[len(f.trees)-1].leaves == next.leaves {
		left := f.trees[len(f.trees)-1]
		f.trees = f.trees[:len(f.trees)-1]
		next = tree{left.leaves * 2, tlog.NodeHash(left.root, next.root)}
	}
	f.trees = append(f.trees, next)
}

// root is the log's root hash. The forest is not empty.
func (f *forest) root() tlog.Hash {
	last := len(f.trees) - 1
	root := f.trees[last].root
	for i := last - 1; i >= 0; i-- {
		root = tlog.NodeHash(f.trees[i].root, root)
	}
	return root
}

var errProofShape = errors.New("the first receipt's proof has the wrong number of hashes")

// prefixOf takes the forest of the first n leaves out of the inclusion proof of
// leaf n in a log of size leaves: on the path from the root to that leaf, every
// left neighbour is one perfect subtree of the prefix. The proof has been
// verified, so the hashes are right.
func prefixOf(n, size int64, proof []tlog.Hash) (forest, error) {
	f := forest{size: n}
	low, high := int64(0), size
	rest := proof
	for high-low > 1 {
		if len(rest) == 0 {
			return forest{}, errProofShape
		}
		neighbour := rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		// The left half is the largest power of two below the size.
		half := int64(1) << (bits.Len64(uint64(high-low-1)) - 1)
		if n < low+half {
			high = low + half
			continue
		}
		f.trees = append(f.trees, tree{half, neighbour})
		low += half
	}
	if len(rest) != 0 || low != n {
		return forest{}, errProofShape
	}
	return f, nil
}
