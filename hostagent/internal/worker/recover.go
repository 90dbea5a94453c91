package worker

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"time"

	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
)

// inspect finds out what an earlier life of the agent left of an allocation
// whose process is not known to have ended.
func (w *worker) inspect(e core.InspectEffect) {
	w.profile = e.Profile
	var result core.Event
	var end *protocol.Exit
	err := w.repeat(w.m.ctx, "inspect", func(ctx context.Context) error {
		var err error
		result, end, err = w.look(ctx, e)
		return err
	})
	switch {
	case err != nil: // the agent stops
	case end != nil:
		w.finish(*end)
	default:
		w.post(result)
	}
}

// look makes one try at it: an event, or how the process ended.
func (w *worker) look(ctx context.Context, e core.InspectEffect) (core.Event, *protocol.Exit, error) {
	c, err := w.m.cfg.Engine.Inspect(ctx, engine.ContainerID(e.Nonce))
	found := err == nil
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return nil, nil, err
	}
	if e.Created == nil {
		// The identity is made durable before any start: none was asked for.
		return core.WorkNeverRan{Number: w.number}, nil, nil
	}
	w.identity = engine.Identity{ID: e.Created.Container.ID, Nonce: e.Created.Container.Nonce, Created: e.Created.Container.Created}
	w.baseline = e.Created.Baseline
	if found && c.Identity != w.identity {
		return nil, nil, engine.ErrOther
	}
	if e.Rebooted {
		// Counters and processes of the earlier boot are gone with it.
		return nil, &protocol.Exit{Source: protocol.ExitFromReboot}, nil
	}
	if w.group, err = w.m.cfg.Groups.Find(e.Nonce, e.Created.Cgroup); err != nil {
		return nil, nil, err
	}
	if w.proc != nil {
		w.close() // of an earlier try
	}
	err = w.hold(process.Identity{PID: e.Created.PID, StartTicks: e.Created.StartTicks})
	alive := err == nil
	if err != nil && !errors.Is(err, process.ErrGone) && !errors.Is(err, channel.ErrExited) && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if alive {
		// A number used again within one clock tick has the same start time;
		// only our own cgroup tells it apart (I17).
		if alive, err = w.group.Holds(e.Created.PID); err != nil {
			return nil, nil, err
		}
		if !alive {
			w.close()
		}
	}
	switch {
	case alive && !e.Ran && found && c.Task != nil && c.Task.State == engine.TaskCreated:
		return core.WorkNeverRan{Number: w.number}, nil, nil
	case alive:
		return core.WorkRunning{Number: w.number}, nil, nil
	case found && c.Task != nil:
		exit := w.exitBefore(ctx, *c.Task)
		return nil, &exit, ctx.Err()
	}
	return nil, &protocol.Exit{Source: protocol.ExitFromNone}, nil
}

// stopUnwatched ends a process whose start failed or is unknown. A stop that
// crossed the report of the end finds nothing to do.
func (w *worker) stopUnwatched(e core.StopEffect) {
	if w.ended {
		return
	}
	if w.startWas == protocol.Unknown {
		// The process may have run and may still begin to: what the engine says
		// of the task now proves neither. Its end is a fact (I11).
		w.watch(w.m.ctx, &e)
		return
	}
	never := false
	err := w.repeat(w.m.ctx, "inspect", func(ctx context.Context) error {
		task, err := w.m.cfg.Engine.Task(ctx, w.identity)
		never = err == nil && task.State == engine.TaskCreated || errors.Is(err, engine.ErrNoTask)
		if errors.Is(err, engine.ErrNoTask) || errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return
	}
	if never {
		w.ended = true
		w.post(core.WorkNeverRan{Number: w.number})
		return
	}
	w.watch(w.m.ctx, &e)
}

// removeGroupTime bounds one try at removing cgroups that are busy.
const removeGroupTime = 10 * time.Second

// refOf is where an allocation's group is: as recorded, or by its nonce alone
// where the creation ended before it was recorded or in an earlier boot.
func (w *worker) refOf(e core.RemoveEffect) protocol.CgroupRef {
	if e.Created != nil && e.Created.BootID == w.m.cfg.BootID {
		return e.Created.Cgroup
	}
	return protocol.CgroupRef{Mode: w.m.cfg.Groups.Mode(), Path: path.Join(w.m.cfg.Groups.Root(), string(e.Nonce))}
}
