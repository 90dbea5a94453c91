// Package worker carries out core's effects: one goroutine per allocation, one
// effect at a time, in order, each step bounded and repeated until it is done.
//
//	create  cgroup and limits → baseline → capture → engine create → pidfd, namespaces
//	start   engine start
//	watch   pidfd, shim, OOM counters ──► exit ─► last counters ─► facts
//	stop    stop signal → grace → SIGKILL by pidfd, engine and cgroup, again and again
//	inspect what an earlier life of the agent left
//	remove  task → container, snapshot, lease → log sink → cgroups
//
// It owns the order of the steps, their retries, and the descriptors of a
// running allocation. It must not know numbering, receipts, reasons or bounds:
// it reports what it saw and core decides what that means. After a restart the
// same functions go on where the ledger says that the allocation stands (I15).
//
// A worker that is told to end (the agent stops) leaves everything as it is:
// the containers run on.
package worker

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/protocol"
)

// Engine is what a worker needs of the container engine. Every call is bounded.
type Engine interface {
	LongestCall() time.Duration
	ResolveImage(ctx context.Context, reference string) (engine.Image, error)
	Create(ctx context.Context, r engine.CreateRequest) (engine.Created, error)
	Start(ctx context.Context, c engine.Identity) error
	Inspect(ctx context.Context, id string) (engine.Container, error)
	Task(ctx context.Context, c engine.Identity) (engine.Task, error)
	Wait(ctx context.Context, c engine.Identity) (engine.Exit, error)
	Kill(ctx context.Context, c engine.Identity, sig unix.Signal, all bool) error
	DeleteTask(ctx context.Context, c engine.Identity) (protocol.Removed, error)
	DeleteContainer(ctx context.Context, c engine.Identity) (engine.Removal, error)
}
