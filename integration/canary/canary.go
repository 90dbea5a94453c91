// Package canary looks for secrets where none belongs (I37): in logs, answers,
// reports, figures and the files of both daemons. Test labs register what was
// secret in their run, and where it may lie, and end with a search.
//
// It owns the forms in which a secret can show up and the rules of where it may.
// It must not know the daemons; a find names the secret and the place, never the
// value.
package canary

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Bounds of a secret that is searched: shorter ones are found everywhere, and
// the beginning of a longer one is enough.
const (
	minBytes = 16
	maxBytes = 64
)

// Secret is what must not be found.
type Secret struct {
	Name  string // for messages
	Value []byte
	// May are the folders and files, relative to the tree searched and with
	// slashes, that are meant to hold it. One that begins with "*/" is a pattern of
	// path.Match for the name of any file or folder on the way.
	May []string
}

// Set are the secrets of one run. The zero value is empty.
type Set struct{ all []Secret }

// Add registers a secret. One that is too short to be told from chance is left
// out.
func (s *Set) Add(name string, value []byte, may ...string) {
	if len(value) < minBytes {
		return
	}
	s.all = append(s.all, Secret{Name: name, Value: bytes.Clone(value[:min(len(value), maxBytes)]), May: may})
}

// AddFile registers the secret of a file, which itself may hold it: the seed of a
// private key in OpenSSH's or the host key's form, or else every line, such as a
// token.
func (s *Set) AddFile(name, root, file string, may ...string) error {
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return err
	}
	may = append(may, filepath.ToSlash(file))
	if bytes.HasPrefix(data, []byte("-----BEGIN ")) {
		key, err := ssh.ParseRawPrivateKey(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		pair, ok := key.(*ed25519.PrivateKey)
		if !ok {
			return fmt.Errorf("%s: holds a %T", file, key)
		}
		s.Add(name, pair.Seed(), may...)
		return nil
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimSpace(line)
		// PRIVATE+KEY+origin+hash+key: what is not of this form is taken as it is.
		if parts := bytes.SplitN(line, []byte("+"), 5); len(parts) == 5 && bytes.HasPrefix(line, []byte("PRIVATE+KEY+")) {
			if raw, err := base64.StdEncoding.DecodeString(string(parts[4])); err == nil && len(raw) == 1+ed25519.SeedSize {
				line = raw[1:]
			}
		}
		s.Add(name, line, may...)
	}
	return nil
}

// Len is the number of secrets.
func (s *Set) Len() int { return len(s.all) }

// forms are the bytes by which a secret can be recognised: as it is, inside a
// JSON string, in hexadecimal, and in base64 at each of its three alignments.
func forms(value []byte) [][]byte {
	out := [][]byte{value, []byte(hex.EncodeToString(value))}
	if quoted, err := json.Marshal(string(value)); err == nil {
		if inside := quoted[1 : len(quoted)-1]; !bytes.Equal(inside, value) {
			out = append(out, inside)
		}
	}
	for skip := range 3 {
		padded := append(make([]byte, skip), value...)
		encoded := base64.StdEncoding.EncodeToString(padded[:len(padded)/3*3])
		cut := (skip*8 + 5) / 6 // characters that depend on what stands before
		inside := encoded[cut:]
		out = append(out, []byte(inside), []byte(strings.NewReplacer("+", "-", "/", "_").Replace(inside)))
	}
	return out
}

// In searches one text and returns what it found, by name.
func (s *Set) In(place string, text []byte) (found []string) {
	for _, secret := range s.all {
		if secret.in(text) {
			found = append(found, secret.Name+" in "+place)
		}
	}
	return found
}

func (s Secret) in(text []byte) bool {
	for _, form := range forms(s.Value) {
		if bytes.Contains(text, form) {
			return true
		}
	}
	return false
}

// maxFile bounds what is read of one file.
const maxFile = 256 << 20

// Under searches every regular file below root, and the names of all of them,
// but for the folders named, relative to root. What goes while it looks is passed
// over.
func (s *Set) Under(root string, but ...string) (found []string, err error) {
	if len(s.all) == 0 {
		return nil, nil
	}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && slices.Contains(but, rel) {
			return filepath.SkipDir
		}
		text := []byte(rel + "\n")
		if d.Type().IsRegular() {
			if text, err = content(text, file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		for _, secret := range s.all {
			if !secret.may(rel) && secret.in(text) {
				found = append(found, secret.Name+" in "+file)
			}
		}
		return nil
	})
	return found, err
}

// block is the unit in which empty stretches of preallocated files are left out.
var block [4096]byte

// content appends a file's blocks that are not empty.
func content(text []byte, file string) (_ []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return text, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var buffer [len(block)]byte
	for range maxFile / len(block) {
		n, err := io.ReadFull(f, buffer[:])
		if buffer != block || n < len(block) {
			text = append(text, buffer[:n]...)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return text, nil
		}
		if err != nil {
			return text, err
		}
	}
	return text, nil
}

func (s Secret) may(rel string) bool {
	for _, place := range s.May {
		if pattern, anywhere := strings.CutPrefix(place, "*/"); anywhere {
			for name := range strings.SplitSeq(rel, "/") {
				if fits, err := path.Match(pattern, name); err == nil && fits {
					return true
				}
			}
		}
		if rel == place || strings.HasPrefix(rel, place+"/") {
			return true
		}
	}
	return false
}
