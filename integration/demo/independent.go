package main

import (
	"errors"

	formats "github.com/transparency-dev/formats/log"
	tlogproof "github.com/transparency-dev/formats/proof"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/note"

	"github.com/quittance/quittance/controller/api"
)

// verifyIndependently verifies one receipt with transparency-dev's libraries
// alone: the proof's text, the checkpoint's signature, the leaf's place under
// its root.
func verifyIndependently(r api.JobReceipt, key string) error {
	verifier, err := note.NewVerifier(key)
	if err != nil {
		return err
	}
	var text tlogproof.TLogProof
	if err := text.Unmarshal([]byte(r.Proof)); err != nil {
		return err
	}
	checkpoint, _, _, err := formats.ParseCheckpoint(text.Checkpoint, verifier.Name(), verifier)
	if err != nil {
		return err
	}
	if text.Index != uint64(r.Index) {
		return errors.New("the proof speaks of another receipt")
	}
	hashes := make([][]byte, len(text.Hashes))
	for i := range text.Hashes {
		hashes[i] = text.Hashes[i][:]
	}
	return proof.VerifyInclusion(rfc6962.DefaultHasher, text.Index, checkpoint.Size,
		rfc6962.DefaultHasher.HashLeaf(r.Leaf), hashes, checkpoint.Hash)
}
