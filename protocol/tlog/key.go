package tlog

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"github.com/quittance/quittance/protocol"
)

const originPrefix = "quittance/"

// Origin is the name of a generation's log and of the key that signs for it.
func Origin(generation protocol.ID) string { return originPrefix + string(generation) }

// GenerationOf reads the generation from an origin.
func GenerationOf(origin string) (protocol.ID, error) {
	id := protocol.ID(strings.TrimPrefix(origin, originPrefix))
	if !strings.HasPrefix(origin, originPrefix) || !id.Valid() {
		return "", errors.New(`origin must be "quittance/" and a generation of 32 lower-case hexadecimal digits`)
	}
	return id, nil
}

// Signer holds the host's private key for one generation. It never leaves the
// node, and neither String nor an error shows it (I37).
type Signer struct {
	signer     note.Signer
	generation protocol.ID
	public     string
}

// Generation is the generation that the key signs for.
func (s *Signer) Generation() protocol.ID { return s.generation }

// PublicKey is the verifier key in the text form that [ParsePublicKey] reads:
// the host_key of messages and of the genesis receipt.
func (s *Signer) PublicKey() string { return s.public }

// String names the key without showing it.
func (s *Signer) String() string { return "signer of " + Origin(s.generation) }

// GoString hides the key from %#v too.
func (s *Signer) GoString() string { return s.String() }

// PublicKey verifies what one host signed in one generation.
type PublicKey struct {
	verifier   note.Verifier
	generation protocol.ID
	text       string
}

// Generation is the generation that the key belongs to.
func (k *PublicKey) Generation() protocol.ID { return k.generation }

// String is the text form.
func (k *PublicKey) String() string { return k.text }

// maxKeyText bounds a key's text form, private or public.
const maxKeyText = 1024

// ParsePublicKey reads a verifier key: "quittance/<generation>+<hash>+<key>".
// A surrounding newline is allowed, as in a file.
func ParsePublicKey(text string) (*PublicKey, error) {
	if len(text) > maxKeyText {
		return nil, fmt.Errorf("host key is longer than %d bytes", maxKeyText)
	}
	text = strings.TrimSpace(text)
	v, err := note.NewVerifier(text)
	if err != nil {
		return nil, errors.New("host key is malformed: expected quittance/<generation>+<hash>+<key>, as hostagent prints it")
	}
	generation, err := GenerationOf(v.Name())
	if err != nil {
		return nil, fmt.Errorf("host key: %w", err)
	}
	return &PublicKey{verifier: v, generation: generation, text: text}, nil
}

// NewSigner makes a key for a generation and returns it with its private text
// form, which only a key file should ever hold.
func NewSigner(generation protocol.ID) (*Signer, string, error) {
	if !generation.Valid() {
		return nil, "", errors.New("generation must be 32 lower-case hexadecimal digits")
	}
	private, public, err := note.GenerateKey(rand.Reader, Origin(generation))
	if err != nil {
		return nil, "", fmt.Errorf("make host key: %w", err)
	}
	s, err := note.NewSigner(private)
	if err != nil {
		return nil, "", fmt.Errorf("make host key: %w", err)
	}
	return &Signer{signer: s, generation: generation, public: public}, private, nil
}

// CreateKeyFile makes a new key for a generation and writes it to path: mode
// 0600, never over an existing file, the file and its directory synced before
// it returns. The public key is written beside it as path + ".pub", mode 0644.
func CreateKeyFile(path string, generation protocol.ID) (*Signer, error) {
	s, private, err := NewSigner(generation)
	if err != nil {
		return nil, err
	}
	if err := writeNew(path, 0o600, private+"\n"); err != nil {
		return nil, fmt.Errorf("write host key: %w", err)
	}
	if err := writeNew(path+".pub", 0o644, s.public+"\n"); err != nil {
		return nil, fmt.Errorf("write public host key: %w", err)
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("write host key: %w", err)
	}
	return s, nil
}

// LoadKeyFile reads a key that [CreateKeyFile] wrote. It never creates one, and
// refuses a file that anyone but its owner can read or write.
func LoadKeyFile(path string) (*Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read host key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read host key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("host key %s is not a regular file", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("host key %s is open to others (mode %04o): chmod 0600 it, and make a new generation if somebody may have read it", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyText+1))
	if err != nil {
		return nil, fmt.Errorf("read host key: %w", err)
	}
	s, err := parseSigner(strings.TrimSuffix(string(data), "\n"))
	if err != nil {
		return nil, fmt.Errorf("host key %s is damaged: %w", path, err)
	}
	return s, nil
}

// parseSigner reads a private key in the note form,
// "PRIVATE+KEY+<origin>+<hash>+<base64>", and derives its public key.
func parseSigner(text string) (*Signer, error) {
	errForm := errors.New("expected one line, PRIVATE+KEY+quittance/<generation>+<hash>+<key>")
	signer, err := note.NewSigner(text)
	if err != nil {
		return nil, errForm // the cause may quote the key
	}
	generation, err := GenerationOf(signer.Name())
	if err != nil {
		return nil, err
	}
	// NewSigner has checked the form: an algorithm byte and an Ed25519 seed.
	// Base64 has '+' in its alphabet, so the fields are counted from the left.
	fields := strings.SplitN(text, "+", 5)
	keyed, err := base64.StdEncoding.DecodeString(fields[len(fields)-1])
	if err != nil || len(keyed) != 1+ed25519.SeedSize {
		return nil, errForm
	}
	private := ed25519.NewKeyFromSeed(keyed[1:])
	public, err := note.NewEd25519VerifierKey(signer.Name(), private.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, errForm
	}
	return &Signer{signer: signer, generation: generation, public: public}, nil
}

func writeNew(path string, mode fs.FileMode, text string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if err := f.Chmod(mode); err != nil { // whatever the umask took away
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(path string) (err error) {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := d.Close(); err == nil {
			err = closeErr
		}
	}()
	return d.Sync()
}
