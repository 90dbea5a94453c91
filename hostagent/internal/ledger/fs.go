package ledger

import "io"

// FS is the part of a file system that the ledger stands on. Names are paths
// as the caller of Create and Open gave them. Tests replace it by one that
// forgets everything unsynced.
type FS interface {
	// OpenFile opens a file for reading and writing. With create it must make
	// the file and fails with an error that is fs.ErrExist where one is;
	// without it never makes one.
	OpenFile(name string, create bool) (File, error)
	// ReadFile reads a small file of at most limit bytes.
	ReadFile(name string, limit int) ([]byte, error)
	// ReadDir lists the names in a directory.
	ReadDir(name string) ([]string, error)
	// Mkdir makes one directory, mode 0700.
	Mkdir(name string) error
	// Rename moves a file or directory over oldname's absence or replacement.
	Rename(oldname, newname string) error
	// Remove removes one file or empty directory.
	Remove(name string) error
	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
	// Free is the number of bytes that are free to this process on the file
	// system that holds the directory.
	Free(name string) (int64, error)
	// Lock takes the exclusive lock of a directory without waiting; ErrLocked
	// if another open has it. Closing frees it.
	Lock(name string) (io.Closer, error)
}

// File is one open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Size is the file's present length.
	Size() (int64, error)
	// Sync makes the contents durable (fdatasync). It must not return nil
	// before they are.
	Sync() error
	Close() error
}
