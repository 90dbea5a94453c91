package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
)

// Removal retries with this backoff: thousands of slow children are normal.
const (
	removeBackoffFirst = 2 * time.Millisecond
	removeBackoffMost  = 500 * time.Millisecond
)

// killPasses bounds the passes of one Kill over a group that forks meanwhile.
const killPasses = 32

// Kill sends SIGKILL to everything inside, on both levels. On v2 the kernel
// does it at once; on v1 each process is held by a pidfd and proved to be
// inside before it is signalled, in passes until a pass finds nobody new. It
// does not wait for the ends: see [Group.Populated] and [Group.Remove].
func (g *Group) Kill() error { return g.kill(map[process.Identity]bool{}) }

// kill is Kill that leaves out, on v1, whom an earlier one has signalled:
// thousands of dying processes are not to be proved again and again.
func (g *Group) kill(signalled map[process.Identity]bool) error {
	err := g.check()
	if gone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroup: kill: %w", err)
	}
	if g.m.mode == protocol.CgroupV2 {
		err := writeControl(filepath.Join(g.dir(g.m.memory), "cgroup.kill"), "1")
		if !gone(err) {
			return err
		}
		// cgroup.kill is younger than the rest of v2: fall through to pidfds.
		if err := g.check(); gone(err) {
			return nil
		}
	}
	for range killPasses {
		fresh := 0
		seen := map[int64]bool{} // in this pass: every hierarchy lists the same ones
		for _, h := range g.m.hierarchies {
			pids, err := g.processes(h)
			if err != nil {
				return err
			}
			for _, pid := range pids {
				if seen[pid] {
					continue
				}
				seen[pid] = true
				first, err := g.killOne(pid, signalled)
				if err != nil {
					return err
				}
				if first {
					fresh++
				}
			}
		}
		if fresh == 0 {
			return nil
		}
	}
	return nil // still forking: the caller sees it populated and comes again
}

// killOne signals one listed process and reports whether it was new.
func (g *Group) killOne(pid int64, signalled map[process.Identity]bool) (bool, error) {
	if pid <= 1 {
		return false, nil // of a PID namespace outside of ours: nobody that we made
	}
	id, err := process.Identify(pid)
	if errors.Is(err, process.ErrGone) || (err == nil && signalled[id]) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	handle, err := process.Open(id)
	if errors.Is(err, process.ErrGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	inside, err := g.Holds(pid)
	if err == nil && inside {
		err = handle.Signal(unix.SIGKILL)
		if errors.Is(err, process.ErrGone) {
			err = nil
		}
		signalled[id] = true
	}
	return inside, errors.Join(err, handle.Close())
}

// Remove removes leaf and parent in every hierarchy, leaf first, and reports
// whether there was anything. Before the first removal it looks at every name
// inside and stops with [ErrForeign] at one that we did not make, and with
// [ErrNotOurs] at a parent that is not the one that was made. It kills what is
// still inside, retries busy directories with backoff until the context ends,
// and then returns an error that wraps [ErrPopulated] or the last refusal.
func (g *Group) Remove(ctx context.Context) (protocol.Removed, error) {
	if err := g.check(); err != nil && !gone(err) {
		return "", fmt.Errorf("cgroup: remove: %w", err)
	}
	if err := g.checkNames(); err != nil {
		return "", err
	}
	outcome := protocol.RemovedAbsent
	signalled := map[process.Identity]bool{}
	for backoff := removeBackoffFirst; ; backoff = min(2*backoff, removeBackoffMost) {
		var busy error
		for _, h := range g.m.hierarchies {
			for _, dir := range []string{filepath.Join(g.dir(h), leafName), g.dir(h)} {
				err := unix.Rmdir(dir)
				switch {
				case err == nil:
					outcome = protocol.RemovedByUs
					failpoint.Hit(failpoint.CgroupHalfRemoved)
				case errors.Is(err, fs.ErrNotExist):
				case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
					busy = fmt.Errorf("%w: %s", ErrPopulated, dir)
				default:
					return "", fmt.Errorf("cgroup: remove %s: %w", dir, err)
				}
			}
		}
		if busy == nil {
			return outcome, nil
		}
		if err := g.kill(signalled); err != nil {
			return "", err
		}
		timer := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", fmt.Errorf("%w: %w", busy, ctx.Err())
		case <-timer.C:
		}
	}
}

// checkNames refuses a group that holds a directory that we did not make.
func (g *Group) checkNames() error {
	for _, h := range g.m.hierarchies {
		parent := g.dir(h)
		names, err := subdirectories(parent)
		if err != nil {
			return err
		}
		for _, name := range names {
			if name != leafName {
				return fmt.Errorf("%w: %s", ErrForeign, filepath.Join(parent, name))
			}
		}
		names, err = subdirectories(filepath.Join(parent, leafName))
		if err != nil {
			return err
		}
		if len(names) > 0 {
			return fmt.Errorf("%w: %s", ErrForeign, filepath.Join(parent, leafName, names[0]))
		}
	}
	return nil
}
