// Package privateengine runs a containerd of one's own: root, state, socket and
// log in one directory, beside whatever engine the machine has, without
// systemd. Tests, end-to-end runs and the demo use it; the product does not.
//
// It owns the daemon's process and everything below its directory. It must not
// know Quittance: what the agent left behind is the agent's audit; here only
// the daemon, its shims and its mounts are looked at.
package privateengine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyTimeout = time.Minute
	stopTimeout  = 30 * time.Second
	pollInterval = 5 * time.Millisecond
	// maxSocketPath leaves room for the name below the kernel's 108 bytes.
	maxSocketPath = 100
)

// Config says where the engine lives.
type Config struct {
	// Dir is made if absent; everything lives below it. Its path must be short
	// enough for a Unix socket below it (under 85 bytes).
	Dir string
	// Binary is the daemon; default what the environment variable
	// QUITTANCE_CONTAINERD names, or "containerd" from PATH. Versions 1.6 and
	// later are understood. A shim beside the binary goes before those in PATH.
	Binary string
}

// binaryVariable lets a whole lane run on another version of the daemon.
const binaryVariable = "QUITTANCE_CONTAINERD"

// Engine is a running private containerd.
type Engine struct {
	dir    string
	cmd    *exec.Cmd
	exited chan struct{} // closed once the daemon was reaped
}

// Start starts a daemon on the directory and waits until its socket answers. A
// directory that an earlier daemon used is taken over with all that lives in
// it, as after a restart of the daemon.
func Start(ctx context.Context, c Config) (*Engine, error) {
	if c.Binary == "" {
		c.Binary = os.Getenv(binaryVariable)
	}
	if c.Binary == "" {
		c.Binary = "containerd"
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	e := &Engine{dir: dir, exited: make(chan struct{})}
	if len(e.Address()) > maxSocketPath {
		return nil, fmt.Errorf("private engine: directory %s is too long for a socket below it", dir)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	version, err := majorVersion(ctx, c.Binary)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "containerd.toml")
	if err := os.WriteFile(config, []byte(configuration(e, version)), 0o600); err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	log, err := os.OpenFile(e.LogPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	e.cmd = exec.Command(c.Binary, "--config", config)
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if filepath.IsAbs(c.Binary) {
		e.cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(c.Binary)+":"+os.Getenv("PATH"))
	}
	// An interrupt at the terminal is for the caller, who ends the daemon last.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = e.cmd.Start()
	if err = errors.Join(err, log.Close()); err != nil {
		return nil, fmt.Errorf("private engine: start %s: %w", c.Binary, err)
	}
	go func() {
		// The exit status of a daemon that is stopped by signal says nothing.
		_ = e.cmd.Wait()
		close(e.exited)
	}()
	if err := e.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, e.Kill())
	}
	return e, nil
}

// Address is the daemon's socket.
func (e *Engine) Address() string { return filepath.Join(e.dir, "containerd.sock") }

// LogPath is where the daemon's output goes.
func (e *Engine) LogPath() string { return filepath.Join(e.dir, "containerd.log") }

// Dir is the directory that holds everything of the engine.
func (e *Engine) Dir() string { return e.dir }

// PID is the daemon's process.
func (e *Engine) PID() int { return e.cmd.Process.Pid }

// Stop ends the daemon and leaves shims and containers running, as a restart
// of the daemon does.
func (e *Engine) Stop() error {
	if err := e.signal(unix.SIGTERM); err != nil {
		return err
	}
	select {
	case <-e.exited:
		return nil
	case <-time.After(stopTimeout):
		return e.Kill()
	}
}

// Kill ends the daemon without warning and leaves shims and containers running.
func (e *Engine) Kill() error {
	if err := e.signal(unix.SIGKILL); err != nil {
		return err
	}
	select {
	case <-e.exited:
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("private engine: process %d does not end", e.PID())
	}
}

// Pause stops the daemon's process without ending it, so that it hangs; Resume
// lets it go on.
func (e *Engine) Pause() error { return e.signal(unix.SIGSTOP) }

// Resume undoes Pause.
func (e *Engine) Resume() error { return e.signal(unix.SIGCONT) }

func (e *Engine) signal(sig unix.Signal) error {
	err := e.cmd.Process.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("private engine: signal %s: %w", unix.SignalName(sig), err)
	}
	return nil
}

// Destroy ends the daemon, kills its shims and what runs below them, unmounts
// what is mounted below the directory and removes the directory. It is for the
// end of a test or demo; a clean one has nothing left to kill, which
// [Engine.Leftovers] tells beforehand.
func (e *Engine) Destroy() error {
	failed := []error{e.Stop()}
	shims, err := e.Shims()
	failed = append(failed, err)
	for _, shim := range shims {
		failed = append(failed, killTree(shim.PID), e.forget(shim))
	}
	mounts, err := e.Mounts()
	failed = append(failed, err)
	for _, mount := range slices.Backward(mounts) {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			failed = append(failed, fmt.Errorf("private engine: unmount %s: %w", mount, err))
		}
	}
	if err := errors.Join(failed...); err != nil {
		return err // a directory with something alive below it is not removed
	}
	if err := os.RemoveAll(e.dir); err != nil {
		return fmt.Errorf("private engine: %w", err)
	}
	return nil
}

// Leftovers names the shims and the mounts that the engine has now.
func (e *Engine) Leftovers() ([]string, error) {
	shims, err := e.Shims()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, shim := range shims {
		out = append(out, "shim "+shim.ContainerID)
	}
	mounts, err := e.Mounts()
	if err != nil {
		return nil, err
	}
	for _, mount := range mounts {
		out = append(out, "mount "+strings.TrimPrefix(mount, e.dir))
	}
	return out, nil
}

// Mounts lists the mount points below the directory, outermost first.
func (e *Engine) Mounts() ([]string, error) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	var mounts []string
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && strings.HasPrefix(fields[4], e.dir+"/") {
			mounts = append(mounts, fields[4])
		}
	}
	return mounts, nil
}

// Shim is the process between the daemon and one container.
type Shim struct {
	PID         int
	Namespace   string
	ContainerID string
}

// Shims finds the engine's shims by their command line.
func (e *Engine) Shims() ([]Shim, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("private engine: %w", err)
	}
	var shims []Shim
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("private engine: %w", err)
		}
		args := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
		if !strings.Contains(filepath.Base(args[0]), "containerd-shim") || argument(args, "-address") != e.Address() {
			continue
		}
		shims = append(shims, Shim{PID: pid, Namespace: argument(args, "-namespace"), ContainerID: argument(args, "-id")})
	}
	return shims, nil
}

func argument(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func (e *Engine) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		// The socket is bound after every plugin was loaded.
		conn, err := net.Dial("unix", e.Address())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("private engine: not ready: %w; see %s", err, e.LogPath())
		case <-e.exited:
			return fmt.Errorf("private engine: the daemon ended at once; see %s", e.LogPath())
		case <-tick.C:
		}
	}
}

// killTree kills a process and its descendants, deepest first, and waits until
// they are gone.
func killTree(pid int) error {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("private engine: %w", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("private engine: pidfd: %w", err)
	}
	var failed []error
	for _, child := range strings.Fields(string(children)) {
		n, err := strconv.Atoi(child)
		if err == nil {
			err = killTree(n)
		}
		failed = append(failed, err)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		failed = append(failed, fmt.Errorf("private engine: kill process %d: %w", pid, err))
	}
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) { // Go's scheduler interrupts
		n, err = unix.Poll(set, int(stopTimeout.Milliseconds()))
	}
	if n == 0 && err == nil {
		failed = append(failed, fmt.Errorf("private engine: process %d does not end", pid))
	}
	return errors.Join(append(failed, unix.Close(fd))...)
}

// Where shims and the runtime keep things outside of the daemon's directories.
const (
	shimSockets = "/run/containerd/s"
	runtimeRoot = "/run/containerd/runc"
)

// forget removes what a killed shim leaves outside of the directory: the
// runtime's state of its container and its socket.
func (e *Engine) forget(s Shim) error {
	root := filepath.Join(runtimeRoot, s.Namespace)
	if _, err := os.Lstat(filepath.Join(root, s.ContainerID)); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "runc", "--root", root, "delete", "--force", s.ContainerID).CombinedOutput(); err != nil {
			return fmt.Errorf("private engine: runc delete: %w: %s", err, out)
		}
	}
	if err := os.Remove(e.socketOf(s)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("private engine: %w", err)
	}
	return nil
}

// socketOf is where the shim listens, by containerd's own rule.
func (e *Engine) socketOf(s Shim) string {
	name := sha256.Sum256([]byte(filepath.Join(e.Address(), s.Namespace, s.ContainerID)))
	return filepath.Join(shimSockets, hex.EncodeToString(name[:]))
}

func majorVersion(ctx context.Context, binary string) (int, error) {
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("private engine: %s --version: %w; install the containerd package", binary, err)
	}
	// containerd github.com/… VERSION REVISION
	fields := strings.Fields(string(out))
	if len(fields) < 3 {
		return 0, fmt.Errorf("private engine: %s --version says nothing that is understood", binary)
	}
	major, err := strconv.Atoi(strings.TrimPrefix(strings.SplitN(fields[2], ".", 2)[0], "v"))
	if err != nil {
		return 0, fmt.Errorf("private engine: %s --version says nothing that is understood", binary)
	}
	return major, nil
}

// configuration is the least that a daemon needs to run containers on its own:
// no CRI, no snapshotters that this needs a device for.
func configuration(e *Engine, major int) string {
	version := 2
	disabled := []string{
		"io.containerd.grpc.v1.cri",
		"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
		"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
		"io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp",
	}
	if major >= 2 {
		version = 3
		disabled = append(disabled, "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
			"io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs")
	}
	var quoted []string
	for _, d := range disabled {
		quoted = append(quoted, strconv.Quote(d))
	}
	return fmt.Sprintf("version = %d\nroot = %q\nstate = %q\noom_score = 0\ndisabled_plugins = [%s]\n\n[grpc]\n  address = %q\n",
		version, filepath.Join(e.dir, "root"), filepath.Join(e.dir, "state"), strings.Join(quoted, ", "), e.Address())
}
