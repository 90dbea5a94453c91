package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/ociimage"
)

// runtimeEnv is all of the environment that runc gets: it would do things of its
// own with NOTIFY_SOCKET and others.
var runtimeEnv = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}

// live makes the container, runs the program in it and waits for its end. The
// calling goroutine has a thread for itself.
func (s *supervisor) live(image *ociimage.Image) (status int, err error) {
	if err := s.unpack(image); err != nil {
		return 0, err
	}
	relay, err := s.listenNotify()
	if err != nil {
		return 0, err
	}
	encoded, err := json.Marshal(s.spec(append(image.Entrypoint[:len(image.Entrypoint):len(image.Entrypoint)], s.config.Args...)))
	if err != nil {
		return 0, errors.Join(err, relay.close())
	}
	if err := os.WriteFile(s.path(specName), encoded, 0o600); err != nil {
		return 0, errors.Join(err, relay.close())
	}
	pid, err := s.start()
	if err != nil {
		return 0, errors.Join(err, relay.close())
	}
	status, err = s.attend(pid)
	return status, errors.Join(err, relay.close())
}

// start lets runc start the program and returns its process, which has become
// this one's child: runc itself is gone. It takes no longer than runtimeTime, and
// than stopTime once a stop was asked for: until then a healthy start ends and the
// program gets the signal.
func (s *supervisor) start() (pid int, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("subreaper: %w", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, s.config.Runtime, "--root", s.path(stateDir), "run", "--detach", "--bundle", s.dir, "--pid-file", s.path(pidName), s.config.Name)
	cmd.WaitDelay = pipeTime
	cmd.Env = runtimeEnv
	// Detached, the program gets these as they are.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// What a terminal sends to its group comes through this process.
		Setpgid: true,
	}
	started, collected := make(chan struct{}), make(chan []os.Signal)
	go func() { collected <- s.collect(started, cancel) }()
	err = cmd.Run()
	close(started)
	s.early = <-collected
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return 0, fmt.Errorf("runc: %w", err)
	}
	text, err := os.ReadFile(s.path(pidName))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}

// collect keeps the signals that come until the program has started, for it, and
// gives up a start that takes too long.
func (s *supervisor) collect(started <-chan struct{}, giveUp context.CancelCauseFunc) []os.Signal {
	var came []os.Signal
	signals := s.config.Signals
	limit := time.NewTimer(runtimeTime)
	defer limit.Stop()
	late := fmt.Errorf("the program was not started within %s", runtimeTime)
	for {
		select {
		case <-started:
			return came
		case <-limit.C:
			giveUp(late)
		case got, open := <-signals:
			if !open {
				signals = nil
				continue
			}
			came = append(came, got)
			if slices.Contains(stops, got) {
				signals = nil // what comes now is the next reader's
				late = fmt.Errorf("%s came, and the program was not started within %s", got, s.stopTime)
				limit.Reset(s.stopTime)
			}
		}
	}
}

// stops are the signals that ask for an end.
var stops = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT}

// unpack gives this thread mounts of its own, which vanish with the process
// however it ends, and puts the image's files into memory there: /run commonly
// permits no programs, and what is made anew from a verified archive at every
// start needs no trust in a cache.
func (s *supervisor) unpack(image *ociimage.Image) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	for _, dir := range []string{rootfsDir, etcDir, notifyName} {
		if err := os.Mkdir(s.path(dir), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(s.path(dir), 0o755); err != nil {
			return err
		}
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	data := "mode=0755,size=" + strconv.Itoa(2*ociimage.MaxBytes)
	if err := unix.Mount("tmpfs", s.path(rootfsDir), "tmpfs", flags, data); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	root, err := os.OpenRoot(s.path(rootfsDir))
	if err != nil {
		return err
	}
	defer root.Close() // nothing was written through it
	etc, err := os.OpenRoot(s.path(etcDir))
	if err != nil {
		return err
	}
	defer etc.Close() // nothing was written through it
	if err := image.Unpack(root); err != nil {
		return fmt.Errorf("archive %s: %w", s.config.Archive, err)
	}
	if err := s.writeAccounts(); err != nil {
		return err
	}
	if err := s.mountPoints(root, etc); err != nil {
		return err
	}
	s.refresh()
	if err := unix.Mount("", s.path(rootfsDir), "", unix.MS_REMOUNT|unix.MS_RDONLY|flags, ""); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	return nil
}

// attend passes signals on and keeps the machine's files fresh until the program
// has ended, and returns its status.
func (s *supervisor) attend(pid int) (status int, err error) {
	ended := make(chan error, 1)
	// The process is reaped after the last signal, so that no other one can have
	// got its number.
	go func() { ended <- awaitEnd(pid) }()
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for _, got := range s.early {
		s.pass(pid, got)
	}
	for {
		select {
		case err := <-ended:
			if err != nil {
				return 0, fmt.Errorf("process %d: %w", pid, err)
			}
			return reap(pid)
		case <-tick.C:
			s.refresh()
		case got, open := <-s.config.Signals:
			if !open {
				s.config.Signals = nil
				continue
			}
			s.pass(pid, got)
		}
	}
}

// pass sends a signal to the program once it can take it.
func (s *supervisor) pass(pid int, got os.Signal) {
	signal, known := got.(syscall.Signal)
	if !known {
		return
	}
	awaitHandler(pid, signal)
	if err := unix.Kill(pid, signal); err != nil {
		s.config.Log.Warn("signal was not passed on", "signal", signal, "error", err)
	}
}

// awaitEnd returns when the process is a zombie.
func awaitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func reap(pid int) (status int, err error) {
	var ended unix.WaitStatus
	for {
		_, err = unix.Wait4(pid, &ended, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	if ended.Signaled() {
		return 128 + int(ended.Signal()), nil
	}
	return ended.ExitStatus(), nil
}

// Bounds of awaitHandler.
const (
	handlerTime = 5 * time.Second
	handlerTick = 5 * time.Millisecond
)

// awaitHandler waits until the program can take a signal. The first process of a
// PID namespace never sees a signal that came before it had a handler: a stop
// during the start would be lost, and systemd would wait for its time-out. It
// must be seen twice: the kernel gives a process the program's name a moment
// before it takes the handlers of the one before away.
func awaitHandler(pid int, signal syscall.Signal) {
	deadline := time.NewTimer(handlerTime)
	defer deadline.Stop()
	tick := time.NewTicker(handlerTick)
	defer tick.Stop()
	for seen := 0; seen < 2; {
		if catches(pid, signal) {
			seen++
		} else {
			seen = 0
		}
		select {
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

// runcName begins the name of runc's own process, which becomes the program's
// and has handlers too.
const runcName = "Name:\trunc:["

// catches reports whether the program has a handler for the signal, or has ended.
func catches(pid int, signal syscall.Signal) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || strings.Contains(string(status), "\nState:\tZ") {
		return true
	}
	if strings.HasPrefix(string(status), runcName) {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nSigCgt:")
	mask, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	caught, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && caught&(1<<(uint(signal)-1)) != 0
}

// removeContainer lets runc end and forget what it knows of the container.
func (s *supervisor) removeContainer() error {
	if _, err := os.Stat(s.path(stateDir)); err != nil {
		return nil // runc never made any
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), runtimeTime, fmt.Errorf("not within %s", runtimeTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.config.Runtime, "--root", s.path(stateDir), "delete", "--force", s.config.Name)
	cmd.WaitDelay = pipeTime
	cmd.Env = runtimeEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("runc delete: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
