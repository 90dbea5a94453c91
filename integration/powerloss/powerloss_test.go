//go:build crash

package powerloss

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// defect is what is wrong with a reference workload.
type defect string

const (
	sound           defect = "sound"
	noSync          defect = "no fdatasync"
	everyFourth     defect = "sync every fourth"
	ackBeforeSync   defect = "acknowledgement before sync"
	renameNoSync    defect = "rename without file sync"
	renameNoDirSync defect = "rename without directory sync"
)

// blockOf makes a record that can be recognised whole.
func blockOf(n, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n + i)
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(n))
	binary.LittleEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
	return b
}

func whole(b []byte, n int) bool {
	return len(b) > 8 && binary.LittleEndian.Uint32(b) == crc32.ChecksumIEEE(b[4:]) && int(binary.LittleEndian.Uint32(b[4:])) == n
}

// appended is the simplest log: blocks behind each other in one file.
type appended struct{ defect defect }

const blockSize = 3000

func (w appended) Run(dir string, ack func(string)) (err error) {
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(make([]byte, 64*blockSize)); err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), syncDir(dir)); err != nil {
		return err
	}
	for n := 1; n <= 60; n++ {
		if _, err := f.WriteAt(blockOf(n, blockSize), int64(n-1)*blockSize); err != nil {
			return err
		}
		promise := fmt.Sprintf("block %d", n)
		if w.defect == ackBeforeSync {
			ack(promise)
		}
		if w.defect != noSync && (w.defect != everyFourth || n%4 == 0) {
			if err := unix.Fdatasync(int(f.Fd())); err != nil {
				return err
			}
		}
		if w.defect != ackBeforeSync {
			ack(promise)
		}
	}
	return nil
}

func (w appended) Check(dir string, promises []string) error {
	last := Number(promises, "block")
	b, err := os.ReadFile(filepath.Join(dir, "log"))
	if last == 0 && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for n := 1; n <= last; n++ {
		if len(b) < n*blockSize || !whole(b[(n-1)*blockSize:n*blockSize], n) {
			return fmt.Errorf("block %d of %d is not there", n, last)
		}
	}
	return nil
}

// renamed keeps each record in a file that is moved into place.
type renamed struct{ defect defect }

func (w renamed) Run(dir string, ack func(string)) error {
	for n := 1; n <= 40; n++ {
		if err := w.put(dir, n); err != nil {
			return err
		}
		ack(fmt.Sprintf("file %d", n))
	}
	return nil
}

func (w renamed) put(dir string, n int) (err error) {
	temporary := filepath.Join(dir, "new")
	f, err := os.Create(temporary)
	if err != nil {
		return err
	}
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.Write(blockOf(n, blockSize)); err != nil {
		return err
	}
	if w.defect != renameNoSync {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := os.Rename(temporary, filepath.Join(dir, fmt.Sprintf("file-%d", n))); err != nil {
		return err
	}
	if w.defect != renameNoDirSync {
		return syncDir(dir)
	}
	return nil
}

func (w renamed) Check(dir string, promises []string) error {
	for n := range Number(promises, "file") {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("file-%d", n+1)))
		if err != nil {
			return err
		}
		if !whole(b, n+1) {
			return fmt.Errorf("file %d has %d bytes that are not its own", n+1, len(b))
		}
	}
	return nil
}

func syncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// TestHarness shows that the harness finds each defect that it is there for,
// and nothing in a sound store.
func TestHarness(t *testing.T) {
	if !Isolate(t) {
		return
	}
	for _, d := range []defect{sound, noSync, everyFourth, ackBeforeSync} {
		t.Run("append/"+strings.ReplaceAll(string(d), " ", "-"), func(t *testing.T) { run(t, appended{d}, d) })
	}
	for _, d := range []defect{sound, renameNoSync, renameNoDirSync} {
		t.Run("rename/"+strings.ReplaceAll(string(d), " ", "-"), func(t *testing.T) { run(t, renamed{d}, d) })
	}
}

func run(t *testing.T, w Workload, d defect) {
	if d == sound {
		Holds(t, w, 40, 1)
		return
	}
	Catches(t, w, 1000, 1)
}
