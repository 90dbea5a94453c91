package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/channel"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/profiles"
	"github.com/quittance/quittance/protocol"
)

// worker is one allocation's goroutine and what it holds open.
type worker struct {
	m       *Manager
	number  protocol.Number
	effects chan core.Effect
	log     hclog.Logger
	quiet   bool // a sweep: core knows nothing of it

	// Owned by the goroutine.
	profile  *profiles.Profile
	identity engine.Identity
	baseline protocol.Counters
	group    *cgroup.Group
	proc     *process.Handle      // nil where the process was gone when it was looked for
	oom      *cgroup.Watch        // from before the start to the last counters
	startWas protocol.Disposition // of the start; "" before it
	ended    bool                 // the end was reported

	taskMu      sync.RWMutex
	task        *channel.Task // guarded by taskMu
	limitEvents atomic.Int64  // the leaf's OOM events so far, for live readers
}

// give hands the worker its next effect.
func (w *worker) give(e core.Effect) {
	select {
	case w.effects <- e:
	default:
		panic(fmt.Sprintf("worker: number %d has more effects than core can decide", w.number))
	}
}

func (w *worker) run() {
	defer w.close()
	for {
		var e core.Effect
		select {
		case <-w.m.ctx.Done():
			return
		case e = <-w.effects:
		}
		switch e := e.(type) {
		case core.CreateEffect:
			w.create(e)
		case core.StartEffect:
			w.start()
		case core.WatchEffect:
			w.watch(w.m.ctx, nil)
		case core.StopEffect:
			w.stopUnwatched(e)
		case core.InspectEffect:
			w.inspect(e)
		case core.RemoveEffect:
			w.remove(e)
		case core.ForgetEffect:
			return
		}
	}
}

func (w *worker) post(e core.Event) {
	if !w.quiet {
		w.m.cfg.Post(e)
	}
}

// close gives up the descriptors; it touches neither process nor container.
func (w *worker) close() {
	w.taskMu.Lock()
	task := w.task
	w.task = nil
	w.taskMu.Unlock()
	var err error
	if task != nil {
		err = task.Close()
	}
	if w.proc != nil {
		err = errors.Join(err, w.proc.Close())
		w.proc = nil
	}
	if w.oom != nil {
		err = errors.Join(err, w.oom.Close())
		w.oom = nil
	}
	if err != nil {
		w.log.Warn("descriptor_close_failed", "error", err)
	}
}

// create makes everything up to the created, not started process.
func (w *worker) create(e core.CreateEffect) {
	body, unknown, err := w.tryCreate(w.m.ctx, e)
	if w.m.ctx.Err() != nil {
		return // the next life of the agent looks for itself
	}
	if err != nil {
		w.log.Warn("create_failed", "error", err, "unknown", unknown)
		w.post(core.WorkCreateFailed{Number: w.number, Error: err.Error(), Unknown: unknown})
		return
	}
	w.post(core.WorkCreated{Number: w.number, Body: body})
}

// tryCreate reports with unknown that the container may exist or come to be.
func (w *worker) tryCreate(ctx context.Context, e core.CreateEffect) (body core.CreatedBody, unknown bool, err error) {
	began := process.Now()
	w.profile = e.Profile
	capture := w.capture(e.Nonce)
	if err := w.makeGroup(e); err != nil {
		return body, false, err
	}
	image, err := w.m.cfg.Engine.ResolveImage(ctx, e.Profile.Image)
	if err != nil {
		return body, false, err
	}
	if err := logsink.Prepare(capture); err != nil {
		return body, false, fmt.Errorf("log sink: %w", err)
	}
	var injection engine.Injection
	if e.CDIDigest != nil {
		if injection, err = w.m.cfg.Inject(e.Devices, *e.CDIDigest); err != nil {
			return body, false, err
		}
	}
	failpoint.Hit(failpoint.BeforeCreate)
	created, err := w.m.cfg.Engine.Create(ctx, engine.CreateRequest{
		Nonce: e.Nonce, Generation: w.m.cfg.Generation, Number: e.Number, Profile: e.Profile, Image: image,
		CgroupPath: w.group.LeafPath(), SwapAccounting: w.m.cfg.Groups.SwapAccounting(), LogArgument: capture.Argument(), Devices: injection,
	})
	if err != nil {
		return body, engine.DispositionOf(err) != protocol.Refused, err
	}
	failpoint.Hit(failpoint.AfterCreate)
	w.identity = created.Identity
	if err := w.hold(process.Identity{PID: created.PID, StartTicks: created.StartTicks}); err != nil {
		return body, false, fmt.Errorf("hold the created process: %w", err)
	}
	// From here on a process is inside and the group stays. Before, it may have
	// been taken away while it was empty, and the runtime made the directories
	// anew without our limits.
	switch vanished, err := w.group.Vanished(); {
	case err != nil:
		return body, false, fmt.Errorf("cgroup: %w", err)
	case vanished:
		w.log.Warn("cgroup_made_anew", "path", w.group.LeafPath())
		if err := w.makeGroup(e); err != nil {
			return body, false, err
		}
	}
	return core.CreatedBody{
		Container: created.Receipt(), PID: created.PID, StartTicks: created.StartTicks, BootID: w.m.cfg.BootID,
		Cgroup: w.group.Ref(), Baseline: w.baseline, CreateMillis: (process.Now() - began).Milliseconds(),
	}, false, nil
}

// makeGroup makes the cgroups, takes the baseline of their counters and watches
// them.
func (w *worker) makeGroup(e core.CreateEffect) (err error) {
	if w.oom != nil {
		err = w.oom.Close()
		w.oom = nil
	}
	group, createErr := w.m.cfg.Groups.Create(e.Nonce, cgroup.LimitsOf(e.Profile))
	if err := errors.Join(err, createErr); err != nil {
		return err
	}
	w.group = group
	failpoint.Hit(failpoint.CgroupMade)
	reading, err := w.group.Read()
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	w.baseline = reading.Counters
	w.openWatch()
	return nil
}

func (w *worker) capture(nonce protocol.ID) logsink.Config {
	c := logsink.Config{Dir: w.m.cfg.LogDir, Nonce: nonce}
	if w.profile != nil {
		c.CaptureBytes, c.Journal = w.profile.Logs.CaptureBytes, w.profile.Logs.Journal
	}
	return c
}

// hold takes the pidfd and the namespaces of a process that was proved ours.
func (w *worker) hold(id process.Identity) error {
	proc, err := process.Open(id)
	if err != nil {
		return err
	}
	task, err := channel.Open(proc)
	if err != nil {
		return errors.Join(err, proc.Close())
	}
	w.proc = proc
	w.taskMu.Lock()
	w.task = task
	w.taskMu.Unlock()
	return nil
}

func (w *worker) start() {
	began := process.Now()
	failpoint.Hit(failpoint.BetweenCreateRun)
	err := w.m.cfg.Engine.Start(w.m.ctx, w.identity)
	if w.m.ctx.Err() != nil {
		return
	}
	w.startWas = engine.DispositionOf(err)
	if err != nil {
		w.log.Warn("start_failed", "error", err, "disposition", string(w.startWas))
		w.post(core.WorkStartFailed{Number: w.number, Error: err.Error()})
		return
	}
	failpoint.Hit(failpoint.AfterRun)
	w.post(core.WorkStarted{Number: w.number, StartMillis: (process.Now() - began).Milliseconds()})
}

// Back-off between the tries of one step.
const (
	firstBackoff   = 20 * time.Millisecond
	longestBackoff = 5 * time.Second
)

// errStopping ends a step because the agent stops, or because the time for it
// is over.
var errStopping = errors.New("worker: told to stop")

// repeat tries a step until it is done. Each failure is reported with what the
// process looks like, so that core can say that the allocation is stuck.
func (w *worker) repeat(ctx context.Context, step string, try func(context.Context) error) error {
	w.post(core.WorkProgress{Number: w.number, Step: step})
	began, backoff, last := process.Now(), firstBackoff, ""
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w in step %q: %w", errStopping, step, err)
		}
		if text := err.Error(); text != last {
			w.log.Warn("step_failed", "step", step, "error", err)
			last = text
		}
		w.progress(step, err, began)
		if !pause(ctx, backoff) {
			return fmt.Errorf("%w in step %q: %w", errStopping, step, err)
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

func (w *worker) progress(step string, err error, began time.Duration) {
	p := core.WorkProgress{Number: w.number, Step: step, Error: err.Error(), SinceMillis: (process.Now() - began).Milliseconds()}
	if w.proc != nil {
		if seen, err := process.Observe(w.proc.Identity()); err == nil {
			p.ProcessState, p.WaitChannel = seen.State, seen.WaitChannel
		}
	}
	w.post(p)
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
