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

const engineUnit = "containerd.service"

// What is done to a unit.
const (
	doStop    = "stop"
	doRestart = "restart"
	doKill    = "kill"
)

// act is one thing done to one unit.
type act struct{ what, unit string }

func (a act) String() string {
	return a.what + " " + strings.TrimSuffix(strings.TrimPrefix(a.unit, "quittance-"), ".service")
}

// ours are the units that are acted on, the controller's last.
var ours = []string{agentUnit, socketUnit, workersUnitOf, engineUnit, controllerUnit}

// pairs are all ordered pairs of two units, the first with one act and the
// second with another. Those without the controller come first.
func pairs(first, second string) [][2]act {
	var without, with [][2]act
	for _, a := range ours {
		for _, b := range ours {
			pair := [2]act{{first, a}, {second, b}}
			switch {
			case a == b && first == second:
			case a == socketUnit && first == doKill, b == socketUnit && second == doKill: // it has no process
			case a == controllerUnit || b == controllerUnit:
				with = append(with, pair)
			default:
				without = append(without, pair)
			}
		}
	}
	return append(without, with...)
}

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
	flow := t.startFlow(ctx, t.argument(1), 2)
	done, held, err := t.actOnAll(ctx, t.argument(1), pairs(t.argument(2), t.argument(3)), every)
	jobs, lost, flowErr := flow.end()
	if err := errors.Join(err, flowErr); err != nil {
		return "", errors.Join(err, w.end())
	}
	compared, err := w.finish(ctx, append(jobs, held))
	if err != nil {
		return "", err
	}
	// The sleeper comes back once no worker is left.
	if err := properties(ctx, socketUnit, "ActiveState=active"); err != nil {
		return "", err
	}
	err = await(ctx, patience, "the workers' unit runs", func() error {
		return properties(ctx, workersUnitOf, "ActiveState=active", "SubState=running")
	})
	return fmt.Sprintf("%d ordered pairs; %d jobs finished, %d lost their execution to an act; %s", done, len(jobs)-lost+1, lost, compared),
		errors.Join(err, leftovers(ctx))
}

// actOnAll acts on the pairs, first under a held job, and returns how many and
// that job.
func (t *task) actOnAll(ctx context.Context, name string, pairs [][2]act, every int) (done int, heldJob string, err error) {
	h, err := t.hold(ctx, "held-"+name)
	if err != nil {
		return 0, "", err
	}
	holding := true
	for i, pair := range pairs {
		if holding && (pair[0].unit == controllerUnit || pair[1].unit == controllerUnit) {
			if err := errors.Join(settled(ctx), h.unharmed(), t.finish(ctx, h)); err != nil {
				return i, h.job, fmt.Errorf("before %s, %s: %w", pair[0], pair[1], err)
			}
			holding = false
		}
		if err := t.say("%s, %s", pair[0], pair[1]); err != nil {
			return i, h.job, err
		}
		err := actOn(ctx, pair)
		if err == nil && ((i+1)%every == 0 || i+1 == len(pairs)) {
			err = settled(ctx)
			if err == nil && holding {
				err = h.unharmed()
			}
		}
		if err != nil {
			return i, h.job, fmt.Errorf("after %s, %s: %w", pair[0], pair[1], err)
		}
	}
	if holding {
		err = t.finish(ctx, h)
	}
	return len(pairs), h.job, err
}

// actOn acts on two units and starts by hand what was stopped.
func actOn(ctx context.Context, pair [2]act) error {
	for _, a := range pair {
		if err := a.do(ctx); err != nil {
			return err
		}
	}
	for _, a := range pair {
		if a.what != doStop {
			continue
		}
		if _, err := run(ctx, "systemctl", "start", a.unit); err != nil {
			return err
		}
	}
	return nil
}

// do acts on the unit. The workers' unit refuses a stop and a restart. A unit
// that is not running yet is waited for, so that there is something to kill; but
// the workers' sleeper, once killed, comes back after the last worker only.
func (a act) do(ctx context.Context) error {
	if a.what != doKill {
		_, err := run(ctx, "systemctl", a.what, a.unit)
		if a.unit != workersUnitOf {
			return err
		}
		if err == nil {
			return fmt.Errorf("%s was not refused", a)
		}
		return nil
	}
	if a.unit == workersUnitOf {
		if pid, err := mainPID(ctx, a.unit); err == nil {
			return killProcess(pid)
		}
		return nil
	}
	return await(ctx, patience, "there is a process to kill: "+a.unit, func() error {
		pid, err := mainPID(ctx, a.unit)
		if err == nil {
			err = killProcess(pid)
		}
		return err
	})
}

func killProcess(pid int) error {
	err := syscall.Kill(pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
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
				id, state, err := t.oneJob(ctx, fmt.Sprintf("%s-%d-%d", name, lane, i))
				if f.count(id, state, err); err != nil {
					return
				}
				finished = finished || state == api.JobFinished
			}
		})
	}
	return f
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
