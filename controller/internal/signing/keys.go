package signing

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/quittance/quittance/controller/api"
)

// AuthorizedKey is one provider's registered key.
type AuthorizedKey struct {
	Provider string
	KeyID    string // fingerprint of Public
	Public   ed25519.PublicKey
}

// maxKeyFile bounds a private key file.
const maxKeyFile = 16 << 10

// maxAuthorizedKeys bounds a list of authorized keys, in bytes.
const maxAuthorizedKeys = 1 << 20

// KeyID is a public key's SHA-256 fingerprint in the form of OpenSSH.
func KeyID(public ed25519.PublicKey) (string, error) {
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("signing: public key: %w", err)
	}
	return ssh.FingerprintSHA256(key), nil
}

// CreateKey makes a key and writes it to path, which must not exist, in
// OpenSSH's format with mode 0600, durable before it returns.
func CreateKey(path, comment string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("signing: make key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return nil, fmt.Errorf("signing: encode key: %w", err)
	}
	if err := writeNew(path, pem.EncodeToMemory(block)); err != nil {
		return nil, fmt.Errorf("signing: write key file: %w", err)
	}
	return key, nil
}

func writeNew(path string, data []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	directory, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

// LoadKey reads an unencrypted Ed25519 private key in OpenSSH's or PKCS #8 form.
// It refuses a file that group or others can read. It never makes one.
func LoadKey(path string) (ed25519.PrivateKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("signing: key file: %w", err)
	}
	switch {
	case !info.Mode().IsRegular() || info.Size() > maxKeyFile:
		return nil, fmt.Errorf("signing: %s is not a key file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("signing: %s can be read by others (mode %04o); run chmod 600 on it and, if they may have read it, make a new key", path, info.Mode().Perm())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("signing: key file: %w", err)
	}
	raw, err := ssh.ParseRawPrivateKey(data)
	if err != nil {
		// The library's message may quote the file.
		return nil, fmt.Errorf("signing: %s holds no readable private key; make one with ssh-keygen -t ed25519 -N ''", path)
	}
	switch key := raw.(type) {
	case ed25519.PrivateKey:
		return key, nil
	case *ed25519.PrivateKey:
		return *key, nil
	}
	return nil, fmt.Errorf("signing: %s holds a key of another type; Ed25519 is required", path)
}

// LoadOrCreateKey loads the key at path, or makes it where nothing is there.
func LoadOrCreateKey(path, comment string) (ed25519.PrivateKey, error) {
	key, err := LoadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		return CreateKey(path, comment)
	}
	return key, err
}

// AuthorizedLine is a key's line for an authorized keys file.
func AuthorizedLine(provider string, public ed25519.PublicKey) (string, error) {
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("signing: public key: %w", err)
	}
	return strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n") + " " + provider, nil
}

// ParseAuthorizedKey reads one line: ssh-ed25519, the key, and the provider's
// name where OpenSSH has a comment. Options are refused: they would suggest a
// restriction that nobody enforces.
func ParseAuthorizedKey(line string) (AuthorizedKey, error) {
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil || len(rest) != 0:
		return AuthorizedKey{}, errors.New("must be: ssh-ed25519 KEY PROVIDER")
	case len(options) != 0:
		return AuthorizedKey{}, errors.New("options in front of the key are not supported")
	case !api.ValidProvider(comment):
		return AuthorizedKey{}, errors.New("the provider's name after the key must be 1 to 63 characters of a-z 0-9 . -")
	}
	crypto, ok := key.(ssh.CryptoPublicKey)
	if !ok {
		return AuthorizedKey{}, errors.New("the key must be of type ssh-ed25519")
	}
	public, ok := crypto.CryptoPublicKey().(ed25519.PublicKey)
	if !ok {
		return AuthorizedKey{}, errors.New("the key must be of type ssh-ed25519")
	}
	return AuthorizedKey{Provider: comment, KeyID: ssh.FingerprintSHA256(key), Public: public}, nil
}

// ParseAuthorizedKeys reads a file of such lines; empty lines and lines that
// begin with # are skipped. A provider may have several keys, so that they can be
// changed without a gap; a key belongs to one provider. Every bad line is
// reported.
func ParseAuthorizedKeys(data []byte) ([]AuthorizedKey, error) {
	if len(data) > maxAuthorizedKeys {
		return nil, fmt.Errorf("signing: authorized keys: longer than %d bytes", maxAuthorizedKeys)
	}
	var keys []AuthorizedKey
	var problems []error
	seen := map[string]int{}
	scanner := bufio.NewScanner(bytes.NewReader(data))
	for number := 1; scanner.Scan(); number++ {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := ParseAuthorizedKey(line)
		if err != nil {
			problems = append(problems, fmt.Errorf("signing: authorized keys: line %d: %w", number, err))
			continue
		}
		if first, twice := seen[key.KeyID]; twice {
			problems = append(problems, fmt.Errorf("signing: authorized keys: line %d: the key is already on line %d", number, first))
			continue
		}
		seen[key.KeyID] = number
		keys = append(keys, key)
	}
	if err := scanner.Err(); err != nil {
		problems = append(problems, fmt.Errorf("signing: authorized keys: %w", err))
	}
	if len(problems) != 0 {
		return nil, errors.Join(problems...)
	}
	return keys, nil
}
