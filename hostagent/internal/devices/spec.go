package devices

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/quittance/quittance/protocol"
)

// Bounds of what is read (I33): a spec of an eight-card node has about 40 KiB.
const (
	maxSpecBytes = 1 << 20
	maxSpecFiles = 128
	maxDevices   = 2048
)

// spec is one spec file as it was read.
type spec struct {
	path     string
	priority int // of its directory; the higher one wins
	digest   protocol.Digest
	raw      *specs.Spec
}

// isSpecFile tells specs from what editors and package managers leave.
func isSpecFile(name string) bool {
	switch filepath.Ext(name) {
	case ".json", ".yaml":
		return name[0] != '.'
	}
	return false
}

// readSpec reads and validates one file. The digest is of exactly the bytes
// that were parsed.
func readSpec(path string, priority int) (*spec, error) {
	if err := checkWay(path); err != nil {
		return nil, err
	}
	data, err := readOwn(path)
	if err != nil {
		return nil, err
	}
	raw, err := cdi.ParseSpec(data)
	if err != nil {
		return nil, err
	}
	if raw == nil {
		return nil, errors.New("is empty")
	}
	if err := validate(raw); err != nil {
		return nil, err
	}
	return &spec{path: path, priority: priority, digest: protocol.DigestOf(data), raw: raw}, nil
}

// readOwn reads a bounded regular file that only root can write.
func readOwn(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO must not hold the agent
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if err := checkAuthor(info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSpecBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSpecBytes {
		return nil, fmt.Errorf("is longer than %d bytes", maxSpecBytes)
	}
	return data, nil
}

// checkOwner refuses what is neither root's nor this process's user's.
func checkOwner(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("has no owner that can be read")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("belongs to uid %d: chown it to root", st.Uid)
	}
	return nil
}

// checkAuthor refuses what somebody other than root could have written.
func checkAuthor(info fs.FileInfo) error {
	err := checkOwner(info)
	switch {
	case err != nil:
		return err
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("can be written by others (mode %04o): chmod go-w it", info.Mode().Perm())
	}
	return nil
}

// checkWay refuses a path on which somebody other than root could put another
// file: in a directory above it, or above what it leads to by links. In a
// directory of root's with the sticky bit, as /tmp is, nobody replaces what is
// another's.
func checkWay(path string) error {
	if !filepath.IsAbs(path) {
		return errors.New("is not an absolute path")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, way := range []string{filepath.Clean(path), real} {
		for at := way; at != "/"; {
			info, err := os.Lstat(at)
			if err != nil {
				return err
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				err = checkOwner(info)
			} else if at != way && !isSticky(info) {
				err = checkAuthor(info)
			}
			if err != nil {
				return fmt.Errorf("lies below %s, which %w", at, err)
			}
			at = filepath.Dir(at)
		}
	}
	return nil
}

// isSticky reports whether a directory is root's and only owners rename and
// remove in it.
func isSticky(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0 && info.Mode()&fs.ModeSticky != 0
}

// validate checks what the format demands, and that every name can be said in a
// receipt.
func validate(raw *specs.Spec) error {
	vendor, class := parser.ParseQualifier(raw.Kind)
	if err := errors.Join(parser.ValidateVendorName(vendor), parser.ValidateClassName(class)); err != nil {
		return err
	}
	if err := (&cdi.ContainerEdits{ContainerEdits: &raw.ContainerEdits}).Validate(); err != nil {
		return err
	}
	if len(raw.Devices) == 0 {
		return errors.New("has no devices")
	}
	seen := map[string]bool{}
	for i := range raw.Devices {
		d := &raw.Devices[i]
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return err
		}
		if seen[d.Name] {
			return fmt.Errorf("has the device %s twice", d.Name)
		}
		seen[d.Name] = true
		if err := (&cdi.ContainerEdits{ContainerEdits: &d.ContainerEdits}).Validate(); err != nil {
			return fmt.Errorf("device %s: %w", d.Name, err)
		}
	}
	// Last: it looks into entries that the checks above have found not to be null.
	return specs.ValidateVersion(raw)
}
