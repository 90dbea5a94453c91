package tlog

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/quittance/quittance/protocol"
)

// MaxCheckpointBytes bounds a checkpoint's text.
const MaxCheckpointBytes = 4 << 10

// Checkpoint is a signed statement of a log's size and root.
type Checkpoint struct {
	Generation protocol.ID
	Tree       Tree
	Text       string // the signed note, as received
}

// SignCheckpoint makes the signed note for a tree of the signer's generation.
func SignCheckpoint(s *Signer, tree Tree) (string, error) {
	if tree.Size < 0 {
		return "", errors.New("sign checkpoint: negative size")
	}
	body := Origin(s.generation) + "\n" + strconv.FormatInt(tree.Size, 10) + "\n" +
		base64.StdEncoding.EncodeToString(tree.Root[:]) + "\n"
	signed, err := note.Sign(&note.Note{Text: body}, s.signer)
	if err != nil {
		return "", fmt.Errorf("sign checkpoint: %w", err)
	}
	return string(signed), nil
}

// ErrNoKey is returned for a checkpoint that none of the given keys signed.
var ErrNoKey = errors.New("checkpoint is not signed by a known host key")

// ParseCheckpoint verifies text with the given keys and reads it. Exactly the
// three lines that [SignCheckpoint] writes are accepted: origin, size, root.
// Signatures of others beside the host's are allowed, as witnesses add them. A
// text without a valid signature of a given key is [ErrNoKey].
func ParseCheckpoint(text string, keys ...*PublicKey) (Checkpoint, error) {
	if len(text) > MaxCheckpointBytes {
		return Checkpoint{}, fmt.Errorf("checkpoint is longer than %d bytes", MaxCheckpointBytes)
	}
	verifiers := make([]note.Verifier, len(keys))
	for i, k := range keys {
		verifiers[i] = k.verifier
	}
	n, err := note.Open([]byte(text), note.VerifierList(verifiers...))
	if err != nil {
		var unverified *note.UnverifiedNoteError
		var invalid *note.InvalidSignatureError
		switch {
		case errors.As(err, &unverified):
			return Checkpoint{}, ErrNoKey
		case errors.As(err, &invalid):
			return Checkpoint{}, errors.New("checkpoint's signature is not valid")
		}
		return Checkpoint{}, errors.New("checkpoint is not a signed note")
	}
	c, err := parseBody(n.Text)
	if err != nil {
		return Checkpoint{}, err
	}
	for _, sig := range n.Sigs {
		if sig.Name == Origin(c.Generation) {
			c.Text = text
			return c, nil
		}
	}
	return Checkpoint{}, errors.New("checkpoint is signed by the key of another generation")
}

func parseBody(body string) (Checkpoint, error) {
	lines := strings.Split(body, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, errors.New("checkpoint must have three lines: origin, size, root")
	}
	generation, err := GenerationOf(lines[0])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	size, err := parseCount(lines[1])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint size: %w", err)
	}
	root, err := parseHash(lines[2])
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint root: %w", err)
	}
	return Checkpoint{Generation: generation, Tree: Tree{Size: size, Root: root}}, nil
}

// parseCount reads a plain decimal without sign or leading zeros.
func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, errors.New("must be a plain decimal without sign or leading zeros")
	}
	return n, nil
}
