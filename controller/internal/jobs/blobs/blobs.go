// Package blobs keeps exact bytes in files named by their SHA-256. It owns the
// directory, its permissions and what makes a file durable; a directory may be
// shared by several instances. It must not know which rows name a blob, nor
// decide when one may go: its users take their decision in the database first.
package blobs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quittance/quittance/protocol"
)

// Store is a directory of blobs. It is safe for concurrent use.
type Store struct {
	directory string
	shards    sync.Map                // directories known to be durable
	sync      func(path string) error // of a directory; tests make it fail
}

// ErrMismatch is returned for bytes that are not those announced.
var ErrMismatch = errors.New("blobs: the bytes differ from the announced length or digest")

// ErrMissing is returned for a blob that is not there.
var ErrMissing = errors.New("blobs: not there")

// incoming holds files that are being written.
const incoming = "incoming"

// Open uses directory, making it with mode 0700 where it is missing.
func Open(directory string) (*Store, error) {
	for _, path := range []string{directory, filepath.Join(directory, incoming)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("blobs: %w", err)
		}
	}
	if err := syncDirectory(directory); err != nil {
		return nil, err
	}
	return &Store{directory: directory, sync: syncDirectory}, nil
}

func (s *Store) path(digest protocol.Digest) string {
	hexadecimal := digest.Hex()
	return filepath.Join(s.directory, hexadecimal[:2], hexadecimal)
}

// Pending is a blob whose bytes are written and not yet in place.
type Pending struct {
	store  *Store
	file   *os.File
	hash   hash.Hash
	length int64
}

// Begin starts a blob. Exactly one of Place and Abort ends it.
func (s *Store) Begin() (*Pending, error) {
	var random [16]byte
	rand.Read(random[:])
	path := filepath.Join(s.directory, incoming, hex.EncodeToString(random[:]))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	return &Pending{store: s, file: file, hash: sha256.New()}, nil
}

// Write implements io.Writer.
func (p *Pending) Write(data []byte) (int, error) {
	n, err := p.file.Write(data)
	p.hash.Write(data[:n])
	p.length += int64(n)
	if err != nil {
		return n, fmt.Errorf("blobs: %w", err)
	}
	return n, nil
}

// Place makes the blob durable under its digest, which must be the announced
// one. A file of that name that is there already is kept: it holds the same bytes.
func (p *Pending) Place(digest protocol.Digest, length int64) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Abort())
		}
	}()
	if p.length != length || protocol.Digest("sha256:"+hex.EncodeToString(p.hash.Sum(nil))) != digest {
		return ErrMismatch
	}
	if err := p.file.Sync(); err != nil {
		return fmt.Errorf("blobs: sync: %w", err)
	}
	final := p.store.path(digest)
	if err := p.store.shard(filepath.Dir(final)); err != nil {
		return err
	}
	if err := os.Rename(p.file.Name(), final); err != nil {
		return fmt.Errorf("blobs: %w", err)
	}
	if err := p.file.Close(); err != nil {
		return fmt.Errorf("blobs: %w", err)
	}
	p.file = nil
	// The rename is synced by whoever did it and by whoever finds it: an
	// existing name proves nothing about the disk (I35).
	return p.store.sync(filepath.Dir(final))
}

// shard makes sure that the directory of a digest's first digits is durable: one
// that is found may be another process's, or one whose sync failed (I35), so it
// counts only once this process has synced its parent after it was there.
func (s *Store) shard(path string) error {
	if _, durable := s.shards.Load(path); durable {
		return nil
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("blobs: %w", err)
	}
	if err := s.sync(s.directory); err != nil {
		return err
	}
	s.shards.Store(path, true)
	return nil
}

// Abort removes what was written. It is a no-op after a successful Place.
func (p *Pending) Abort() error {
	if p.file == nil {
		return nil
	}
	name := p.file.Name()
	err := p.file.Close()
	p.file = nil
	if removeErr := os.Remove(name); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// Put makes data durable and returns its digest.
func (s *Store) Put(data []byte) (protocol.Digest, error) {
	digest := protocol.DigestOf(data)
	pending, err := s.Begin()
	if err != nil {
		return "", err
	}
	if _, err := pending.Write(data); err != nil {
		return "", errors.Join(err, pending.Abort())
	}
	if err := pending.Place(digest, int64(len(data))); err != nil {
		return "", err
	}
	return digest, nil
}

// Open returns a blob for reading, of exactly length bytes, or [ErrMissing].
func (s *Store) Open(digest protocol.Digest, length int64) (*os.File, error) {
	file, err := os.Open(s.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	if err != nil {
		return nil, fmt.Errorf("blobs: %w", err)
	}
	info, err := file.Stat()
	if err == nil && info.Size() != length {
		err = ErrMismatch
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("blobs: %s: %w", digest, err), file.Close())
	}
	return file, nil
}

// Get returns a blob's bytes after checking them against its digest.
func (s *Store) Get(digest protocol.Digest, length int64) ([]byte, error) {
	file, err := s.Open(digest, length)
	if err != nil {
		return nil, err
	}
	data := make([]byte, length)
	_, err = io.ReadFull(file, data)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("blobs: %s: %w", digest, err)
	}
	if protocol.DigestOf(data) != digest {
		return nil, fmt.Errorf("blobs: %s: %w", digest, ErrMismatch)
	}
	return data, nil
}

// Remove removes a blob; a missing one is no error. The caller has made sure, in
// the database, that nothing names it and nothing is about to.
func (s *Store) Remove(digest protocol.Digest) error {
	if err := os.Remove(s.path(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blobs: %w", err)
	}
	return nil
}

// Sweep removes files that a crash left half written and that are older than
// age, and returns how many.
func (s *Store) Sweep(age time.Duration) (int, error) {
	directory := filepath.Join(s.directory, incoming)
	entries, err := os.ReadDir(directory)
	if err != nil {
		return 0, fmt.Errorf("blobs: %w", err)
	}
	removed := 0
	var failures []error
	for _, entry := range entries {
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || time.Since(info.ModTime()) < age {
			failures = append(failures, err)
			continue
		}
		if err := os.Remove(filepath.Join(directory, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failures = append(failures, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(failures...)
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("blobs: %w", err)
	}
	if err := errors.Join(directory.Sync(), directory.Close()); err != nil {
		return fmt.Errorf("blobs: sync directory: %w", err)
	}
	return nil
}
