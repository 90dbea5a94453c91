package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/controller/internal/failpoint"
)

// FS is what the store asks of a file system. Names are paths; a file's own
// Sync makes its content durable, SyncDir the names in a directory.
type FS interface {
	// Mkdir makes one directory with mode 0700.
	Mkdir(name string) error
	// List returns the names in a directory; those of subdirectories end in /.
	List(dir string) ([]string, error)
	// Read returns a whole file of at most limit bytes.
	Read(name string, limit int64) ([]byte, error)
	// Create makes a file that does not exist yet, with mode 0600, for writing.
	Create(name string) (File, error)
	// Rename replaces to by from, atomically.
	Rename(from, to string) error
	// Remove removes one file.
	Remove(name string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// Free is the space that an unprivileged process may still write, in bytes.
	Free(dir string) (int64, error)
	// Lock takes the lock file for this process or returns [ErrLocked].
	Lock(name string) (io.Closer, error)
}

// File is a file being written.
type File interface {
	io.WriteCloser
	// Sync makes what was written durable.
	Sync() error
	// Allocate makes size bytes of the file's space this file's own.
	Allocate(size int64) error
}

// errTooLong is a file over the limit of a Read.
var errTooLong = errors.New("is longer than a file of its kind can be")

// osFS is the operating system's file system.
type osFS struct{}

type osFile struct{ *os.File }

func (f osFile) Write(p []byte) (int, error) {
	if err := failpoint.Write(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f osFile) Sync() error {
	if err := failpoint.Sync(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (osFS) Mkdir(name string) error { return os.Mkdir(name, 0o700) }

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch {
		case e.IsDir():
			names = append(names, e.Name()+"/")
		case e.Type().IsRegular():
			names = append(names, e.Name())
		default:
			return nil, fmt.Errorf("%s is neither a file nor a directory", filepath.Join(dir, e.Name()))
		}
	}
	return names, nil
}

func (osFS) Read(name string, limit int64) (data []byte, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, errTooLong
	}
	return data, err
}

func (osFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) SyncDir(dir string) (err error) {
	if err := failpoint.SyncDir(); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

func (osFS) Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(s.Bavail) * s.Bsize, nil
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Allocate preallocates; where the file system cannot, it writes zeros.
func (f osFile) Allocate(size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	_, err = io.CopyN(f, zeros{}, size)
	return err
}

// zeros is an endless source of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// isFull reports whether err says that there is no space left.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
