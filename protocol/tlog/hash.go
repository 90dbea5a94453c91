package tlog

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/quittance/quittance/protocol"
)

// Hash is a node of the tree, as in golang.org/x/mod/sumdb/tlog, whose
// functions may be used on it directly.
type Hash = tlog.Hash

// Tree is a size of the log with the root hash at that size.
type Tree struct {
	Size int64 // leaves, from 0
	Root Hash
}

// LeafHash is RFC 6962's hash of a leaf: SHA-256 of a zero byte and the leaf.
func LeafHash(leaf []byte) Hash { return tlog.RecordHash(leaf) }

// LeafDigest is [LeafHash] in the form that messages and receipts carry.
func LeafDigest(leaf []byte) protocol.Digest { return DigestOf(LeafHash(leaf)) }

// DigestOf writes a hash in the form that messages carry.
func DigestOf(h Hash) protocol.Digest {
	return protocol.Digest("sha256:" + hex.EncodeToString(h[:]))
}

// HashOf reads a hash from the form that messages carry.
func HashOf(d protocol.Digest) (Hash, error) {
	var h Hash
	if !d.Valid() {
		return h, errors.New("leaf hash must be sha256: and 64 lower-case hexadecimal digits")
	}
	_, err := hex.Decode(h[:], []byte(d.Hex()))
	return h, err
}

// MaxProofHashes bounds a proof: more than the height of any tree of 2⁶³
// leaves, and the consistency of any two of them.
const MaxProofHashes = 128

// FormatHashes writes a proof for a message: standard base64, never nil.
func FormatHashes(hashes []Hash) []string {
	out := make([]string, len(hashes))
	for i, h := range hashes {
		out[i] = base64.StdEncoding.EncodeToString(h[:])
	}
	return out
}

// ParseHashes reads what [FormatHashes] wrote. It refuses more than
// [MaxProofHashes] entries and any text that is not canonical base64 of 32
// bytes (I34).
func ParseHashes(texts []string) ([]Hash, error) {
	if len(texts) > MaxProofHashes {
		return nil, fmt.Errorf("proof has more than %d hashes", MaxProofHashes)
	}
	out := make([]Hash, len(texts))
	for i, text := range texts {
		h, err := parseHash(text)
		if err != nil {
			return nil, fmt.Errorf("proof hash %d: %w", i, err)
		}
		out[i] = h
	}
	return out, nil
}

func parseHash(text string) (Hash, error) {
	var h Hash
	if len(text) != base64.StdEncoding.EncodedLen(len(h)) {
		return h, errors.New("must be 44 characters of base64")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, errors.New("is not canonical base64 of 32 bytes")
	}
	return Hash(b), nil
}

// ErrMismatch is what a proof that does not verify returns: the log, the proof
// or the receipt was altered, or they belong to different trees.
var ErrMismatch = errors.New("proof does not verify against this root")

// VerifyInclusion checks that the leaf with hash leaf stands at index in tree.
func VerifyInclusion(tree Tree, index protocol.Index, leaf Hash, proof []Hash) error {
	if index < 0 || int64(index) >= tree.Size {
		return fmt.Errorf("index %d lies outside a log of %d receipts", index, tree.Size)
	}
	if len(proof) > MaxProofHashes || tlog.CheckRecord(tlog.RecordProof(proof), tree.Size, tree.Root, int64(index), leaf) != nil {
		return ErrMismatch
	}
	return nil
}

// VerifyConsistency checks that newer extends older without changing any of
// its leaves. Between equal sizes, and from the empty log, the proof is empty.
func VerifyConsistency(older, newer Tree, proof []Hash) error {
	switch {
	case older.Size < 0 || newer.Size < older.Size:
		return fmt.Errorf("a log of %d receipts cannot extend one of %d", newer.Size, older.Size)
	case older.Size == newer.Size:
		if older.Root != newer.Root || len(proof) != 0 {
			return ErrMismatch
		}
		return nil
	case older.Size == 0:
		if older.Root != EmptyRoot || len(proof) != 0 {
			return ErrMismatch
		}
		return nil
	}
	if len(proof) > MaxProofHashes || tlog.CheckTree(tlog.TreeProof(proof), newer.Size, newer.Root, older.Size, older.Root) != nil {
		return ErrMismatch
	}
	return nil
}

// EmptyRoot is the root of a log without leaves: SHA-256 of nothing.
var EmptyRoot = Hash{
	0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
	0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
}
