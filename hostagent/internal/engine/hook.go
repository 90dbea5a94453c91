package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/quittance/quittance/hostagent/internal/process"
	"golang.org/x/sys/unix"
)

// hookMark is the variable by which the processes of a container's hooks are
// known. The runtime starts most hooks outside of the container's cgroup, as
// root, and one that hangs, or whose child does, outlives runtime and shim. Its
// value is the container's identifier, an @ and our engine's address.
const hookMark = "QUITTANCE_HOOK_OF"

// markHooks gives every hook of a spec the mark, and a bound within the engine's
// call in which it runs, so that the runtime itself ends one that hangs and says
// why. Without an environment of its own a hook gets a PATH: what the engine has
// in its own is nothing that a spec decided.
func markHooks(s *specs.Spec, id string, o SpecOptions) {
	if s.Hooks == nil {
		return
	}
	mark := hookMark + "=" + id + "@" + o.Engine
	each := func(call time.Duration, kinds ...[]specs.Hook) {
		limit := max(1, int(call*3/4/time.Second))
		for _, hooks := range kinds {
			for i := range hooks {
				h := &hooks[i]
				if h.Timeout == nil || *h.Timeout <= 0 || *h.Timeout > limit {
					h.Timeout = new(limit)
				}
				if len(h.Env) == 0 {
					h.Env = []string{"PATH=" + defaultPath}
				}
				h.Env = append([]string{mark}, h.Env...)
			}
		}
	}
	//lint:ignore SA1019 a device's spec may still have one, and runc runs it.
	each(o.Deadlines.Create, s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer)
	// Runtimes disagree on the call in which these run.
	each(min(o.Deadlines.Create, o.Deadlines.Start), s.Hooks.StartContainer, s.Hooks.Poststart)
	each(o.Deadlines.Delete, s.Hooks.Poststop)
}

// endHooks kills what hooks of the container left running, and waits for the
// ends. It is called once no runtime can start another one. What does not end
// is [ErrRunning]: it may hold the container's devices.
func (e *Engine) endHooks(ctx context.Context, id string) error {
	// Whoever was forked meanwhile is found in the next pass, and the list of the
	// processes is not of one moment: only the second pass without any is believed.
	for none := 0; none < 2; {
		if ctx.Err() != nil { // hooks that go on forking would keep this going
			return fmt.Errorf("%w: processes of a device's hook are there: %w", ErrRunning, ctx.Err())
		}
		found, err := e.hooks(id)
		if err != nil {
			return err
		}
		none++
		if len(found) > 0 {
			none = 0
		}
		// One that does not end spares none of the others.
		var failures []error
		for _, one := range found {
			e.log.Warn("ending a process that a hook left", "container", id, "pid", one.PID)
			failures = append(failures, e.endHook(ctx, one, id))
		}
		if err := errors.Join(failures...); err != nil {
			return err
		}
	}
	return nil
}

// endHook kills one process that bears the mark: held first, then looked at
// again, so that a number that is used anew is noticed (I17).
func (e *Engine) endHook(ctx context.Context, id process.Identity, container string) (err error) {
	handle, err := process.Open(id)
	if errors.Is(err, process.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	of, _, err := hookOf(fmt.Sprint(id.PID))
	if errors.Is(err, errBegins) {
		return nil // the next pass finds it, if it bears the mark still
	}
	if err != nil || of != container {
		return err
	}
	if err := handle.Signal(unix.SIGKILL); err != nil {
		if errors.Is(err, process.ErrGone) {
			return nil
		}
		return err
	}
	grace, cancel := context.WithTimeout(ctx, shimGrace)
	defer cancel()
	if err := handle.Wait(grace); err != nil {
		return fmt.Errorf("%w: process %d of a device's hook does not end: %w", ErrRunning, id.PID, err)
	}
	return nil
}

// hooks finds the processes of one container's hooks.
func (e *Engine) hooks(id string) ([]process.Identity, error) {
	var out []process.Identity
	err := eachCommand(func(pid string, _ []string) error {
		of, _, err := hookOf(pid)
		if err != nil || of != id {
			return err
		}
		identity, err := identify(pid)
		if err == nil {
			out = append(out, identity)
		}
		return err
	})
	return out, err
}

// hookOf reads the mark of a process: the container of whose hook it is and the
// engine's address, both "" where it bears none; [errBegins] where none can be
// seen yet. Anybody may give a process any environment; only root's are believed.
func hookOf(pid string) (id, address string, err error) {
	root, err := isRoot(pid)
	if err != nil || !root {
		return "", "", err
	}
	environment, err := readProgram(pid, "environ")
	if errors.Is(err, fs.ErrPermission) {
		// It has rights that the agent, which may trace, has not: no process that
		// the engine started has.
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	variables := strings.Split(string(environment), "\x00")
	i := slices.IndexFunc(variables, func(v string) bool { return strings.HasPrefix(v, hookMark+"=") })
	if i < 0 {
		return "", "", nil
	}
	id, address, _ = strings.Cut(strings.TrimPrefix(variables[i], hookMark+"="), "@")
	return id, address, nil
}
