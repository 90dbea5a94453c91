package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
)

// The labels of our containers, snapshots and leases.
const (
	labelGeneration    = "quittance/generation"
	labelNonce         = "quittance/nonce"
	labelNumber        = "quittance/number" // absent for a spare
	labelProfile       = "quittance/profile"
	labelProfileDigest = "quittance/profile-digest"
	labelImageDigest   = "quittance/image-digest"
)

// specType is the type URL under which containerd keeps OCI specs.
const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

func (r CreateRequest) labels() map[string]string {
	labels := map[string]string{
		labelGeneration:    string(r.Generation),
		labelNonce:         string(r.Nonce),
		labelProfile:       r.Profile.Name,
		labelProfileDigest: string(r.Profile.Digest()),
		labelImageDigest:   string(r.Image.Digest),
	}
	if r.Number != 0 {
		labels[labelNumber] = r.Number.String()
	}
	return labels
}

// Create makes lease, snapshot, container record and task. It never adopts
// what an earlier call left: then it is refused with [ErrExists]. Where a step
// was refused, what the earlier steps made is removed again before Create
// returns; where that did not succeed the disposition is unknown, as it is
// when a call timed out, and the caller retires what it finds.
func (e *Engine) Create(ctx context.Context, r CreateRequest) (Created, error) {
	const op = "create"
	id := ContainerID(r.Nonce)
	if !r.Nonce.Valid() || !r.Generation.Valid() {
		return Created{}, refused(op, id, errors.New("nonce and generation must be 32 lower-case hexadecimal digits"))
	}
	spec, digest, err := BuildSpec(r, SpecOptions{InitPath: e.o.InitPath, Engine: e.o.Address, Deadlines: e.o.Deadlines})
	if err != nil {
		return Created{}, refused(op, id, err)
	}
	encoded, err := encodeSpec(spec)
	if err != nil {
		return Created{}, refused(op, id, err)
	}
	call, cancel := e.call(ctx, e.o.Deadlines.Create)
	defer cancel()
	labels := r.labels()
	// The lease is made first and removed last: where it can be made there is
	// nothing else of this name.
	_, err = e.client.LeasesService().Create(call, leases.WithID(id), leases.WithLabels(labels))
	switch {
	case errdefs.IsAlreadyExists(err):
		if _, err := e.client.ContainerService().Get(call, id); err == nil {
			return Created{}, refused(op, id, ErrExists)
		} else if !errdefs.IsNotFound(err) {
			return Created{}, failed(op+": look for", id, err)
		}
	case err != nil:
		return Created{}, failed(op+": lease of", id, err)
	}
	failpoint.Hit(failpoint.LeaseMade)
	leased := leases.WithLease(call, id)

	record, err := e.createRecord(leased, id, r, labels, encoded)
	if err != nil {
		return Created{}, e.undoCreate(ctx, id, r.Nonce, err)
	}
	failpoint.Hit(failpoint.RecordMade)
	container, ours := containerOf(record)
	proc, err := e.createTask(leased, id, r)
	if err == nil && (!ours || container.SpecDigest != digest) {
		err = refused(op, id, errors.New("the engine stored another container than it was given"))
	}
	if err != nil {
		return Created{}, e.undoCreate(ctx, id, r.Nonce, err)
	}
	container.Task = &Task{State: TaskCreated, PID: proc.PID}
	return Created{Container: container, PID: proc.PID, StartTicks: proc.StartTicks}, nil
}

func (e *Engine) createRecord(ctx context.Context, id string, r CreateRequest, labels map[string]string, spec []byte) (containers.Container, error) {
	// A snapshot that exists already is one of an earlier call that got no
	// further: nothing ran on it, or there would be a record.
	_, err := e.client.SnapshotService(e.o.Snapshotter).Prepare(ctx, id, r.Image.ChainID, snapshots.WithLabels(labels))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		if errdefs.IsNotFound(err) {
			return containers.Container{}, refused("create: snapshot of", id,
				fmt.Errorf("%w: %s is not unpacked any more; import it again", ErrImage, r.Image.Reference))
		}
		return containers.Container{}, failed("create: snapshot of", id, err)
	}
	failpoint.Hit(failpoint.SnapshotMade)
	record, err := e.client.ContainerService().Create(ctx, containers.Container{
		ID: id, Labels: labels, Image: r.Image.Reference,
		Runtime: containers.RuntimeInfo{Name: e.o.Runtime},
		Spec:    &anypb.Any{TypeUrl: specType, Value: spec}, Snapshotter: e.o.Snapshotter, SnapshotKey: id,
	})
	if errdefs.IsAlreadyExists(err) {
		// Not there a moment ago: somebody else's call is under way. Nothing of
		// it may be undone here.
		return containers.Container{}, &EffectError{Op: "create: record of", ID: id, Disposition: protocol.Unknown, Err: ErrExists}
	}
	if err != nil {
		return containers.Container{}, failed("create: record of", id, err)
	}
	return record, nil
}

// createTask makes the task and proves that the process that the engine names
// is inside the cgroup that was made for it.
func (e *Engine) createTask(ctx context.Context, id string, r CreateRequest) (process.Identity, error) {
	layers, err := e.client.SnapshotService(e.o.Snapshotter).Mounts(ctx, id)
	if err != nil {
		return process.Identity{}, failed("create: mounts of", id, err)
	}
	log := e.logURI(r.LogArgument)
	request := &tasks.CreateTaskRequest{ContainerID: id, Stdout: log, Stderr: log}
	for _, m := range layers {
		request.Rootfs = append(request.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	answer, err := e.client.TaskService().Create(ctx, request)
	if err != nil {
		return process.Identity{}, taskRefusal(ctx, id, err)
	}
	identity, err := process.Identify(int64(answer.Pid))
	if err == nil {
		err = insideCgroup(identity.PID, r.CgroupPath)
	}
	if err == nil {
		// Read again after the proof: the number was the same process all along.
		var again process.Identity
		if again, err = process.Identify(identity.PID); err == nil && again != identity {
			err = process.ErrGone
		}
	}
	if err != nil {
		return process.Identity{}, refused("create: prove the process of", id, err)
	}
	return identity, nil
}

// taskRefusal classifies a failed task creation: when the daemon answers with
// what the runtime said, it has taken the half-made task down itself, and the
// undoing that follows checks that. Once the call's time is over no answer says
// that: the runtime may still be at it.
func taskRefusal(call context.Context, id string, err error) error {
	out := failed("create: task of", id, err)
	effect, ok := errors.AsType[*EffectError](out)
	if ok && call.Err() == nil && !IsUnavailable(effect.Err) && !errors.Is(effect.Err, context.Canceled) {
		effect.Disposition = protocol.Refused
	}
	return out
}

// undoCreate removes what a refused creation made and returns the error with
// its final disposition. After an unknown outcome it touches nothing: the call
// may still land.
func (e *Engine) undoCreate(ctx context.Context, id string, nonce protocol.ID, cause error) error {
	if DispositionOf(cause) != protocol.Refused {
		return cause
	}
	ctx = context.WithoutCancel(ctx)
	c := Identity{ID: id, Nonce: nonce}
	unknown := func(err error) error {
		return &EffectError{
			Op: "create", ID: id, Disposition: protocol.Unknown,
			Err: fmt.Errorf("%w (and it could not be undone: %w)", cause, err),
		}
	}
	task, err := e.Task(ctx, c)
	if err == nil {
		if err := e.Kill(ctx, c, unix.SIGKILL, true); err != nil {
			return unknown(err)
		}
		if task.State != TaskStopped {
			wait, cancel := context.WithTimeout(ctx, e.o.Deadlines.Kill)
			// Only to give the end time to be seen; deleting finds out.
			_, _ = e.Wait(wait, c)
			cancel()
		}
		if _, err := e.DeleteTask(ctx, c); err != nil {
			return unknown(err)
		}
	} else if !errors.Is(err, ErrNoTask) && !errors.Is(err, ErrNotFound) {
		return unknown(err)
	}
	if _, err := e.DeleteContainer(ctx, c); err != nil {
		return unknown(err)
	}
	return cause
}

// logURI names the log sink in the form that the shim takes apart: a program
// and one argument pair.
func (e *Engine) logURI(argument string) string {
	u := url.URL{Scheme: "binary", Path: e.o.LogSink.Binary, RawQuery: url.Values{e.o.LogSink.Verb: {argument}}.Encode()}
	return u.String()
}

// insideCgroup proves that a process is the one that the runtime put into the
// cgroup that we made.
func insideCgroup(pid int64, leaf string) error {
	text, err := os.ReadFile("/proc/" + strconv.FormatInt(pid, 10) + "/cgroup")
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return process.ErrGone
	}
	if err != nil {
		return fmt.Errorf("cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(parts) == 3 && parts[2] == leaf {
			return nil
		}
	}
	return fmt.Errorf("process %d is not inside the cgroup that was made for it", pid)
}

// containerOf turns a record into plain values. ok is false for a container
// without our labels.
func containerOf(record containers.Container) (c Container, ok bool) {
	nonce, generation := protocol.ID(record.Labels[labelNonce]), protocol.ID(record.Labels[labelGeneration])
	if !nonce.Valid() || !generation.Valid() {
		return Container{}, false
	}
	c = Container{
		Identity:      Identity{ID: record.ID, Nonce: nonce, Created: protocol.TimestampOf(record.CreatedAt)},
		Generation:    generation,
		Profile:       record.Labels[labelProfile],
		ProfileDigest: protocol.Digest(record.Labels[labelProfileDigest]),
		ImageDigest:   protocol.Digest(record.Labels[labelImageDigest]),
	}
	if n, err := protocol.ParseNumber(record.Labels[labelNumber]); err == nil {
		c.Number = n
	}
	if record.Spec != nil {
		c.SpecDigest = protocol.DigestOf(record.Spec.GetValue())
		c.Hooks = bytes.Contains(record.Spec.GetValue(), []byte(hookMark+"="))
	}
	return c, true
}
