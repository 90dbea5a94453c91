package witness

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
)

// hash is a node of the log's Merkle tree.
type hash = [32]byte

func leafHash(leaf []byte) hash { return sha256.Sum256(append([]byte{0}, leaf...)) }

func parent(left, right hash) hash {
	return sha256.Sum256(slices.Concat([]byte{1}, left[:], right[:]))
}

// node names a whole subtree: the leaves from index<<level on, 1<<level of them.
type node struct{ level, index int }

// tree is what is known of the log's Merkle tree: leaves that are held, nil
// where one is not, and whole subtrees that a signed proof showed.
type tree struct {
	leaves [][]byte
	shown  map[node]hash
}

// span is the hash of the leaves from lo to hi, which is RFC 6962's, section
// 2.1, written down from there and not from the code under test.
type span struct {
	hash  hash
	known bool
	// unseen are leaves that are held and that hash was not computed from:
	// beside one that is not held, only their common subtree is known.
	unseen []int
}

// span computes a hash from the leaves wherever they are held, and compares it
// with what proofs showed: a difference is an error, because two histories were
// signed then. Only where leaves are missing is a proof's word taken.
func (t tree) span(lo, hi int) (span, error) {
	if lo == hi {
		return span{hash: sha256.Sum256(nil), known: true}, nil
	}
	shown, isShown := t.shown[whole(lo, hi)]
	got, err := t.compute(lo, hi)
	switch {
	case err != nil:
		return span{}, err
	case got.known && isShown && got.hash != shown:
		return span{}, fmt.Errorf("of the receipts from %d to %d a signed proof shows another history than was read", lo, hi-1)
	case got.known || !isShown:
		return got, nil
	}
	for i := lo; i < hi; i++ {
		if t.leaves[i] != nil {
			got.unseen = append(got.unseen, i)
		}
	}
	return span{hash: shown, known: true, unseen: got.unseen}, nil
}

func (t tree) compute(lo, hi int) (span, error) {
	if hi-lo == 1 {
		if leaf := t.leaves[lo]; leaf != nil {
			return span{hash: leafHash(leaf), known: true}, nil
		}
		return span{}, nil
	}
	half := 1
	for half*2 < hi-lo {
		half *= 2
	}
	left, leftErr := t.span(lo, lo+half)
	right, rightErr := t.span(lo+half, hi)
	if err := errors.Join(leftErr, rightErr); err != nil || !left.known || !right.known {
		return span{}, err
	}
	return span{hash: parent(left.hash, right.hash), known: true, unseen: append(left.unseen, right.unseen...)}, nil
}

// whole is the node of the leaves from lo to hi, or one that nothing is known
// of where they are no whole subtree.
func whole(lo, hi int) node {
	for level := range 63 {
		if size := 1 << level; size == hi-lo && lo%size == 0 {
			return node{level, lo / size}
		}
	}
	return node{-1, -1}
}

// climb computes the root of a tree of size leaves from the hash of one of them
// and its inclusion proof, and names the whole subtrees that the proof shows if
// that root is the signed one (RFC 9162, section 2.1.3.2).
func climb(index, size int, leaf hash, proof []hash) (root hash, shown map[node]hash, err error) {
	if index < 0 || index >= size {
		return root, nil, fmt.Errorf("receipt %d is not in a log of %d", index, size)
	}
	at, last, level := index, size-1, 0
	root, shown = leaf, map[node]hash{{0, index}: leaf}
	for _, sibling := range proof {
		// A node at the right edge without a sibling is its own parent.
		for at == last && at%2 == 0 && at > 0 {
			at, last, level = at/2, last/2, level+1
		}
		switch {
		case last == 0:
			return root, nil, errors.New("the inclusion proof is too long")
		case at%2 == 1:
			shown[node{level, at - 1}] = sibling
			root = parent(sibling, root)
		default:
			if (at+2)<<level <= size {
				shown[node{level, at + 1}] = sibling
			}
			root = parent(root, sibling)
		}
		at, last, level = at/2, last/2, level+1
	}
	if last != 0 {
		return root, nil, errors.New("the inclusion proof is too short")
	}
	return root, shown, nil
}
