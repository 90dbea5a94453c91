package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/cgroup"
	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/failpoint"
	"github.com/quittance/quittance/hostagent/internal/logsink"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
)

// watchInterval is the safety net of the OOM watch, and how often a process
// that was killed and does not end is killed and reported again.
const watchInterval = time.Second

// witness is what the two observers of an end have seen so far.
type witness struct {
	gone     chan struct{} // closed once the pidfd shows the end
	reported chan engine.Exit
}

// watch follows a running process until it ends, stopping it when told to, and
// reports the end with its facts. stop is a stop that was decided before.
func (w *worker) watch(ctx context.Context, stop *core.StopEffect) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var observers sync.WaitGroup
	defer observers.Wait()
	defer cancel()

	w.openWatch()
	var readings <-chan cgroup.Reading
	if w.oom != nil {
		readings = w.oom.Readings()
	}
	seen := witness{gone: make(chan struct{}), reported: make(chan engine.Exit, 1)}
	observers.Go(func() { w.observePIDFD(ctx, seen.gone) })
	observers.Go(func() { w.observeEngine(ctx, seen.reported) })

	stopping := &stopper{w: w}
	defer stopping.close()
	if stop != nil {
		stopping.begin(ctx, *stop)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-readings:
			events := w.oom.LimitEvents()
			w.limitEvents.Store(events)
			oom := cgroup.Verdict(w.baseline, r, cgroup.Evidence{LimitEvents: events})
			w.post(core.WorkOOM{Number: w.number, Counters: oom.Counters})
		case e := <-w.effects:
			s, ok := e.(core.StopEffect)
			if !ok {
				panic(fmt.Sprintf("worker: number %d got a %T while it runs", w.number, e))
			}
			stopping.begin(ctx, s)
		case <-stopping.due():
			stopping.next(ctx)
		case <-seen.gone:
			exit := w.exitAfter(ctx, seen)
			if ctx.Err() != nil {
				return
			}
			w.finish(exit)
			return
		}
	}
}

// openWatch begins to follow the group's OOM counters, before the process is
// started where there is a choice. Without it kills are published only at the
// end, and on v1 the scope of a kill may stay unknown; that is shown.
func (w *worker) openWatch() {
	if w.oom != nil {
		return
	}
	watch, err := w.group.Watch(watchInterval)
	if err != nil {
		w.log.Error("oom_watch_failed", "error", err)
		w.post(core.WorkProgress{Number: w.number, Step: "watch", Error: err.Error()})
		return
	}
	w.oom = watch
}

// observePIDFD closes gone once the process has ended.
func (w *worker) observePIDFD(ctx context.Context, gone chan<- struct{}) {
	if w.proc != nil {
		if err := w.proc.Wait(ctx); err != nil {
			if ctx.Err() == nil {
				w.log.Error("pidfd_wait_failed", "error", err)
				// The number and start time are the same witness, asked anew.
				for pause(ctx, watchInterval) {
					if _, err := process.Observe(w.proc.Identity()); errors.Is(err, process.ErrGone) {
						close(gone)
						return
					}
				}
			}
			return
		}
	}
	close(gone)
}

// observeEngine waits for the shim's own observation; an engine that is down
// is asked again for as long as it matters, and so is one that reports the end
// of a process that runs: a shim knows of an end only after the kernel does, so
// that status was made up (I23).
func (w *worker) observeEngine(ctx context.Context, reported chan<- engine.Exit) {
	complained := false
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		exit, err := w.m.cfg.Engine.Wait(ctx, w.identity)
		switch {
		case err == nil && !w.runs():
			reported <- exit
			return
		case err == nil && !complained:
			complained = true
			w.log.Warn("untrue_exit_ignored", "code", exit.Code, "remark", "the engine reports the end of a process that runs")
		case errors.Is(err, engine.ErrNotFound), errors.Is(err, engine.ErrNoTask):
			return
		}
		if !pause(ctx, backoff) {
			return
		}
	}
}

// runs reports whether the kernel says that the process has not ended; false
// where nobody can tell.
func (w *worker) runs() bool {
	if w.proc == nil {
		return false
	}
	exited, err := w.proc.Exited()
	return err == nil && !exited
}

// exitAfter gives the engine ExitGrace to say what the exit was; otherwise the
// pidfd is the source and the code unknown (I23).
func (w *worker) exitAfter(ctx context.Context, seen witness) protocol.Exit {
	timer := time.NewTimer(w.m.cfg.ExitGrace)
	defer timer.Stop()
	select {
	case exit := <-seen.reported:
		return exit.Receipt()
	case <-ctx.Done():
	case <-timer.C:
		if task, err := w.m.cfg.Engine.Task(ctx, w.identity); err == nil && task.Exit != nil {
			return task.Exit.Receipt()
		}
	}
	at := protocol.TimestampOf(time.Now())
	return protocol.Exit{Source: protocol.ExitFromPIDFD, At: &at}
}

// exitBefore is how a process ended that no agent was watching: what the engine
// says of its task. Where the task still counts as running, or its shim did not
// answer in time, the shim knows of the end only after the kernel does and has
// ExitGrace to tell; otherwise nothing is known of the exit (I23).
func (w *worker) exitBefore(ctx context.Context, task engine.Task) protocol.Exit {
	if task.Exit != nil {
		return task.Exit.Receipt()
	}
	switch task.State {
	case engine.TaskRunning, engine.TaskPaused, engine.TaskUnknown:
		ctx, cancel := context.WithTimeout(ctx, w.m.cfg.ExitGrace)
		defer cancel()
		reported := make(chan engine.Exit, 1)
		w.observeEngine(ctx, reported)
		select {
		case exit := <-reported:
			return exit.Receipt()
		default:
		}
	}
	return protocol.Exit{Source: protocol.ExitFromNone}
}

// oomDaemonSocket is where systemd-oomd listens.
const oomDaemonSocket = "/run/systemd/oom/io.systemd.ManagedOOM"

// finish reads the last counters, after the end and before anything is removed
// (I18, I22), and reports the end.
func (w *worker) finish(exit protocol.Exit) {
	body := protocol.ExitedBody{
		Exit: exit, OOM: protocol.OOM{Verdict: protocol.VerdictUnknown, Source: protocol.CountersFromNone}, LogSink: protocol.LogSinkOK,
	}
	var evidence cgroup.Evidence
	if w.oom != nil {
		evidence.LimitEvents = w.oom.LimitEvents()
		w.limitEvents.Store(evidence.LimitEvents)
	}
	if _, err := os.Stat(oomDaemonSocket); err == nil {
		evidence.OOMDaemon = true
	}
	if w.group != nil {
		reading, err := w.group.Read()
		if err != nil {
			w.log.Error("last_counters_unreadable", "error", err)
		} else {
			body.OOM, body.Peaks = cgroup.Verdict(w.baseline, reading, evidence), reading.Peaks
		}
	}
	if status, err := logsink.Inspect(w.m.cfg.LogDir, w.identity.Nonce); err != nil {
		w.log.Warn("log_sink_unreadable", "error", err)
	} else {
		body.LogSink = status.Receipt()
	}
	if w.proc != nil && exit.Source != protocol.ExitFromReboot {
		run := max(0, process.Now().Milliseconds()-w.proc.Identity().StartTicks*millisPerTick)
		body.RunMillis = &run
	}
	failpoint.Hit(failpoint.BeforeExited)
	w.ended = true
	w.post(core.WorkExited{Number: w.number, Body: body})
}

// millisPerTick: the kernel's user interface counts 100 clock ticks a second.
const millisPerTick = 10

// stopper ends a process step by step: stop signal, grace, SIGKILL, and SIGKILL
// again for as long as it does not end.
type stopper struct {
	w      *worker
	timer  *time.Timer
	killed time.Duration // when SIGKILL was first sent, boot-time clock; 0: not yet
}

// due fires when the next step is to be taken; never before begin.
func (s *stopper) due() <-chan time.Time {
	if s.timer == nil {
		return nil
	}
	return s.timer.C
}

func (s *stopper) close() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *stopper) begin(ctx context.Context, e core.StopEffect) {
	grace := time.Duration(s.w.profile.Lifecycle.StopGraceMillis) * time.Millisecond
	s.w.post(core.WorkProgress{Number: s.w.number, Step: "stop"})
	s.timer = time.NewTimer(grace)
	if e.Kill || grace == 0 {
		s.next(ctx)
		return
	}
	sig, err := process.ParseSignal(s.w.profile.Lifecycle.StopSignal)
	if err == nil {
		err = s.w.signal(ctx, sig)
	}
	if err != nil {
		s.w.log.Warn("stop_signal_failed", "error", err)
		s.next(ctx)
		return
	}
	failpoint.Hit(failpoint.StopSignalled)
}

// next kills, and says so when the kill of before has not ended the process.
func (s *stopper) next(ctx context.Context) {
	if s.killed == 0 {
		s.killed = process.Now()
	} else {
		s.w.progress("kill", errors.New("SIGKILL was sent and the process has not ended"), s.killed)
	}
	if err := s.w.kill(ctx); err != nil {
		s.w.log.Warn("kill_failed", "error", err)
	}
	s.timer.Reset(watchInterval)
}

// signal reaches exactly the container's first process (I17).
func (w *worker) signal(ctx context.Context, sig unix.Signal) error {
	if w.proc != nil {
		err := w.proc.Signal(sig)
		if errors.Is(err, process.ErrGone) {
			return nil
		}
		return err
	}
	return w.m.cfg.Engine.Kill(ctx, w.identity, sig, false)
}

// kill ends everything inside by every way that there is; one that works is
// enough, the others' failures are kept beside.
func (w *worker) kill(ctx context.Context) error {
	var failures []error
	if w.proc != nil {
		if err := w.proc.Signal(unix.SIGKILL); err != nil && !errors.Is(err, process.ErrGone) {
			failures = append(failures, err)
		}
	}
	if w.group != nil {
		if err := w.group.Kill(); err != nil {
			failures = append(failures, err)
		}
	}
	if w.proc == nil || len(failures) > 0 {
		if err := w.m.cfg.Engine.Kill(ctx, w.identity, unix.SIGKILL, true); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
