package worker

import (
	"context"
	"errors"
	"os/exec"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/quittance/quittance/hostagent/internal/core"
	"github.com/quittance/quittance/hostagent/internal/engine"
	"github.com/quittance/quittance/hostagent/internal/process"
	"github.com/quittance/quittance/protocol"
)

const (
	testNonce  = protocol.ID("000000000000000000000000000000aa")
	longest    = 60 * time.Second
	lateAppear = 30 * time.Second
)

// fakeEngine answers Inspect by a function of the time since it was made; what
// the tests do not need fails.
type fakeEngine struct {
	inspect func() (engine.Container, error)
	task    func() (engine.Task, error)
	wait    func() (engine.Exit, error) // nil: not asked
	deleted []string
	running int // DeleteTask answers ErrRunning so often
	killed  int
}

var errUnasked = errors.New("fake engine: not asked by this test")

func (f *fakeEngine) LongestCall() time.Duration { return longest }
func (f *fakeEngine) ResolveImage(context.Context, string) (engine.Image, error) {
	return engine.Image{}, errUnasked
}
func (f *fakeEngine) Create(context.Context, engine.CreateRequest) (engine.Created, error) {
	return engine.Created{}, errUnasked
}
func (f *fakeEngine) Start(context.Context, engine.Identity) error { return errUnasked }
func (f *fakeEngine) Inspect(context.Context, string) (engine.Container, error) {
	return f.inspect()
}
func (f *fakeEngine) Task(context.Context, engine.Identity) (engine.Task, error) { return f.task() }
func (f *fakeEngine) Wait(context.Context, engine.Identity) (engine.Exit, error) {
	if f.wait == nil {
		return engine.Exit{}, errUnasked
	}
	return f.wait()
}
func (f *fakeEngine) Kill(context.Context, engine.Identity, unix.Signal, bool) error {
	f.killed++
	return nil
}
func (f *fakeEngine) DeleteTask(context.Context, engine.Identity) (protocol.Removed, error) {
	if f.running > 0 {
		f.running--
		return "", engine.ErrRunning
	}
	f.deleted = append(f.deleted, "task")
	return protocol.RemovedByUs, nil
}
func (f *fakeEngine) DeleteContainer(context.Context, engine.Identity) (engine.Removal, error) {
	return engine.Removal{}, errUnasked
}

// newWorker makes a worker without its goroutine; events collects what it posts.
func newWorker(e Engine) (w *worker, events *[]core.Event) {
	events = new([]core.Event)
	m := New(Config{Engine: e, BootID: "b", Logger: hclog.NewNullLogger(), Post: func(e core.Event) { *events = append(*events, e) }})
	return &worker{m: m, number: 1, effects: make(chan core.Effect, queueLength), log: hclog.NewNullLogger()}, events
}

// A creation whose outcome is unknown may land late: its absence is believed
// only after the longest engine deadline (I11, FR-14).
func TestUnsettledCreationIsLookedForAgain(t *testing.T) {
	late := engine.Container{Identity: engine.Identity{ID: engine.ContainerID(testNonce), Nonce: testNonce, Created: 7}}
	for name, row := range map[string]struct {
		unsettled bool
		appears   time.Duration // 0: never
		takes     time.Duration
		created   protocol.Timestamp
	}{
		"settled and absent":     {takes: 0},
		"unsettled and absent":   {unsettled: true, takes: longest},
		"unsettled and late":     {unsettled: true, appears: lateAppear, takes: longest, created: 7},
		"unsettled and there":    {unsettled: true, appears: -1, created: 7},
		"settled, but it exists": {appears: -1, created: 7},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w, _ := newWorker(&fakeEngine{inspect: func() (engine.Container, error) {
					if row.appears != 0 && time.Since(began) >= row.appears {
						return late, nil
					}
					return engine.Container{}, engine.ErrNotFound
				}})
				known, err := w.settle(t.Context(), core.RemoveEffect{Number: 1, Nonce: testNonce, Unsettled: row.unsettled})
				if err != nil || known.ID != engine.ContainerID(testNonce) || known.Created != row.created {
					t.Errorf("settled on %+v, %v", known, err)
				}
				if took := time.Since(began); took != row.takes {
					t.Errorf("took %s, want %s", took, row.takes)
				}
			})
		})
	}
}

// A container that has our name and another nonce is never touched (FR-33).
func TestStrangerIsNotTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := newWorker(&fakeEngine{inspect: func() (engine.Container, error) {
			return engine.Container{Identity: engine.Identity{ID: engine.ContainerID(testNonce), Nonce: "other"}}, nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := w.settle(ctx, core.RemoveEffect{Number: 1, Nonce: testNonce}); !errors.Is(err, errStopping) {
			t.Errorf("settle: %v", err)
		}
		last := (*events)[len(*events)-1].(core.WorkProgress)
		if last.Error != engine.ErrOther.Error() || last.Step != "find container" {
			t.Errorf("reported %+v", last)
		}
	})
}

// An engine that is down delays a step and never ends it: the tries become
// rarer, each failure is reported, and the first success is the end.
func TestStepIsRepeatedWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		tries := 0
		w, events := newWorker(&fakeEngine{inspect: func() (engine.Container, error) {
			tries++
			if time.Since(began) < 10*time.Minute {
				return engine.Container{}, engine.ErrUnavailable
			}
			return engine.Container{}, engine.ErrNotFound
		}})
		if _, err := w.settle(t.Context(), core.RemoveEffect{Number: 1, Nonce: testNonce}); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		if took < 10*time.Minute || took > 10*time.Minute+longestBackoff || tries > 140 {
			t.Errorf("%d tries in %s", tries, took)
		}
		if len(*events) != tries { // the step's begin, and each failure
			t.Errorf("%d reports for %d tries", len(*events), tries)
		}
		if first := (*events)[0].(core.WorkProgress); first.Error != "" || first.Step != "find container" {
			t.Errorf("first report %+v", first)
		}
	})
}

// The agent's end ends every wait at once and reports nothing.
func TestStopEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, events := newWorker(&fakeEngine{inspect: func() (engine.Container, error) { return engine.Container{}, engine.ErrNotFound }})
		go func() {
			time.Sleep(time.Second) // virtual: in the middle of the wait
			w.m.end()
		}()
		began := time.Now()
		w.remove(core.RemoveEffect{Number: 1, Nonce: testNonce, Unsettled: true})
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %s", took)
		}
		if slices.ContainsFunc(*events, func(e core.Event) bool { _, removed := e.(core.WorkRemoved); return removed }) {
			t.Error("a removal was reported")
		}
	})
}

// A task that still runs, because only its first process ended or none was
// started, is killed before it is deleted (I17).
func TestRunningTaskIsKilledThenDeleted(t *testing.T) {
	f := &fakeEngine{running: 1}
	w, _ := newWorker(f)
	if _, err := w.endTask(t.Context(), engine.Identity{}); !errors.Is(err, engine.ErrRunning) || f.killed != 1 {
		t.Errorf("first try: %v, %d kills", err, f.killed)
	}
	if removed, err := w.endTask(t.Context(), engine.Identity{}); err != nil || removed != protocol.RemovedByUs || f.killed != 1 {
		t.Errorf("second try: %s, %v, %d kills", removed, err, f.killed)
	}
}

// What an earlier life left of a container that was never recorded never ran,
// whatever the engine has of it; and a process that did not survive the machine
// ended with it (FR-13, FR-16).
func TestInspectWithoutProcess(t *testing.T) {
	w, _ := newWorker(&fakeEngine{inspect: func() (engine.Container, error) { return engine.Container{}, engine.ErrNotFound }})
	event, end, err := w.look(t.Context(), core.InspectEffect{Number: 1, Nonce: testNonce})
	if _, never := event.(core.WorkNeverRan); !never || end != nil || err != nil {
		t.Errorf("not recorded: %#v, %+v, %v", event, end, err)
	}
	created := &core.CreatedBody{BootID: "earlier", Container: protocol.Container{ID: engine.ContainerID(testNonce), Nonce: testNonce}}
	event, end, err = w.look(t.Context(), core.InspectEffect{Number: 1, Nonce: testNonce, Created: created, Ran: true, Rebooted: true})
	if event != nil || err != nil || end == nil || end.Source != protocol.ExitFromReboot || end.Code != nil {
		t.Errorf("rebooted: %#v, %+v, %v", event, end, err)
	}
	// Another container in its place stops everything.
	w, _ = newWorker(&fakeEngine{inspect: func() (engine.Container, error) {
		return engine.Container{Identity: engine.Identity{ID: engine.ContainerID(testNonce), Nonce: testNonce, Created: 9}}, nil
	}})
	if _, _, err = w.look(t.Context(), core.InspectEffect{Number: 1, Nonce: testNonce, Created: created, Rebooted: true}); !errors.Is(err, engine.ErrOther) {
		t.Errorf("another container: %v", err)
	}
}

// The engine reports an end while the process runs: that status is not believed,
// and the one after the true end is (I23).
func TestUntrueExitIsIgnored(t *testing.T) {
	child := exec.Command("cat")
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := process.Identify(int64(child.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	w, _ := newWorker(&fakeEngine{wait: func() (engine.Exit, error) {
		if asked++; asked <= 2 {
			return engine.Exit{Code: 137}, nil
		}
		// The true end: a shim reports it once it has reaped.
		return engine.Exit{Code: 0}, errors.Join(input.Close(), child.Wait())
	}})
	if w.proc, err = process.Open(id); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.proc.Close(); err != nil {
			t.Error(err)
		}
	}()
	reported := make(chan engine.Exit, 1)
	w.observeEngine(t.Context(), reported)
	if exit := <-reported; exit.Code != 0 || asked != 3 {
		t.Errorf("reported %+v after %d questions", exit, asked)
	}
}

// An agent that starts just after a process ended asks the engine before the
// shim has told it: the exit is waited for, and unknown only without a report
// (I23, FR-15).
func TestExitIsReportedAMomentLater(t *testing.T) {
	told := engine.Exit{Code: 137, At: 5}
	const grace = 5 * time.Second
	for name, row := range map[string]struct {
		task  engine.Task
		after int // questions without an answer
		want  protocol.Exit
		takes time.Duration
	}{
		"already known":   {task: engine.Task{State: engine.TaskStopped, Exit: &told}, want: told.Receipt()},
		"a moment later":  {task: engine.Task{State: engine.TaskRunning}, after: 2, want: told.Receipt(), takes: 3 * firstBackoff},
		"a slow shim":     {task: engine.Task{State: engine.TaskUnknown}, after: 1, want: told.Receipt(), takes: firstBackoff},
		"paused, later":   {task: engine.Task{State: engine.TaskPaused}, after: 1, want: told.Receipt(), takes: firstBackoff},
		"never":           {task: engine.Task{State: engine.TaskRunning}, after: 1 << 20, want: protocol.Exit{Source: protocol.ExitFromNone}, takes: grace},
		"seen by nobody":  {task: engine.Task{State: engine.TaskStopped}, want: protocol.Exit{Source: protocol.ExitFromNone}},
		"never was begun": {task: engine.Task{State: engine.TaskCreated}, want: protocol.Exit{Source: protocol.ExitFromNone}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				w, _ := newWorker(&fakeEngine{wait: func() (engine.Exit, error) {
					if asked++; asked <= row.after {
						return engine.Exit{}, errors.New("not now")
					}
					return told, nil
				}})
				w.m.cfg.ExitGrace = grace
				began := time.Now()
				if got := w.exitBefore(t.Context(), row.task); !reflect.DeepEqual(got, row.want) {
					t.Errorf("exit %+v, want %+v", got, row.want)
				}
				if took := time.Since(began); took != row.takes {
					t.Errorf("took %s, want %s", took, row.takes)
				}
			})
		})
	}
}
