package worker

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/protocol"
)

// remove takes everything of the allocation away and reports it.
func (w *worker) remove(e core.RemoveEffect) {
	w.close() // namespaces and mounts must not be held open by us
	w.profile = e.Profile
	removal, err := w.removeAll(w.m.ctx, e)
	if err != nil {
		return // the agent stops; its next life goes on
	}
	failpoint.Hit(failpoint.Removed)
	w.post(core.WorkRemoved{Number: w.number, Removal: removal})
}

// removeAll takes the steps in order, each until it is done. The only error is
// that ctx ended.
func (w *worker) removeAll(ctx context.Context, e core.RemoveEffect) (protocol.Removal, error) {
	r := protocol.Removal{
		Task: protocol.RemovedAbsent, Container: protocol.RemovedAbsent, Snapshot: protocol.RemovedAbsent,
		Cgroup: protocol.RemovedAbsent, LogSink: protocol.RemovedAbsent, Devices: protocol.RemovedAbsent,
	}
	known, err := w.settle(ctx, e)
	if err != nil {
		return r, err
	}
	err = w.repeat(ctx, "remove task", func(ctx context.Context) error {
		removed, err := w.endTask(ctx, known)
		keep(&r.Task, removed)
		return err
	})
	if err != nil {
		return r, err
	}
	failpoint.Hit(failpoint.TaskRemoved)
	err = w.repeat(ctx, "remove container", func(ctx context.Context) error {
		removed, err := w.m.cfg.Engine.DeleteContainer(ctx, known)
		keep(&r.Container, removed.Container)
		keep(&r.Snapshot, removed.Snapshot)
		if errors.Is(err, engine.ErrRunning) {
			// A task of a creation that had timed out landed late.
			late, again := w.endTask(ctx, known)
			keep(&r.Task, late)
			err = errors.Join(err, again)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	failpoint.Hit(failpoint.ContainerRemoved)
	if err := w.repeat(ctx, "end log sink", func(ctx context.Context) error {
		err := w.endSink(ctx, e.Nonce, &r.LogSink)
		if err != nil && ctx.Err() == nil {
			// The container is gone and somebody inside its cgroup holds the
			// output open: a device's hook that hung, for example, whose runtime
			// was given up.
			err = errors.Join(err, w.killRest(e))
		}
		return err
	}); err != nil {
		return r, err
	}
	failpoint.Hit(failpoint.SinkEnded)
	err = w.repeat(ctx, "remove cgroup", func(ctx context.Context) error {
		group, err := w.m.cfg.Groups.Find(e.Nonce, w.refOf(e))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, removeGroupTime)
		defer cancel()
		removed, err := group.Remove(ctx)
		keep(&r.Cgroup, removed)
		if errors.Is(err, cgroup.ErrForeign) || errors.Is(err, cgroup.ErrNotOurs) {
			return fmt.Errorf("removal stopped before anything was touched: %w", err)
		}
		return err
	})
	return r, err
}

// endTask deletes the task. The process was seen to end, or never ran; what may
// be left is a created init or a child that outlived it.
func (w *worker) endTask(ctx context.Context, known engine.Identity) (protocol.Removed, error) {
	removed, err := w.m.cfg.Engine.DeleteTask(ctx, known)
	if errors.Is(err, engine.ErrRunning) {
		err = errors.Join(err, w.m.cfg.Engine.Kill(ctx, known, unix.SIGKILL, true))
	}
	return removed, err
}

// keep remembers over the tries of a step that something was removed.
func keep(known *protocol.Removed, now protocol.Removed) {
	if now == protocol.RemovedByUs {
		*known = now
	}
}

// settle finds the exact container that is to be removed. A creation that may
// still land is looked for again after the longest engine deadline (I11).
func (w *worker) settle(ctx context.Context, e core.RemoveEffect) (engine.Identity, error) {
	known := engine.Identity{ID: engine.ContainerID(e.Nonce), Nonce: e.Nonce}
	if e.Created != nil {
		known.Created = e.Created.Container.Created
		return known, nil
	}
	waited := !e.Unsettled
	err := w.repeat(ctx, "find container", func(ctx context.Context) error {
		for {
			c, err := w.m.cfg.Engine.Inspect(ctx, known.ID)
			switch {
			case err == nil && c.Nonce != e.Nonce:
				return engine.ErrOther
			case err == nil:
				known = c.Identity
				return nil
			case !errors.Is(err, engine.ErrNotFound):
				return err
			case waited:
				return nil
			}
			if !pause(ctx, w.m.cfg.Engine.LongestCall()) {
				return errStopping
			}
			waited = true
		}
	})
	return known, err
}

// killRest kills whatever is left in the allocation's own cgroup.
func (w *worker) killRest(e core.RemoveEffect) error {
	group, err := w.m.cfg.Groups.Find(e.Nonce, w.refOf(e))
	if err != nil {
		return err
	}
	return group.Kill()
}

// endSink waits for the log sink's process, whose input ended with the task.
func (w *worker) endSink(ctx context.Context, nonce protocol.ID, removed *protocol.Removed) error {
	status, err := logsink.Inspect(w.m.cfg.LogDir, nonce)
	if err != nil {
		return err
	}
	if status == logsink.StatusNone {
		return nil
	}
	*removed = protocol.RemovedByUs
	if status != logsink.StatusRunning {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, removeGroupTime)
	defer cancel()
	if _, err := logsink.AwaitEnd(wait, w.m.cfg.LogDir, nonce); err != nil {
		return err
	}
	if status, err = logsink.Inspect(w.m.cfg.LogDir, nonce); err != nil {
		return err
	}
	if status == logsink.StatusRunning {
		return fmt.Errorf("the log sink still runs: somebody holds the container's output open")
	}
	return nil
}
