package metrics

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/worker"
	"github.com/quittance/quittance/protocol"
)

// Engine counts and times what workers ask of an engine. Wait is not among it:
// it lasts as long as the worker.
func (f *Figures) Engine(next worker.Engine) worker.Engine { return &timedEngine{next, f} }

type timedEngine struct {
	worker.Engine
	figures *Figures
}

func (e *timedEngine) ended(operation string, began time.Time, err error) {
	e.figures.engineCalls.WithLabelValues(operation, string(engine.DispositionOf(err))).Inc()
	e.figures.engineSeconds.WithLabelValues(operation).Observe(time.Since(began).Seconds())
}

// ResolveImage implements [worker.Engine].
func (e *timedEngine) ResolveImage(ctx context.Context, reference string) (image engine.Image, err error) {
	defer func(began time.Time) { e.ended("resolve_image", began, err) }(time.Now())
	return e.Engine.ResolveImage(ctx, reference)
}

// Create implements [worker.Engine].
func (e *timedEngine) Create(ctx context.Context, r engine.CreateRequest) (created engine.Created, err error) {
	defer func(began time.Time) { e.ended("create", began, err) }(time.Now())
	return e.Engine.Create(ctx, r)
}

// Start implements [worker.Engine].
func (e *timedEngine) Start(ctx context.Context, c engine.Identity) (err error) {
	defer func(began time.Time) { e.ended("start", began, err) }(time.Now())
	return e.Engine.Start(ctx, c)
}

// Inspect implements [worker.Engine].
func (e *timedEngine) Inspect(ctx context.Context, id string) (c engine.Container, err error) {
	defer func(began time.Time) { e.ended("inspect", began, err) }(time.Now())
	return e.Engine.Inspect(ctx, id)
}

// Task implements [worker.Engine].
func (e *timedEngine) Task(ctx context.Context, c engine.Identity) (task engine.Task, err error) {
	defer func(began time.Time) { e.ended("task", began, err) }(time.Now())
	return e.Engine.Task(ctx, c)
}

// Kill implements [worker.Engine].
func (e *timedEngine) Kill(ctx context.Context, c engine.Identity, sig unix.Signal, all bool) (err error) {
	defer func(began time.Time) { e.ended("kill", began, err) }(time.Now())
	return e.Engine.Kill(ctx, c, sig, all)
}

// DeleteTask implements [worker.Engine].
func (e *timedEngine) DeleteTask(ctx context.Context, c engine.Identity) (removed protocol.Removed, err error) {
	defer func(began time.Time) { e.ended("delete_task", began, err) }(time.Now())
	return e.Engine.DeleteTask(ctx, c)
}

// DeleteContainer implements [worker.Engine].
func (e *timedEngine) DeleteContainer(ctx context.Context, c engine.Identity) (removal engine.Removal, err error) {
	defer func(began time.Time) { e.ended("delete_container", began, err) }(time.Now())
	return e.Engine.DeleteContainer(ctx, c)
}
