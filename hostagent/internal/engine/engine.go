package engine

import (
	"context"
	"errors"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
	"time"
)

var errNotYet = errors.New("engine: under construction")

// Engine is a connection to one containerd.
type Engine struct{}

// Open prepares the connection. It does not require that containerd answers
// now: [Engine.Health] and the hints say when it does.
func Open(ctx context.Context, o Options) (*Engine, error) { return nil, errNotYet }

// Close ends the connection and every watch.
func (e *Engine) Close() error { return errNotYet }

// Health is the last known state, from checks at a fixed interval.
func (e *Engine) Health() protocol.Engine { return protocol.Engine{} }

// Check asks containerd now and returns what Health then says.
func (e *Engine) Check(ctx context.Context) protocol.Engine { return protocol.Engine{} }

// LongestCall is the time after which an effect whose call timed out can no
// longer land.
func (e *Engine) LongestCall() time.Duration { return 0 }

// Events delivers hints until ctx ends, then closes the channel. It begins
// with a resync once connected and sends another after each reconnection; a
// slow receiver loses hints and gets a resync instead.
func (e *Engine) Events(ctx context.Context) <-chan Hint { return nil }

// List returns every container of our namespace that carries our labels, with
// its task.
func (e *Engine) List(ctx context.Context) ([]Container, error) { return nil, errNotYet }

// Inspect returns one container with its task, or [ErrNotFound].
func (e *Engine) Inspect(ctx context.Context, id string) (Container, error) {
	return Container{}, errNotYet
}

// ResolveImage checks that name@digest is present and unpacked. Otherwise the
// error wraps [ErrImage] and has the command that mends it.
func (e *Engine) ResolveImage(ctx context.Context, reference string) (Image, error) {
	return Image{}, errNotYet
}

// ImportImage loads an OCI or Docker archive, unpacks it and pins each image
// under name@digest.
func (e *Engine) ImportImage(ctx context.Context, file string) ([]Imported, error) {
	return nil, errNotYet
}

// PullImage fetches an image with containerd's own resolver, unpacks it and
// pins it under name@digest.
func (e *Engine) PullImage(ctx context.Context, reference string) (Imported, error) {
	return Imported{}, errNotYet
}

// Create makes lease, snapshot, container record and task. It never adopts
// what an earlier call left: then it is refused with [ErrExists].
func (e *Engine) Create(ctx context.Context, r CreateRequest) (Created, error) {
	return Created{}, errNotYet
}

// Start lets the created process run the worker. A task that already runs is
// fine.
func (e *Engine) Start(ctx context.Context, c Identity) error { return errNotYet }

// Task returns the state of the container's task, [ErrNoTask] or [ErrNotFound].
func (e *Engine) Task(ctx context.Context, c Identity) (Task, error) { return Task{}, errNotYet }

// Wait returns once the shim reports the end of the task, with its own
// observation. An error means only that nothing was learnt.
func (e *Engine) Wait(ctx context.Context, c Identity) (Exit, error) { return Exit{}, errNotYet }

// Kill sends a signal to the task's first process, or with all to every
// process of the task. A process that is gone is fine.
func (e *Engine) Kill(ctx context.Context, c Identity, sig unix.Signal, all bool) error {
	return errNotYet
}

// DeleteTask removes the stopped task and ends its shim. An absent task or
// container is [protocol.RemovedAbsent]; a running one is [ErrRunning].
func (e *Engine) DeleteTask(ctx context.Context, c Identity) (protocol.Removed, error) {
	return "", errNotYet
}

// DeleteContainer removes record, snapshot and lease, after an explicit answer
// that there is no task. Absent parts are reported as such. For a creation
// whose outcome is unknown, c has only ID and Nonce: then the creation time is
// not compared.
func (e *Engine) DeleteContainer(ctx context.Context, c Identity) (Removal, error) {
	return Removal{}, errNotYet
}

// Leftovers lists everything of ours on this machine: containers, tasks,
// snapshots and leases of the namespace, shims, mounts, log sinks and cgroups.
// What lives on purpose is in it too; the caller subtracts.
func (e *Engine) Leftovers(ctx context.Context, groups *cgroup.Manager) ([]Leftover, error) {
	return nil, errNotYet
}

// BuildSpec decides the whole OCI spec from the request and returns its exact
// bytes' digest with it.
func BuildSpec(r CreateRequest, initPath string) (*specs.Spec, protocol.Digest, error) {
	return nil, "", errNotYet
}

// DispositionOf says what became of an effect that returned err: done (nil),
// refused or unknown.
func DispositionOf(err error) protocol.Disposition { return protocol.Unknown }
