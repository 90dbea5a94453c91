package engine

import (
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// Namespace is the containerd namespace that holds everything of ours.
const Namespace = "quittance"

// ContainerID is the identifier of the container with the nonce.
func ContainerID(nonce protocol.ID) string { return "q-" + string(nonce) }

// Errors that callers tell apart. Each is also classified by [DispositionOf].
var (
	// ErrNotFound says that the engine knows no such container.
	ErrNotFound = errors.New("engine: no such container")
	// ErrNoTask says that the container exists and has no task.
	ErrNoTask = errors.New("engine: the container has no task")
	// ErrExists says that a container with the identifier already exists: an
	// earlier call, perhaps of an earlier life of the agent, made it. Look at
	// it with Inspect and retire it; it is never started by a second Create.
	ErrExists = errors.New("engine: the container already exists")
	// ErrOther says that the container is another one than the caller means:
	// its nonce or creation time differ. Nothing was touched.
	ErrOther = errors.New("engine: another container has this identifier; nothing was touched")
	// ErrRunning says that the task has not ended, so that it cannot be deleted.
	ErrRunning = errors.New("engine: the task is still running")
	// ErrUnavailable says that the engine does not answer. Try again when
	// [Engine.Health] says that it is available.
	ErrUnavailable = errors.New("engine: containerd does not answer")
	// ErrImage says that the image is absent or not unpacked; the message has
	// the command that mends it.
	ErrImage = errors.New("engine: image unusable")
)

// Options open an engine. Address, InitPath and LogSink are required.
type Options struct {
	// Address is containerd's socket.
	Address string
	// Namespace is the containerd namespace; default [Namespace].
	Namespace string
	// Snapshotter is the snapshotter's name; default "overlayfs".
	Snapshotter string
	// Runtime is the shim's name; default "io.containerd.runc.v2".
	Runtime string
	// InitPath is the host's catatonit, bind-mounted read-only as PID 1 for
	// profiles with init.
	InitPath string
	// LogSink makes the log sink of a container from its nonce and profile.
	LogSink LogSinkCommand
	// Deadlines bound every call; zero values get defaults.
	Deadlines Deadlines
	// HealthInterval is the time between health checks; default 2 s.
	HealthInterval time.Duration
	// Logger gets state changes of the connection; nil discards them.
	Logger hclog.Logger
}

// LogSinkCommand names the program that the shim starts for a container's
// output: containerd's binary logging calls Binary with exactly two arguments,
// Verb and Argument.
type LogSinkCommand struct {
	Binary string // absolute path of the hostagent binary
	Verb   string // its hidden subcommand, "log-sink"
	// Owns says by its argument whether a sink of this program is this agent's:
	// another agent may use the same program. nil: each is.
	Owns func(argument string) bool
}

// Deadlines bound the engine's calls.
type Deadlines struct {
	Read   time.Duration // reading records and states; default 10 s
	Create time.Duration // container record, snapshot and task; default 60 s
	Start  time.Duration // default 30 s
	Kill   time.Duration // default 10 s
	Delete time.Duration // task, container, snapshot, lease; default 60 s, at least 8 s
	Image  time.Duration // import and pull; default 30 min
}

// Identity is what makes a container this one and no other.
type Identity struct {
	ID      string
	Nonce   protocol.ID
	Created protocol.Timestamp // as the engine recorded it
}

// Container is what the engine knows of one container of ours.
type Container struct {
	Identity
	Generation    protocol.ID
	Number        protocol.Number // 0: a spare, or a label that is no number
	Profile       string
	ProfileDigest protocol.Digest
	ImageDigest   protocol.Digest
	SpecDigest    protocol.Digest
	Hooks         bool  // its spec has hooks, whose processes are outside of its cgroup
	Task          *Task // nil: no task, or not asked for
}

// Receipt is the container as receipts name it.
func (c Container) Receipt() protocol.Container {
	return protocol.Container{
		ID: c.ID, Nonce: c.Nonce, Created: c.Created, ImageDigest: c.ImageDigest, SpecDigest: c.SpecDigest,
		Profile: c.Profile, ProfileDigest: c.ProfileDigest,
	}
}

// TaskState is the engine's word for a task's state. It may be stale.
type TaskState string

// The task states.
const (
	TaskCreated TaskState = "created"
	TaskRunning TaskState = "running"
	TaskStopped TaskState = "stopped"
	TaskPaused  TaskState = "paused"
	TaskUnknown TaskState = "unknown" // the shim does not answer
)

// Task is a container's process as the engine reports it.
type Task struct {
	State TaskState
	PID   int64
	// Exit is set where the state is stopped and the status is the shim's own
	// observation. A status that the engine made up is left out (I23).
	Exit *Exit
}

// Exit is a status that a living shim observed.
type Exit struct {
	Code int64 // 0 to 255; 128 plus a signal's number after a death by it, or the process's own choice
	At   protocol.Timestamp
}

// Receipt is the exit as receipts write it; its signal is a reading of the code.
func (e Exit) Receipt() protocol.Exit {
	code, at := e.Code, e.At
	out := protocol.Exit{Source: protocol.ExitFromEngine, Code: &code, At: &at}
	if code > 128 && code < 128+65 {
		signal := code - 128
		out.Signal = &signal
	}
	return out
}

// Image is an image that is present and unpacked.
type Image struct {
	Reference string          // name@sha256:…, as the profile names it
	Digest    protocol.Digest // of the reference
	ChainID   string          // the snapshot that containers are made upon
}

// Imported is one image of an imported archive.
type Imported struct {
	Name   string          // the name that the archive gave it
	Pinned string          // name@digest: what a profile writes
	Digest protocol.Digest // of the index or manifest
}

// CreateRequest asks for one container and its task, not started.
type CreateRequest struct {
	Nonce      protocol.ID
	Generation protocol.ID
	Number     protocol.Number // 0 for a spare
	Profile    *profiles.Profile
	Image      Image
	// CgroupPath is the leaf that package cgroup made, for the OCI spec.
	CgroupPath string
	// SwapAccounting is false where the kernel cannot bound swap per cgroup.
	SwapAccounting bool
	// LogArgument is the log sink's argument, made by package logsink.
	LogArgument string
	// Devices adds the leased devices; nil where the profile asks for none.
	Devices Injection
}

// Injection edits a container's spec so that it gets devices. It is applied
// last; everything else of the spec is decided before.
type Injection interface {
	Apply(*specs.Spec) error
}

// Created is a container with a created task. Its process exists, is inside
// the request's cgroup, and has not run anything of the image yet.
type Created struct {
	Container
	PID        int64
	StartTicks int64 // read while the task was proved ours
}

// HintKind says what an engine event was about.
type HintKind string

// The hints.
const (
	HintExit        HintKind = "exit"        // a task's first process ended, perhaps
	HintOOM         HintKind = "oom"         // an OOM somewhere, perhaps there (FR-07: look at the counters)
	HintResync      HintKind = "resync"      // connected anew: look at everything
	HintUnavailable HintKind = "unavailable" // the engine stopped answering
)

// Hint is a reason to look, never a fact.
type Hint struct {
	Kind        HintKind
	ContainerID string // "" for resync and unavailable
}

// Removal says how DeleteContainer found the parts that it removes.
type Removal struct {
	Container protocol.Removed
	Snapshot  protocol.Removed
}

// Leftover is one thing of ours on the machine, for audits.
type Leftover struct {
	Kind  string // container, task, snapshot, lease, shim, hook, mount, cgroup, log-sink
	Name  string
	Nonce protocol.ID // of the container that it belongs to; "" where that does not show
}

func (l Leftover) String() string { return l.Kind + " " + l.Name }
