package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/protocol"
)

// orders acts on every ordered pair of units while jobs flow through all of
// them. As long as the controller is left alone, one job's worker lives through
// it all, with the controller's channel to it and one of this program's: it must
// not notice. After each pair everything must serve again, by itself but for what
// was stopped by hand. In the end every job that was acknowledged has ended.
//
// Its arguments are the index of the last leaf that the test holds, a name that
// no other load had, the first act, the second, and after how many pairs the
// machine is looked at. Its notes are those of load and settle.
func orders(ctx context.Context, t *task) (string, error) {
	every, err := strconv.Atoi(t.argument(4))
	if err != nil {
		return "", err
	}
	w, err := t.startWatch(ctx, t.argument(0))
	if err != nil {
		return "", err
	}
	first, second := t.argument(2), t.argument(3)
	chosen, leftOut := tried(pairs(first, second))
	s := &storm{t: t, name: t.argument(1), every: every, killed: map[string]int{}, flow: t.startFlow(ctx, t.argument(1), 2)}
	if first == doRestart && second == doRestart {
		s.manager = ofManager
	}
	err = s.rage(ctx, chosen)
	jobs, lost, flowErr := s.flow.end()
	if err := errors.Join(err, flowErr); err != nil {
		return "", errors.Join(err, w.end())
	}
	compared, err := w.finish(ctx, append(jobs, s.jobs...))
	if err != nil {
		return "", err
	}
	// The sleeper comes back once no worker is left.
	if err := properties(ctx, socketUnit, "ActiveState=active"); err != nil {
		return "", err
	}
	if err := s.awaitSleeper(ctx); err != nil {
		return "", err
	}
	if leftOut != "" {
		leftOut = " (" + leftOut + ")"
	}
	return fmt.Sprintf("%d ordered pairs%s: %s; %d jobs finished, %d lost their execution to an act; %s",
		len(chosen), leftOut, &s.hit, len(jobs)-lost+len(s.jobs), lost, compared), leftovers(ctx)
}

// storm is one run of acts under load.
type storm struct {
	t       *task
	name    string   // of its jobs
	every   int      // pairs between two looks at the machine
	manager []string // acts on systemd itself, one in turn after every second pair
	flow    *flow
	held    *held          // whose worker must not notice; nil once the controller is acted on
	jobs    []string       // that were held
	killed  map[string]int // of each unit the process that was killed last
	hit     tally
}

// rage acts on the pairs, first under a held job.
func (s *storm) rage(ctx context.Context, pairs []pair) error {
	if err := s.hold(ctx); err != nil {
		return err
	}
	for i, p := range pairs {
		if err := s.prepare(ctx, p); err != nil {
			return fmt.Errorf("before %s: %w", p, err)
		}
		if err := s.t.say("%s", p); err != nil {
			return err
		}
		err := s.actOn(ctx, p)
		if err == nil && i%2 == 0 && len(s.manager) > 0 {
			err = s.actOnManager(ctx, s.manager[i/2%len(s.manager)])
		}
		if err == nil && ((i+1)%s.every == 0 || i+1 == len(pairs)) {
			err = s.look(ctx)
		}
		if err != nil {
			return fmt.Errorf("after %s: %w", p, err)
		}
	}
	return s.letGo(ctx)
}

// look waits until everything serves again; nothing has happened to the held
// worker.
func (s *storm) look(ctx context.Context) error {
	err := settled(ctx)
	if err == nil && s.held != nil {
		err = s.held.unharmed()
	}
	return err
}

// hold holds another job.
func (s *storm) hold(ctx context.Context) (err error) {
	s.held, err = s.t.hold(ctx, fmt.Sprintf("held-%s-%d", s.name, len(s.jobs)))
	return err
}

// letGo lets the held job end, if there is one.
func (s *storm) letGo(ctx context.Context) error {
	if s.held == nil {
		return nil
	}
	if err := errors.Join(s.look(ctx), s.t.finish(ctx, s.held)); err != nil {
		return err
	}
	s.jobs, s.held = append(s.jobs, s.held.job), nil
	return nil
}

// prepare brings the machine to where the pair hits what it is meant for.
func (s *storm) prepare(ctx context.Context, p pair) error {
	if p.on(controllerUnit) {
		if err := s.letGo(ctx); err != nil {
			return err
		}
	}
	if p.kills(workersUnitOf) && s.sleeps(ctx) != nil {
		if err := s.rouse(ctx); err != nil {
			return err
		}
	}
	// Debian's unit of the engine allows five starts in ten seconds, which is not
	// what is tried here.
	_, err := run(ctx, "systemctl", "reset-failed", engineUnit)
	return err
}

// rouse lets every worker go until the workers' sleeper is back, which the kernel
// permits no sooner, and holds another job if one was held.
func (s *storm) rouse(ctx context.Context) error {
	holding := s.held != nil
	if err := errors.Join(settled(ctx), s.letGo(ctx)); err != nil {
		return err
	}
	if err := s.flow.quiet(func() error { return s.awaitSleeper(ctx) }); err != nil {
		return err
	}
	if holding {
		return s.hold(ctx)
	}
	return nil
}

func (s *storm) awaitSleeper(ctx context.Context) error {
	return await(ctx, patience, "the workers' unit runs", func() error { return s.sleeps(ctx) })
}

// sleeps is nil while the workers' unit runs with its sleeper in its leaf: not
// the one that was killed and that systemd has not missed yet.
func (s *storm) sleeps(ctx context.Context) error {
	if err := properties(ctx, workersUnitOf, "ActiveState=active", "SubState=running"); err != nil {
		return err
	}
	pid, err := mainPID(ctx, workersUnitOf)
	if err != nil {
		return err
	}
	leaf, err := os.ReadFile("/sys/fs/cgroup/system.slice/" + workersUnitOf + "/hold/cgroup.procs")
	if err == nil && (pid == s.killed[workersUnitOf] || strings.TrimSpace(string(leaf)) != strconv.Itoa(pid)) {
		err = fmt.Errorf("process %d, killed last %d, in its leaf %q", pid, s.killed[workersUnitOf], leaf)
	}
	return err
}

// actOn acts on two units and starts by hand what must be.
func (s *storm) actOn(ctx context.Context, p pair) error {
	if err := s.do(ctx, p.first); err != nil {
		return err
	}
	if err := start(ctx, p.between); err != nil {
		return err
	}
	if err := s.do(ctx, p.second); err != nil {
		return err
	}
	return start(ctx, p.after)
}

func start(ctx context.Context, units []string) error {
	for _, unit := range units {
		if _, err := run(ctx, "systemctl", "start", unit); err != nil {
			return err
		}
	}
	return nil
}

// do acts on the unit and counts what it hit: a process that is not there yet is
// waited for, so that each kill takes one.
func (s *storm) do(ctx context.Context, a act) error {
	if a.what != doKill {
		_, err := run(ctx, "systemctl", a.what, a.unit)
		switch {
		case refused(a) && err == nil:
			return fmt.Errorf("%s was not refused", a)
		case refused(a):
			s.hit.add(a.String() + " refused")
			return nil
		case err == nil:
			s.hit.add(a.done())
		}
		return err
	}
	err := await(ctx, patience, "there is a process to kill: "+a.unit, func() error {
		pid, err := mainPID(ctx, a.unit)
		if err == nil && pid == s.killed[a.unit] {
			err = fmt.Errorf("process %d was killed before, and systemd has not missed it", pid)
		}
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err == nil {
			s.killed[a.unit] = pid
		}
		return err
	})
	if err == nil {
		s.hit.add(a.done())
	}
	return err
}

// actOnManager acts on systemd itself, under the load and at once after a pair:
// the held worker notices nothing of that either, and its limits and devices stay
// (FR-11 FR-35).
func (s *storm) actOnManager(ctx context.Context, what string) error {
	if err := s.t.say("%s", what); err != nil {
		return err
	}
	if _, err := run(ctx, "systemctl", what); err != nil {
		return err
	}
	// One that executes itself anew may refuse whoever asks meanwhile.
	err := await(ctx, patience, "systemd answers after "+what, func() error {
		_, err := property(ctx, agentUnit, "ActiveState")
		return err
	})
	if err == nil && s.held != nil {
		err = errors.Join(s.held.unharmed(), s.held.worker.limits())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s.hit.add(what)
	return nil
}

// settled waits until everything serves again.
func settled(ctx context.Context) error {
	if err := active(ctx, socketUnit, agentUnit, engineUnit, controllerUnit); err != nil {
		return err
	}
	if _, _, err := connect(ctx); err != nil {
		return err
	}
	return awaitService(ctx)
}

// held is a job whose execution lasts until it is finished, and its worker.
type held struct {
	job     string
	worker  *worker
	channel *channel // this program's, beside the controller's
}

const heldText = "to be held\n"

// hold submits the job and waits until its worker is asked to execute.
func (t *task) hold(ctx context.Context, operation string) (*held, error) {
	id, err := submitKind(ctx, "hold.text.v1", heldText, operation)
	if err != nil {
		return nil, err
	}
	if err := t.note("created %s %s", operation, id); err != nil {
		return nil, err
	}
	if err := await(ctx, patience, "the held job runs", func() error { return running(ctx, id) }); err != nil {
		return nil, err
	}
	_, generation, err := operator(ctx)
	if err != nil {
		return nil, err
	}
	h := &held{job: id}
	allocations, err := generation.List(ctx, protocol.StateStarted)
	if err != nil {
		return nil, err
	}
	for _, a := range allocations {
		if a.Profile != nil && *a.Profile == "hold" {
			h.worker = &worker{number: a.Number, purpose: a.Purpose, seen: a}
		}
	}
	if h.worker == nil {
		return nil, errors.New("the held job runs in no allocation")
	}
	if h.worker.body, err = receiptOf[protocol.StartedBody](ctx, generation, h.worker.seen, protocol.KindStarted); err != nil {
		return nil, err
	}
	conn, err := asController(ctx, h.worker)
	if err != nil {
		return nil, err
	}
	h.channel = newChannel(conn)
	return h, h.unharmed()
}

// running is nil once the job's attempt has entered its execution.
func running(ctx context.Context, id string) error {
	job, err := getJob(ctx, id)
	if err != nil {
		return err
	}
	for _, a := range job.Attempts {
		if a.State == api.AttemptInProgress && a.Phase != nil && *a.Phase == api.PhaseRunning {
			return nil
		}
	}
	return fmt.Errorf("job %s is %s and no attempt of it runs", id, job.State)
}

// asController opens a channel as the controller's store may: root is allowed
// to be a controller here.
func asController(ctx context.Context, w *worker) (net.Conn, error) {
	text, err := os.ReadFile(storeOwnerFile)
	if err != nil {
		return nil, err
	}
	client := newClient(func() protocol.ID { return protocol.ID(text) })
	host, err := client.Host(ctx)
	if err != nil {
		return nil, err
	}
	return client.In(host.Generation).Channel(ctx, w.number, w.purpose)
}

// unharmed checks that the worker is what it was, on the channel that it had.
func (h *held) unharmed() error {
	if err := errors.Join(h.worker.alive(), h.channel.echo("still on the same channel"), h.channel.devices(), h.worker.sameGroup()); err != nil {
		return fmt.Errorf("the held worker: %w", err)
	}
	return nil
}

// finish lets the held job end: its result comes over the channel that the
// controller opened at its beginning.
func (t *task) finish(ctx context.Context, h *held) error {
	if _, err := h.channel.post("/finish", ""); err != nil {
		return err
	}
	if err := h.channel.conn.Close(); err != nil {
		return err
	}
	state, result, err := t.ended(ctx, h.job)
	if err == nil && (state != api.JobFinished || result != heldText) {
		err = fmt.Errorf("the held job %s is %s with the result %q", h.job, state, result)
	}
	return err
}

// flow keeps jobs running.
type flow struct {
	stopped chan struct{}
	all     sync.WaitGroup
	// gate is held for reading by each lane that has a job, and for writing by who
	// wants none to have one.
	gate sync.RWMutex

	mu       sync.Mutex
	jobs     []string // that ended
	lost     int      // of them, those that did not finish
	problems []error
}

// startFlow submits jobs one after the other in some lanes, until it is told to
// end and each lane saw one finish.
func (t *task) startFlow(ctx context.Context, name string, lanes int) *flow {
	f := &flow{stopped: make(chan struct{})}
	for lane := range lanes {
		f.all.Go(func() {
			finished := false
			for i := 0; ; i++ {
				select {
				case <-f.stopped:
					if finished {
						return
					}
				default:
				}
				f.gate.RLock()
				id, state, err := t.oneJob(ctx, fmt.Sprintf("%s-%d-%d", name, lane, i))
				f.gate.RUnlock()
				if f.count(id, state, err); err != nil {
					return
				}
				finished = finished || state == api.JobFinished
			}
		})
	}
	return f
}

// quiet does something while no job of the flow's is under way.
func (f *flow) quiet(do func() error) error {
	f.gate.Lock()
	defer f.gate.Unlock()
	return do()
}

func (f *flow) count(id string, state api.JobState, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.problems = append(f.problems, err)
		return
	}
	f.jobs = append(f.jobs, id)
	if state != api.JobFinished {
		f.lost++
	}
}

// end waits for what runs.
func (f *flow) end() (jobs []string, lost int, err error) {
	close(f.stopped)
	f.all.Wait()
	return f.jobs, f.lost, errors.Join(f.problems...)
}
