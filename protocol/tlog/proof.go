package tlog

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/quittance/quittance/protocol"
)

// proofHeader is the first line of a C2SP tlog-proof.
const proofHeader = "c2sp.org/tlog-proof@v1"

// MaxProofBytes bounds a proof's text, its checkpoint included.
const MaxProofBytes = 16 << 10

// Proof shows that one receipt stands in the log: a C2SP tlog-proof, one text
// that carries all that is needed beside the receipt and the host's key.
type Proof struct {
	Index      protocol.Index
	Hashes     []Hash
	Checkpoint string // signed note
}

// Format writes the proof's text.
func (p Proof) Format() string {
	var b strings.Builder
	b.WriteString(proofHeader + "\nindex " + strconv.FormatInt(int64(p.Index), 10) + "\n")
	for _, h := range p.Hashes {
		b.WriteString(base64.StdEncoding.EncodeToString(h[:]) + "\n")
	}
	b.WriteString("\n" + p.Checkpoint)
	return b.String()
}

// ParseProof reads a proof's text without verifying anything. Exactly what
// [Proof.Format] writes is accepted; the format's optional extra line is not,
// because nothing here gives it a meaning (I34).
func ParseProof(text string) (Proof, error) {
	if len(text) > MaxProofBytes {
		return Proof{}, fmt.Errorf("proof is longer than %d bytes", MaxProofBytes)
	}
	head, checkpoint, ok := strings.Cut(text, "\n\n")
	if !ok || checkpoint == "" {
		return Proof{}, errors.New("proof has no checkpoint after an empty line")
	}
	lines := strings.Split(head, "\n")
	if lines[0] != proofHeader {
		return Proof{}, fmt.Errorf("proof does not begin with %q", proofHeader)
	}
	if len(lines) < 2 || !strings.HasPrefix(lines[1], "index ") {
		return Proof{}, errors.New("proof's second line is not its index")
	}
	index, err := parseCount(strings.TrimPrefix(lines[1], "index "))
	if err != nil {
		return Proof{}, fmt.Errorf("proof index: %w", err)
	}
	hashes, err := ParseHashes(lines[2:])
	if err != nil {
		return Proof{}, err
	}
	return Proof{Index: protocol.Index(index), Hashes: hashes, Checkpoint: checkpoint}, nil
}

// Verify checks that leaf is the receipt that the proof speaks of, under a
// checkpoint signed by one of keys, and returns that checkpoint.
func (p Proof) Verify(leaf []byte, keys ...*PublicKey) (Checkpoint, error) {
	c, err := ParseCheckpoint(p.Checkpoint, keys...)
	if err != nil {
		return Checkpoint{}, err
	}
	if err := VerifyInclusion(c.Tree, p.Index, LeafHash(leaf), p.Hashes); err != nil {
		return Checkpoint{}, err
	}
	return c, nil
}
