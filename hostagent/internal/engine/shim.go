package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quittance/quittance/hostagent/internal/process"
	"golang.org/x/sys/unix"
)

const (
	// shimPatience is how long the daemon may take to tidy up after a shim, and
	// shimInterval the time between two looks.
	shimPatience = 3 * time.Second
	shimInterval = 10 * time.Millisecond
	// shimGrace is how long a forgotten shim may take to end by itself.
	shimGrace = time.Second
	// leastDelete is what the above add up to, with room for the calls between:
	// with less a forgotten shim would never be ended.
	leastDelete = shimPatience + 3*shimGrace + 2*time.Second
	// shimSockets is where shims listen, whatever the daemon's own directories.
	shimSockets = "/run/containerd/s"
	// runcRoot is where shims keep the runtime's state, one directory for each
	// namespace.
	runcRoot = "/run/containerd/runc"
)

// endShim waits until no shim of the container runs and its root file system is
// mounted nowhere. It is called once the daemon said that there is no task.
//
// A daemon whose create was given up can forget a shim that it started, and
// with it a container that the runtime has made: after a while such a shim is
// ended here, and what it leaves is removed by its exact name. A create that is
// still under way fails by that, which is what its caller wants.
func (e *Engine) endShim(ctx context.Context, id string) error {
	gone := func(patience time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return e.awaitShimGone(ctx, id)
	}
	late := gone(shimPatience)
	if late != nil && (!errors.Is(late, ErrRunning) || ctx.Err() != nil) {
		return late
	}
	if late != nil {
		if err := e.endForgotten(ctx, id); err != nil {
			return err
		}
	}
	if err := e.forgetRuntimeState(ctx, id); err != nil {
		return err
	}
	if late != nil {
		if err := unmountRoot(e.o.Namespace, id); err != nil {
			return err
		}
		if err := gone(shimGrace); err != nil {
			return err
		}
	}
	return e.removeShimSocket(e.o.Address, id)
}

// endForgotten ends every shim of the container.
func (e *Engine) endForgotten(ctx context.Context, id string) error {
	shims, err := e.shims(id)
	if err != nil {
		return err
	}
	for _, shim := range shims {
		e.log.Warn("ending a shim that the engine has forgotten", "container", id, "pid", shim.PID)
		if err := e.endProcess(ctx, shim.Identity, id); err != nil {
			return fmt.Errorf("end it: %w", err)
		}
		if err := e.removeShimSocket(shim.engine, id); err != nil {
			return err
		}
	}
	return nil
}

// unmountRoot takes away the mounts that a shim left.
func unmountRoot(namespace, id string) error {
	mounts, err := rootMounts(namespace, id)
	if err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := unix.Unmount(mount, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
	}
	return nil
}

// shimSocket is where the container's shim listens: containerd derives the name
// from its own address, the namespace and the identifier.
func (e *Engine) shimSocket(address, id string) string {
	name := sha256.Sum256([]byte(filepath.Join(address, e.o.Namespace, id)))
	return filepath.Join(shimSockets, hex.EncodeToString(name[:]))
}

// removeShimSocket takes away the socket that a killed shim leaves.
func (e *Engine) removeShimSocket(address, id string) error {
	socket := e.shimSocket(address, id)
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && info.Mode().Type() == fs.ModeSocket {
		err = os.Remove(socket)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("shim socket: %w", err)
	}
	return nil
}

// awaitShimGone polls until neither shim nor mount of the container is there;
// at the end of ctx it returns [ErrRunning].
func (e *Engine) awaitShimGone(ctx context.Context, id string) error {
	tick := time.NewTicker(shimInterval)
	defer tick.Stop()
	for {
		shims, err := e.shims(id)
		if err != nil {
			return err
		}
		mounts, err := rootMounts(e.o.Namespace, id)
		if err != nil {
			return err
		}
		if len(shims) == 0 && len(mounts) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %d shims, %d mounts of it are there", ErrRunning, len(shims), len(mounts))
		}
	}
}

// endProcess ends a shim that was found by its command line: held first, then
// looked at again, so that a number that is used anew is noticed (I17).
func (e *Engine) endProcess(ctx context.Context, shim process.Identity, id string) (err error) {
	handle, err := process.Open(shim)
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	pid := strconv.FormatInt(shim.PID, 10)
	args, err := command(pid)
	if errors.Is(err, errBegins) || err == nil && len(args) == 0 {
		return nil // no shim any more: whoever calls looks again
	}
	if err != nil {
		return err
	}
	if of, _, err := e.shimOf(pid, args); err != nil || of != id {
		return err
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := handle.Signal(sig); err != nil {
			if errors.Is(err, process.ErrGone) {
				return nil
			}
			return err
		}
		grace, cancel := context.WithTimeout(ctx, shimGrace)
		err = handle.Wait(grace)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// forgetRuntimeState has the runtime remove what it knows of the container,
// as the daemon does after a shim that died.
func (e *Engine) forgetRuntimeState(ctx context.Context, id string) error {
	root := filepath.Join(runcRoot, e.o.Namespace)
	if _, err := os.Lstat(filepath.Join(root, id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("runtime state: %w", err)
	}
	runc := exec.CommandContext(ctx, "runc", "--root", root, "delete", "--force", id)
	runc.WaitDelay = shimGrace // a child of it that keeps its output is not waited for
	out, err := runc.CombinedOutput()
	if err != nil {
		return fmt.Errorf("runtime state: runc delete: %w: %.200s", err, out)
	}
	return nil
}

// shim is a process that holds a container.
type shim struct {
	process.Identity
	engine string // the address of the daemon that started it
}

// shims finds the shims of one container. Its identifier is random, so it is
// ours whatever address its daemon calls itself by: ours may be a proxy's.
func (e *Engine) shims(id string) ([]shim, error) {
	var out []shim
	err := eachCommand(func(pid string, args []string) error {
		of, address, err := e.shimOf(pid, args)
		if err != nil || of != id {
			return err
		}
		identity, err := identify(pid)
		if err == nil {
			out = append(out, shim{identity, address})
		}
		return err
	})
	return out, err
}

func identify(pid string) (process.Identity, error) {
	number, err := strconv.ParseInt(pid, 10, 64)
	if err != nil {
		return process.Identity{}, err
	}
	return process.Identify(number)
}

// shimOf reads the container's identifier and the daemon's address from the
// command line of a shim in our namespace; both are "" for every other process.
// Anybody may give a process any command line; only root's are believed.
func (e *Engine) shimOf(pid string, args []string) (id, address string, err error) {
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") || argument(args, "-namespace") != e.o.Namespace {
		return "", "", nil
	}
	root, err := isRoot(pid)
	if err != nil || !root {
		return "", "", err
	}
	return argument(args, "-id"), argument(args, "-address"), nil
}

// taskDirectory is where a daemon keeps what belongs to a task, below its root.
const taskDirectory = "io.containerd.runtime.v2.task"

// worksFor reports whether a shim belongs to the daemon with this root
// directory: its bundle, in which it runs, links to its task's place there.
func (e *Engine) worksFor(root, pid, id string) bool {
	bundle, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	if err != nil || root == "" {
		return false // gone, or of nobody that we know
	}
	work, err := os.Readlink(filepath.Join(bundle, "work"))
	return err == nil && work == filepath.Join(root, taskDirectory, e.o.Namespace, id)
}

func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// eachCommand calls f with the number and the command line of every process.
// Those that begin another program meanwhile, by their command line or by what
// f says, are looked at again, all together: anybody can have any number of
// processes that look like that for ever, and the wait must not grow with them.
func eachCommand(f func(pid string, args []string) error) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("engine: processes: %w", err)
	}
	var pids []string
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, entry.Name())
		}
	}
	var failures []error
	for pause := beginPause; ; pause *= 2 {
		var begin []string
		for _, pid := range pids {
			args, err := command(pid)
			if err == nil && len(args) > 0 {
				err = f(pid, args)
			}
			switch {
			case errors.Is(err, errBegins):
				begin = append(begin, pid)
			case err != nil && !errors.Is(err, process.ErrGone):
				failures = append(failures, err)
			}
		}
		if len(begin) == 0 || pause > longestBegin {
			return errors.Join(failures...)
		}
		time.Sleep(pause)
		pids = begin
	}
}

// command reads a process's command line; nothing where it is gone.
func command(pid string) ([]string, error) {
	line, err := readProgram(pid, "cmdline")
	if err != nil || len(line) == 0 {
		return nil, err
	}
	return strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"), nil
}

// isRoot reports whether all of a process's user ids are root's. The owner of
// its directory in /proc would not tell: anybody can have root there.
func isRoot(pid string) (bool, error) {
	status, err := readProc(pid, "status", statusLimit)
	return bytes.Contains(status, []byte("\nUid:\t0\t0\t0\t0\n")), err
}

// readProc reads a file of a process, up to the limit; nothing where the process
// is gone.
func readProc(pid, name string, limit int64) (content []byte, err error) {
	file, err := os.Open(filepath.Join("/proc", pid, name))
	if err == nil {
		content, err = io.ReadAll(io.LimitReader(file, limit))
		err = errors.Join(err, file.Close())
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("engine: processes: %w", err)
	}
	return content, nil
}

const (
	// programLimit is far more than shims and hooks are given. A process without
	// any right can say that its command line is as large as the address space,
	// and costs itself nothing by it (I33).
	programLimit = 256 << 10
	// statusLimit has room for every group that a process can be in.
	statusLimit = 1 << 20
	// beginPause and longestBegin bound the looks, at doubling distances, at a
	// process that begins another program: it shows neither command line nor
	// environment until the kernel has laid them out, which takes it well below a
	// millisecond once it runs.
	beginPause   = time.Millisecond
	longestBegin = 16 * time.Millisecond
)

// errBegins says that a process begins another program, or was given nothing.
var errBegins = errors.New("engine: processes: one begins another program")

// readProgram is [readProc] of what a program was given. It is empty for a
// process without a program, as the kernel's own, and [errBegins] for one whose
// program shows nothing.
func readProgram(pid, name string) ([]byte, error) {
	content, err := readProc(pid, name, programLimit)
	if err != nil || len(content) > 0 {
		return content, err
	}
	if _, err := os.Readlink(filepath.Join("/proc", pid, "exe")); err != nil {
		return nil, nil // no program, or gone
	}
	return nil, errBegins
}

// mountEntry is one line of the mount table.
type mountEntry struct {
	point   string
	options string // of the file system: the layers of an overlay
}

// readMounts returns the mounts whose mount point has the part in its path.
func readMounts(part string) ([]mountEntry, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("engine: mounts: %w", err)
	}
	var out []mountEntry
	for line := range strings.Lines(string(table)) {
		left, right, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(left), strings.Fields(right)
		if len(fields) > 4 && len(super) > 2 && strings.Contains(fields[4], part) {
			out = append(out, mountEntry{point: fields[4], options: super[2]})
		}
	}
	return out, nil
}

// rootMounts finds where shims mounted the root file system of the container.
// Its identifier is random, so no other engine has it.
func rootMounts(namespace, id string) ([]string, error) {
	entries, err := readMounts("/" + namespace + "/" + id + "/")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range entries {
		out = append(out, m.point)
	}
	return out, nil
}
