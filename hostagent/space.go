package hostagent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/ledger"
	"github.com/quittance/quittance/protocol"
)

// Usage is the most that one part of the agent's state can take on disk.
type Usage struct {
	What       string
	Path       string
	Bytes      int64
	FileSystem string // the mount point that Path lies on, or will lie on
	Free       int64  // bytes that the file system has for root now
}

// WorstCase computes from the bounds of the configuration what the state can
// grow to. Nothing of it is created or needs to exist.
func WorstCase(c Config) ([]Usage, error) {
	held := c.MaxSlots + c.MaxUnreleased
	usages := []Usage{
		{What: "ledger, reserve and ballast", Path: ledgerDir(c), Bytes: ledger.Footprint(ledgerOptions(c), held*core.BytesPerAllocation)},
		{What: "captured output", Path: logsDir(c), Bytes: held * protocol.MaxLogCapture},
	}
	for i := range usages {
		u := &usages[i]
		var err error
		if u.FileSystem, u.Free, err = fileSystemOf(u.Path); err != nil {
			return nil, fmt.Errorf("%s: %w", u.What, err)
		}
	}
	return usages, nil
}

// fileSystemOf finds the mount point that a path lies on, from the nearest
// directory above it that exists.
func fileSystemOf(path string) (mount string, free int64, err error) {
	device := func(p string) (uint64, error) {
		info, err := os.Stat(p)
		if err != nil {
			return 0, err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, fmt.Errorf("%s has no device number", p)
		}
		return st.Dev, nil
	}
	dev, err := device(path)
	for errors.Is(err, fs.ErrNotExist) && path != "/" {
		path = filepath.Dir(path)
		dev, err = device(path)
	}
	if err != nil {
		return "", 0, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	for mount = path; mount != "/"; mount = filepath.Dir(mount) {
		above, err := device(filepath.Dir(mount))
		if err != nil {
			return "", 0, err
		}
		if above != dev {
			break
		}
	}
	return mount, int64(st.Bfree) * st.Bsize, nil
}
