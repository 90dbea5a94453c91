package uds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// maxPath is the longest path of a Unix socket, the terminating zero excluded.
const maxPath = 107

// Options say how [Listen] makes the socket. The zero value is a socket for its
// owner only, without socket activation.
type Options struct {
	// Mode is the socket's mode; 0 means 0600. The installed agent uses 0660.
	Mode fs.FileMode
	// GID is the socket's group; nil leaves the process's group.
	GID *int
	// Activation takes the socket from systemd where the process was started by
	// a socket unit (LISTEN_FDS), whose mode and group then stand.
	Activation bool
}

// The refusals of [Listen].
var (
	ErrInUse     = errors.New("another agent is listening on this socket: stop it first")
	ErrNotSocket = errors.New("is not a socket: remove it or configure another path")
)

// Listen returns the one listener of the private socket: the one that systemd
// passed, or one that it binds itself.
//
// Binding: the path's directory is made (0755) where it is missing; the socket
// is bound and given its mode and group inside a 0700 directory beside the path,
// and then moved into place, so that nobody can connect before both are right.
// A socket already there is replaced only after it refused a connection (its
// process is gone); one that answers is [ErrInUse]; anything that is not a
// socket is [ErrNotSocket]. A lock file beside the path, held until Close, keeps
// two starting agents from replacing each other.
//
// Close removes the socket only where Listen bound it and it is still ours.
func Listen(path string, o Options) (net.Listener, error) {
	if o.Activation {
		l, err := activated(path)
		if l != nil || err != nil {
			return l, err
		}
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return nil, fmt.Errorf("socket %q: must be an absolute, clean path", path)
	}
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket %s: path is longer than %d bytes", path, maxPath)
	}
	l, err := bind(path, o)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	return l, nil
}

// activated returns systemd's listener, or nil where there is none.
func activated(path string) (net.Listener, error) {
	files := activation.Files(true)
	if len(files) == 0 {
		return nil, nil
	}
	defer func() {
		for _, f := range files {
			f.Close() // a duplicate lives on in the listener
		}
	}()
	if len(files) != 1 {
		return nil, fmt.Errorf("socket activation passed %d sockets: the socket unit must have exactly one ListenStream", len(files))
	}
	return fromFile(path, files[0])
}

func fromFile(path string, f *os.File) (net.Listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket activation: not a listening socket: %w", err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || l.Addr().Network() != "unix" {
		l.Close()
		return nil, fmt.Errorf("socket activation: expected a Unix stream socket, got %s", l.Addr().Network())
	}
	if got := l.Addr().String(); got != path {
		l.Close()
		return nil, fmt.Errorf("socket activation: the unit listens on %s, the configuration says %s: make them agree", got, path)
	}
	return ul, nil
}

// listener is a socket that bind made: it carries the path where it ended, and
// cleans up there.
type listener struct {
	*net.UnixListener
	path  string
	lock  *os.File
	inode uint64
	once  sync.Once
	err   error
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *listener) Close() error {
	l.once.Do(func() {
		var remove error
		if inode, err := socketInode(l.path); err == nil && inode == l.inode {
			remove = os.Remove(l.path)
		}
		l.err = errors.Join(l.UnixListener.Close(), remove, l.lock.Close())
	})
	return l.err
}

func bind(path string, o Options) (_ net.Listener, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	if err := checkStale(path); err != nil {
		return nil, err
	}

	private := path + ".new"
	if err := removePrivate(private); err != nil {
		return nil, err
	}
	if err := os.Mkdir(private, 0o700); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removePrivate(private)) }()
	ul, err := listenIn(private)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ul.Close())
		}
	}()
	ul.SetUnlinkOnClose(false) // its name is about to change

	made := filepath.Join(private, "s")
	if o.GID != nil {
		if err := os.Chown(made, -1, *o.GID); err != nil {
			return nil, err
		}
	}
	mode := o.Mode
	if mode == 0 {
		mode = 0o600
	}
	if err := os.Chmod(made, mode); err != nil {
		return nil, err
	}
	inode, err := socketInode(made)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(made, path); err != nil {
		return nil, err
	}
	return &listener{UnixListener: ul, path: path, lock: lock, inode: inode}, nil
}

// takeLock holds an exclusive lock for as long as the file is open. The file
// stays: removing it would let two agents lock two different files.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// checkStale decides whether what lies at path may be replaced.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return ErrNotSocket
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	c, err := Dial(ctx, path)
	switch {
	case err == nil:
		return errors.Join(ErrInUse, c.Close())
	case errors.Is(err, unix.ECONNREFUSED):
		return nil
	}
	return fmt.Errorf("%w (it neither refused nor answered: %w)", ErrInUse, err)
}

// removePrivate removes what an agent that died while binding left: only the
// two names that bind makes.
func removePrivate(dir string) error {
	for _, name := range []string{filepath.Join(dir, "s"), dir} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// listenIn binds dir/s. The address goes through the directory's descriptor:
// it may be longer than [maxPath] although the final one is not.
func listenIn(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() // read only
	name := "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/s"
	return net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
}

func socketInode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: ErrNotSocket}
	}
	return st.Ino, nil
}

// Dial connects to the private socket. Its errors mean that nothing was sent.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
