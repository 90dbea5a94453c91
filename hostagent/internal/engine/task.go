package engine

import (
	"context"
	"errors"
	"fmt"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// List returns every container of our namespace that carries our labels, without
// its task: that is a question to each one's shim, and one that hangs must not
// hold the others up. Others in the namespace are not ours and are left out.
func (e *Engine) List(ctx context.Context) ([]Container, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	records, err := e.client.ContainerService().List(call)
	if err != nil {
		return nil, fmt.Errorf("engine: list: %w", native(err))
	}
	var out []Container
	for _, record := range records {
		if c, ok := containerOf(record); ok {
			out = append(out, c)
		}
	}
	return out, nil
}

// Inspect returns one container with its task, or [ErrNotFound]. A container
// without our labels is [ErrOther].
func (e *Engine) Inspect(ctx context.Context, id string) (Container, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	return e.inspect(call, id)
}

func (e *Engine) inspect(ctx context.Context, id string) (Container, error) {
	c, err := e.record(ctx, id)
	if err != nil {
		return Container{}, err
	}
	task, err := e.task(ctx, id)
	if errors.Is(err, ErrNoTask) {
		return c, nil
	}
	if err != nil {
		return Container{}, err
	}
	c.Task = &task
	return c, nil
}

// record reads a container without its task.
func (e *Engine) record(ctx context.Context, id string) (Container, error) {
	record, err := e.client.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return Container{}, ErrNotFound
	}
	if err != nil {
		return Container{}, fmt.Errorf("engine: container %s: %w", id, native(err))
	}
	c, ok := containerOf(record)
	if !ok {
		return Container{}, ErrOther
	}
	return c, nil
}

// verify is what comes before every effect on an existing container: the
// record must be the very one that the caller means.
func (e *Engine) verify(ctx context.Context, c Identity) error {
	_, err := e.exact(ctx, c)
	return err
}

// exact is the record that verify has proved.
func (e *Engine) exact(ctx context.Context, c Identity) (Container, error) {
	found, err := e.record(ctx, c.ID)
	if err != nil {
		return Container{}, err
	}
	if found.Nonce != c.Nonce || (c.Created != 0 && found.Created != c.Created) {
		return Container{}, ErrOther
	}
	return found, nil
}

// task reads a task's state. "Not found" is an explicit answer of the daemon;
// every other failure is not taken for it. A shim that does not answer the daemon
// in time has [TaskUnknown], whichever way the daemon says so.
func (e *Engine) task(ctx context.Context, id string) (Task, error) {
	answer, err := e.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err = native(err); errdefs.IsNotFound(err) {
		return Task{}, ErrNoTask
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return Task{State: TaskUnknown}, nil // the daemon's own deadline, not ours
	}
	if err != nil {
		return Task{}, fmt.Errorf("engine: task of %s: %w", id, err)
	}
	return taskOf(answer.GetProcess()), nil
}

func taskOf(p *tasktypes.Process) Task {
	t := Task{State: TaskUnknown, PID: int64(p.GetPid())}
	switch p.GetStatus() {
	case tasktypes.Status_CREATED:
		t.State = TaskCreated
	case tasktypes.Status_RUNNING:
		t.State = TaskRunning
	case tasktypes.Status_STOPPED:
		t.State = TaskStopped
		t.Exit = exitOf(p.GetExitStatus(), p.GetExitedAt())
	case tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		t.State = TaskPaused
	}
	return t
}

// exitOf trusts a status only with the time at which the shim saw the end: one
// that nobody observed has none.
func exitOf(status uint32, at *timestamppb.Timestamp) *Exit {
	if at == nil || at.AsTime().Unix() <= 0 || status > 255 {
		return nil
	}
	return &Exit{Code: int64(status), At: protocol.TimestampOf(at.AsTime())}
}

// Start lets the created process run the worker. A task that already runs, or
// already ran, is fine.
func (e *Engine) Start(ctx context.Context, c Identity) error {
	const op = "start"
	call, cancel := e.call(ctx, e.o.Deadlines.Start)
	defer cancel()
	if err := e.verify(call, c); err != nil {
		return failed(op, c.ID, err)
	}
	_, err := e.client.TaskService().Start(call, &tasks.StartRequest{ContainerID: c.ID})
	if err == nil {
		return nil
	}
	if task, look := e.task(call, c.ID); look == nil && (task.State == TaskRunning || task.Exit != nil) {
		return nil
	}
	return failed(op, c.ID, err)
}

// Task returns the state of the container's task, [ErrNoTask] or [ErrNotFound].
func (e *Engine) Task(ctx context.Context, c Identity) (Task, error) {
	call, cancel := e.call(ctx, e.o.Deadlines.Read)
	defer cancel()
	if err := e.verify(call, c); err != nil {
		return Task{}, err
	}
	return e.task(call, c.ID)
}

// Wait returns once the shim reports the end of the task, with its own
// observation. An error means only that nothing was learnt; [ErrNoTask] and
// [ErrNotFound] are told apart. The context bounds it.
func (e *Engine) Wait(ctx context.Context, c Identity) (Exit, error) {
	if _, err := e.Task(ctx, c); err != nil {
		return Exit{}, err
	}
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	call, stop := e.call(call, longestWait)
	defer stop()
	answer, err := e.client.TaskService().Wait(call, &tasks.WaitRequest{ContainerID: c.ID})
	if err = native(err); errdefs.IsNotFound(err) {
		return Exit{}, ErrNoTask
	}
	if err != nil {
		return Exit{}, fmt.Errorf("engine: wait for %s: %w", c.ID, err)
	}
	exit := exitOf(answer.GetExitStatus(), answer.GetExitedAt())
	if exit == nil {
		return Exit{}, fmt.Errorf("engine: wait for %s: the status was made up by the engine", c.ID)
	}
	return *exit, nil
}

// Kill sends a signal to the task's first process, or with all to every
// process of the task. A process that is gone is fine, and so is a task that
// is: whether anything still runs is for other witnesses to say.
func (e *Engine) Kill(ctx context.Context, c Identity, sig unix.Signal, all bool) error {
	const op = "kill"
	call, cancel := e.call(ctx, e.o.Deadlines.Kill)
	defer cancel()
	if err := e.verify(call, c); err != nil {
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return failed(op, c.ID, err)
	}
	_, err := e.client.TaskService().Kill(call, &tasks.KillRequest{ContainerID: c.ID, Signal: uint32(sig), All: all})
	if err = native(err); err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return failed(op, c.ID, err)
}
