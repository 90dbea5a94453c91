package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/ociimage"
)

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
	cmd := exec.Command(s.config.Runtime, "--root", s.path(stateDir), "run", "--bundle", s.dir, "--pid-file", s.path(pidName), s.config.Name)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// What a terminal sends to its group comes once, through this process.
		Setpgid: true,
	}
	if err := cmd.Start(); err != nil {
		return 0, errors.Join(fmt.Errorf("runc: %w", err), relay.close())
	}
	ended := make(chan struct{})
	helpers := make(chan struct{})
	go func() {
		defer close(helpers)
		s.attend(ended, cmd.Process)
	}()
	err = cmd.Wait()
	close(ended)
	<-helpers
	err = errors.Join(onlyStart(err), relay.close())
	state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && state.Signaled() {
		return 128 + int(state.Signal()), err
	}
	return cmd.ProcessState.ExitCode(), err
}

// onlyStart leaves out that the program ended with a status of its own.
func onlyStart(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

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
	if err := s.writeAccounts(etc); err != nil {
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

// attend passes signals on and keeps the machine's files fresh until ended is
// closed.
func (s *supervisor) attend(ended <-chan struct{}, runc *os.Process) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			s.refresh()
		case signal, open := <-s.config.Signals:
			if !open {
				s.config.Signals = nil
				continue
			}
			s.awaitHandler(ended, signal)
			// runc has ended in the meantime where this fails.
			if err := runc.Signal(signal); err != nil {
				s.config.Log.Debug("signal was not passed on", "signal", signal, "error", err)
			}
		}
	}
}

// Bounds of awaitHandler.
const (
	handlerTime = 5 * time.Second
	handlerTick = 5 * time.Millisecond
)

// awaitHandler waits until the program can take a signal. The first process of a
// PID namespace never sees a signal that came before it had a handler: a stop
// during the start would be lost, and systemd would wait for its time-out.
func (s *supervisor) awaitHandler(ended <-chan struct{}, signal os.Signal) {
	deadline := time.NewTimer(handlerTime)
	defer deadline.Stop()
	tick := time.NewTicker(handlerTick)
	defer tick.Stop()
	for !s.catches(signal) {
		select {
		case <-ended:
			return
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

// catches reports whether the program runs and has a handler for the signal.
func (s *supervisor) catches(signal os.Signal) bool {
	number, ok := signal.(syscall.Signal)
	if !ok {
		return true
	}
	pid, err := os.ReadFile(s.path(pidName))
	if err != nil || len(pid) == 0 {
		return false
	}
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(status), "\nSigCgt:")
	mask, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	caught, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && caught&(1<<(uint(number)-1)) != 0
}

// removeContainer lets runc end and forget what it knows of the container.
func (s *supervisor) removeContainer() error {
	if _, err := os.Stat(s.path(stateDir)); err != nil {
		return nil // runc never made any
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), runtimeTime, fmt.Errorf("not within %s", runtimeTime))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.config.Runtime, "--root", s.path(stateDir), "delete", "--force", s.config.Name)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("runc delete: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
