package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// refreshEvery is how late the program may see that a file of the machine was
// replaced.
const refreshEvery = 10 * time.Second

// machineFile is a file of the machine that programs read by a name that they
// agree on.
type machineFile struct {
	target  string   // below /etc
	sources []string // the first that exists
	max     int64    // bytes; a longer one is left out
}

var machineFiles = []machineFile{
	{"hosts", []string{"/etc/hosts"}, 1 << 20},
	{"resolv.conf", []string{"/etc/resolv.conf"}, 64 << 10},
	{"nsswitch.conf", []string{"/etc/nsswitch.conf"}, 64 << 10},
	{"localtime", []string{"/etc/localtime"}, 64 << 10},
	// Certificates of authorities, wherever the distribution keeps them, at the
	// name that Go looks for first.
	{"ssl/certs/ca-certificates.crt", []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}, 4 << 20},
}

// seen tells one content of a file from another, as far as that goes without
// reading it.
type seen struct {
	file     string
	modified time.Time
	size     int64
	inode    uint64
}

// refresh copies what changed since it was copied. A file that cannot be copied is
// tried again every time and told once per cause, and the older copy stays: it is
// no reason to end the program.
func (s *supervisor) refresh() {
	for _, f := range machineFiles {
		now, err := f.look()
		if err == nil && now != s.seen[f.target] {
			if err = f.copy(s.path(etcDir), now); err == nil {
				s.seen[f.target] = now
			}
		}
		switch {
		case err == nil:
			delete(s.told, f.target)
		case err.Error() != s.told[f.target]:
			s.told[f.target] = err.Error()
			s.config.Log.Warn("a file of the machine is not passed on", "file", f.target, "error", err)
		}
	}
}

// look finds the source; the zero value means that there is none.
func (f machineFile) look() (seen, error) {
	for _, source := range f.sources {
		file, err := filepath.EvalSymlinks(source)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return seen{}, err
		}
		info, err := os.Stat(file)
		if err != nil {
			return seen{}, err
		}
		return seen{file, info.ModTime(), info.Size(), inode(info)}, nil
	}
	return seen{}, nil
}

// copy replaces the copy by one of the source's content of now.
func (f machineFile) copy(dir string, from seen) (err error) {
	target := filepath.Join(dir, f.target)
	if from.file == "" {
		return removeIfThere(target)
	}
	in, err := os.Open(from.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	content, err := io.ReadAll(io.LimitReader(in, f.max+1))
	if err != nil {
		return err
	}
	if int64(len(content)) > f.max {
		return fmt.Errorf("%s has more than %d bytes", from.file, f.max)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	fresh := target + ".new"
	if err := writeReadable(fresh, content); err != nil {
		return err
	}
	return os.Rename(fresh, target)
}

// writeReadable writes a file that everybody may read, whatever the umask is.
func writeReadable(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeAccounts names the program's user.
func (s *supervisor) writeAccounts() error {
	passwd, group := s.config.Identity.accounts()
	for name, text := range map[string]string{"passwd": passwd, "group": group} {
		if err := writeReadable(filepath.Join(s.path(etcDir), name), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

func inode(info fs.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }
