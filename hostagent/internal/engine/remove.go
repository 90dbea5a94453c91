package engine

import (
	"context"
	"errors"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/protocol"
)

// longestWait bounds a Wait whose caller forgot to: longer than any worker lives.
const longestWait = 31 * 24 * time.Hour

// DeleteTask removes the stopped task and ends its shim. An absent task or
// container is [protocol.RemovedAbsent]; a running one is [ErrRunning]. The
// status in the engine's answer is dropped: it may be made up, and the true one
// was durable before this (I18).
func (e *Engine) DeleteTask(ctx context.Context, c Identity) (protocol.Removed, error) {
	const op = "delete task of"
	call, cancel := e.call(ctx, e.o.Deadlines.Delete)
	defer cancel()
	if err := e.verify(call, c); err != nil {
		if errors.Is(err, ErrNotFound) {
			return protocol.RemovedAbsent, nil
		}
		return "", failed(op, c.ID, err)
	}
	// Asked first because daemons disagree on how they refuse it.
	switch task, err := e.task(call, c.ID); {
	case errors.Is(err, ErrNoTask):
		return protocol.RemovedAbsent, nil
	case err != nil:
		return "", failed(op, c.ID, err)
	case task.State == TaskRunning || task.State == TaskPaused:
		return "", refused(op, c.ID, ErrRunning)
	}
	_, err := e.client.TaskService().Delete(call, &tasks.DeleteTaskRequest{ContainerID: c.ID})
	err = native(err)
	switch {
	case err == nil:
		return protocol.RemovedByUs, nil
	case errdefs.IsNotFound(err):
		return protocol.RemovedAbsent, nil
	}
	return "", failed(op, c.ID, err)
}

// DeleteContainer removes record, snapshot and lease, after an explicit answer
// that there is no task, after no shim was found or a forgotten one was ended,
// and after no process of its hooks is left; otherwise it is refused with
// [ErrRunning], and the caller looks at the task again. Absent parts are reported as such, so that an interrupted call
// can be repeated. For a creation whose outcome is unknown, c has only ID and
// Nonce: then the creation time is not compared.
func (e *Engine) DeleteContainer(ctx context.Context, c Identity) (Removal, error) {
	const op = "delete"
	call, cancel := e.call(ctx, e.o.Deadlines.Delete)
	defer cancel()
	if c.ID != ContainerID(c.Nonce) {
		// Snapshot and lease carry the same name and are removed by it.
		return Removal{}, refused(op, c.ID, ErrOther)
	}
	out := Removal{Container: protocol.RemovedAbsent, Snapshot: protocol.RemovedAbsent}
	recorded := true
	found, err := e.exact(call, c)
	switch {
	case errors.Is(err, ErrNotFound):
		recorded = false
	case err != nil:
		return Removal{}, failed(op, c.ID, err)
	}
	if recorded {
		if _, err := e.task(call, c.ID); !errors.Is(err, ErrNoTask) {
			if err == nil {
				return Removal{}, refused(op, c.ID, ErrRunning)
			}
			return Removal{}, failed(op+": look for the task of", c.ID, err)
		}
	}
	// While a shim runs a task may still land, and without the record nobody
	// could reach it.
	if err := e.endShim(call, c.ID); err != nil {
		return Removal{}, failed(op+": shim of", c.ID, err)
	}
	// Without its record nobody knows whether it had hooks.
	if !recorded || found.Hooks {
		if err := e.endHooks(call, c.ID); err != nil {
			return Removal{}, failed(op+": hooks of", c.ID, err)
		}
	}
	if recorded {
		switch err := e.client.ContainerService().Delete(call, c.ID); {
		case err == nil:
			out.Container = protocol.RemovedByUs
		case !errdefs.IsNotFound(err):
			return Removal{}, failed(op+": record of", c.ID, err)
		}
	}
	failpoint.Hit(failpoint.RecordRemoved)
	switch err := e.client.SnapshotService(e.o.Snapshotter).Remove(call, c.ID); {
	case err == nil:
		out.Snapshot = protocol.RemovedByUs
	case !errdefs.IsNotFound(err):
		return Removal{}, failed(op+": snapshot of", c.ID, err)
	}
	failpoint.Hit(failpoint.SnapshotRemoved)
	if err := e.client.LeasesService().Delete(call, leases.Lease{ID: c.ID}); err != nil && !errdefs.IsNotFound(err) {
		return Removal{}, failed(op+": lease of", c.ID, err)
	}
	return out, nil
}
