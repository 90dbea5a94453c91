package audit

import (
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/tlog"
)

// Single verifies one receipt by its own proof, as it travels with a job.
func Single(leaf []byte, proofText string, keys ...*tlog.PublicKey) (protocol.Receipt, error) {
	receipt, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		return protocol.Receipt{}, err
	}
	proof, err := tlog.ParseProof(proofText)
	if err != nil {
		return receipt, err
	}
	checkpoint, err := proof.Verify(leaf, keys...)
	if err != nil {
		return receipt, err
	}
	if checkpoint.Generation != receipt.Generation || proof.Index != receipt.Index {
		return receipt, tlog.ErrMismatch
	}
	return receipt, nil
}
