// Package channel makes connected stream sockets to a worker that has no
// network: it holds the network namespace and the root directory of a task,
// both taken while the task was proved ours, and dials inside them.
//
// The sockets are made by the agent, so the worker holds no twin of them and
// cannot change their flags. No byte of a stream passes through here. The
// package must not know who gets a socket, nor what is spoken over it.
package channel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/quittance/quittance/hostagent/internal/process"
	"golang.org/x/sys/unix"
)

// Errors that callers tell apart.
var (
	// ErrNotConnectable says that nothing accepts there now: no listener, a
	// full backlog, no such path, or no answer in time. Try again later.
	ErrNotConnectable = errors.New("channel: the worker does not accept connections there")
	// ErrExited says that the task has ended.
	ErrExited = errors.New("channel: the worker has exited")
	// ErrAddress says that the address cannot be one inside the container, or
	// that its path leads over a symbolic link or to something that is no socket.
	ErrAddress = errors.New("channel: the address is unusable")
)

// Task holds one task's network namespace and root. It is safe for concurrent
// use until Close, which must come before the task's mounts are removed.
type Task struct {
	proc    *process.Handle
	network *os.File
	root    *os.File
}

// Open takes the descriptors of the process's network namespace and root and
// then checks that the process still lives: if it does, they are its own. The
// handle stays the caller's. It returns [ErrExited] where the process ended.
func Open(proc *process.Handle) (*Task, error) {
	base := "/proc/" + strconv.FormatInt(proc.Identity().PID, 10)
	network, err := openPath(base+"/ns/net", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	root, err := openPath(base+"/root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, errors.Join(err, network.Close())
	}
	t := &Task{proc: proc, network: network, root: root}
	exited, err := proc.Exited()
	if err == nil && exited {
		err = ErrExited
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func openPath(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return nil, ErrExited
	}
	if err != nil {
		return nil, fmt.Errorf("channel: open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Close gives both descriptors up; it never touches the task.
func (t *Task) Close() error { return errors.Join(t.network.Close(), t.root.Close()) }

// Dial connects to network "tcp" (address is a loopback address and port) or
// "unix" (address is an absolute path inside the container) and returns the
// connected socket, which the caller closes after it was passed on. The context
// must have a deadline. Errors wrap [ErrNotConnectable], [ErrExited] or
// [ErrAddress]; anything else is a fault of the machine.
func (t *Task) Dial(ctx context.Context, network, address string) (*os.File, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("channel: a dial needs a deadline")
	}
	if err := t.alive(); err != nil {
		return nil, err
	}
	var socket *os.File
	var err error
	switch network {
	case "tcp":
		socket, err = t.dialTCP(ctx, address)
	case "unix":
		socket, err = t.dialUnix(ctx, address)
	default:
		return nil, fmt.Errorf("%w: network must be tcp or unix", ErrAddress)
	}
	if err != nil {
		return nil, errors.Join(err, t.alive())
	}
	return socket, nil
}

func (t *Task) alive() error {
	exited, err := t.proc.Exited()
	if err == nil && exited {
		err = ErrExited
	}
	return err
}

func (t *Task) dialTCP(ctx context.Context, address string) (*os.File, error) {
	target, err := netip.ParseAddrPort(address)
	if err != nil || !target.Addr().IsLoopback() || target.Port() == 0 {
		return nil, fmt.Errorf("%w: it must be a loopback address and a port", ErrAddress)
	}
	family := unix.AF_INET
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(target.Port()), Addr: target.Addr().Unmap().As4()}
	if target.Addr().Is6() && !target.Addr().Is4In6() {
		family = unix.AF_INET6
		to = &unix.SockaddrInet6{Port: int(target.Port()), Addr: target.Addr().As16()}
	}
	socket, err := t.socketInside(family)
	if err != nil {
		return nil, err
	}
	return connect(ctx, socket, to)
}

// socketInside makes a TCP socket in the task's network namespace. A socket
// belongs for life to the namespace of the thread that made it, so only these
// few calls run there. The goroutine keeps its thread locked; if the thread
// cannot be brought back, it ends with the goroutine.
func (t *Task) socketInside(family int) (*os.File, error) {
	type result struct {
		socket *os.File
		err    error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		socket, back, err := func() (*os.File, bool, error) {
			home, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return nil, true, fmt.Errorf("channel: own network namespace: %w", err)
			}
			defer home.Close() //nolint:errcheck // read-only descriptor: nothing can be lost
			if err := unix.Setns(int(t.network.Fd()), unix.CLONE_NEWNET); err != nil {
				return nil, true, fmt.Errorf("channel: enter the worker's network namespace: %w", err)
			}
			fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
			back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil
			if err != nil {
				return nil, back, fmt.Errorf("channel: socket: %w", err)
			}
			return os.NewFile(uintptr(fd), "channel"), back, nil
		}()
		if back {
			runtime.UnlockOSThread()
		}
		done <- result{socket, err}
	}()
	r := <-done
	return r.socket, r.err
}

// dialUnix resolves the path below the task's root, as the kernel sees it at
// one moment, and connects to the very inode that was found: a name that the
// worker swaps afterwards leads nowhere else.
func (t *Task) dialUnix(ctx context.Context, path string) (*os.File, error) {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("%w: it must be an absolute path inside the container", ErrAddress)
	}
	fd, err := unix.Openat2(int(t.root.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EAGAIN):
		return nil, fmt.Errorf("%w: %w", ErrNotConnectable, err)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, fmt.Errorf("%w: its path leads over a symbolic link", ErrAddress)
	case err != nil:
		return nil, fmt.Errorf("channel: resolve the worker's socket: %w", err)
	}
	found := os.NewFile(uintptr(fd), "worker socket")
	defer found.Close() //nolint:errcheck // O_PATH descriptor: nothing can be lost
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("channel: inspect the worker's socket: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, fmt.Errorf("%w: what is there is no socket", ErrAddress)
	}
	own, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("channel: socket: %w", err)
	}
	return connect(ctx, os.NewFile(uintptr(own), "channel"), &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(fd)})
}

// connect connects a non-blocking socket within the context and takes it over:
// it is closed unless it is returned.
func connect(ctx context.Context, socket *os.File, to unix.Sockaddr) (_ *os.File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, socket.Close())
		}
	}()
	deadline, _ := ctx.Deadline()
	if err := socket.SetWriteDeadline(deadline); err != nil {
		return nil, fmt.Errorf("channel: deadline: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		// Only to end the wait below early; a failure leaves the deadline.
		_ = socket.SetWriteDeadline(unixEpoch)
	})
	defer stop()
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("channel: socket: %w", err)
	}
	started := false
	var state error
	err = raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			state = unix.Connect(int(fd), to)
			return !errors.Is(state, unix.EINPROGRESS)
		}
		var code int
		code, state = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if state == nil && code != 0 {
			state = unix.Errno(code)
		}
		if state == nil {
			// Writable without an error and yet unconnected: woken too early.
			if _, err := unix.Getpeername(int(fd)); errors.Is(err, unix.ENOTCONN) {
				return false
			}
		}
		return true
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w: no answer in time", ErrNotConnectable)
	}
	if err != nil {
		return nil, fmt.Errorf("channel: connect: %w", err)
	}
	switch {
	case state == nil:
	case errors.Is(state, unix.ECONNREFUSED), errors.Is(state, unix.EAGAIN), errors.Is(state, unix.ENOENT),
		errors.Is(state, unix.ECONNRESET), errors.Is(state, unix.ETIMEDOUT):
		return nil, fmt.Errorf("%w: %w", ErrNotConnectable, state)
	default:
		return nil, fmt.Errorf("channel: connect: %w", state)
	}
	if err := socket.SetWriteDeadline(noDeadline); err != nil {
		return nil, fmt.Errorf("channel: deadline: %w", err)
	}
	return socket, nil
}
