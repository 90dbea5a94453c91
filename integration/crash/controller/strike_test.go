//go:build crash

package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/quittance/quittance/controller/api"
	"github.com/quittance/quittance/integration/controllertest"
	"github.com/quittance/quittance/integration/crash/matrix"
	"github.com/quittance/quittance/integration/engineproxy"
)

// TestMatrix strikes every point of a job's life in the controller with every
// fault that is possible there; the job and the one after it go on to their ends,
// and an audit follows. I10, I13 to I15, I26 to I32, I35, I36, FR-22, FR-27.
func TestMatrix(t *testing.T) {
	rows := matrixRows()
	take := matrix.Part(t, names(rows), parts)
	for _, fault := range faults {
		var column []row
		for _, r := range rows {
			if r.fault == fault && take(r.String()) {
				column = append(column, r)
			}
		}
		if len(column) == 0 {
			continue
		}
		t.Run(fault, func(t *testing.T) {
			for _, r := range column {
				t.Run(r.point.name, func(t *testing.T) { newStruck(t, r).run() })
			}
		})
	}
}

// struck is one row's site.
type struck struct {
	row
	t       *testing.T
	s       *controllertest.Site
	service *controllertest.Process
	work    *controllertest.Process
	relay   *controllertest.Relay // of loseAgent
	disk    *controllertest.Disk  // of fullDisk
	mark    string
	figures string // socket of the lanes' figures

	texts       map[string]string // inputs by job
	first, next string            // the job that is struck, and the one after it

	descriptors int // of the lanes when they have done nothing
	goroutines  float64
}

func newStruck(t *testing.T, r row) *struck {
	t.Helper()
	k := &struck{row: r, t: t, texts: map[string]string{}}
	k.s = kit.NewSite(t, controllertest.Options{Lossy: r.fault == loseService, EngineProxy: r.fault == timeOut})
	k.service = k.s.StartAPI()
	switch r.fault {
	case loseAgent:
		k.relay = k.s.NewRelay(nil)
	case fullDisk:
		k.disk = k.s.SmallDisk("32m", false)
	}
	k.mark = filepath.Join(k.s.UserDir(), "struck") // the controller's user writes it
	k.figures = filepath.Join(k.s.UserDir(), "figures.sock")
	k.s.LanesFlag("--metrics-listen", "unix:"+k.figures)
	return k
}

// action is the failpoint's part in a fault.
func action(fault string) string {
	switch fault {
	case failWrite:
		return "fail"
	case failSync:
		return "failsync"
	case failName:
		return "failname"
	}
	return "stop" // and the test strikes somebody else meanwhile
}

func (k *struck) run() {
	k.t.Helper()
	k.work = k.s.StartWork("QUITTANCE_FAILPOINT="+k.point.name+":"+action(k.fault), "QUITTANCE_FAILPOINT_MARK="+k.mark)
	k.s.Eventually("the lanes are announced", func() (bool, error) { return strings.Contains(k.work.Log(), "announced"), nil })
	k.descriptors, k.goroutines = k.work.Descriptors(), k.count()
	k.first = k.submit("the job that is struck")
	k.next = k.submit("the job after it")
	if storage(k.fault) {
		k.untilFailed()
	} else {
		k.strikeAnother()
	}
	k.audit()
}

// submit creates a job; the first one fails once where the point wants that.
func (k *struck) submit(text string) string {
	k.t.Helper()
	kind := controllertest.OfferingKind
	if k.point.failing && k.first == "" {
		kind, text = "test-pure.v1", "exitonce 3 "+text
	}
	id := k.s.Create(api.CreateJob{Kind: kind, Input: &api.CreateData{Text: &text}})
	k.texts[id] = text
	return id
}

// untilFailed waits until the store's failure has ended the lanes, and starts
// them again (I35).
func (k *struck) untilFailed() {
	k.t.Helper()
	k.work.AwaitExit()
	if _, err := os.Stat(k.mark); err != nil || k.work.Killed() || k.work.Status() == 0 || !strings.Contains(k.work.Log(), "attempt store failed and takes no more writes until a restart") {
		k.t.Fatalf("the lanes ended with status %d, and not by the store's failure (%v)", k.work.Status(), err)
	}
	k.work = k.s.StartWork()
}

// strikeAnother strikes while the lanes stand still, and lets them go on.
func (k *struck) strikeAnother() {
	k.t.Helper()
	awaitStopped(k.s, k.mark)
	met, err := k.strike()
	if err != nil {
		k.t.Fatal(err)
	}
	k.work.Signal(syscall.SIGCONT)
	if k.disk != nil {
		k.refusedWhileFull()
	}
	k.s.Eventually("the strike is met", func() (bool, error) { return met(), nil })
}

// strike does what the fault says; met tells later that it has taken place.
func (k *struck) strike() (met func() bool, err error) {
	closed := func(c <-chan struct{}) func() bool {
		return func() bool {
			select {
			case <-c:
				return true
			default:
				return false
			}
		}
	}
	now := func() bool { return true }
	s := k.s
	switch k.fault {
	case killAgent:
		s.Lab.Kill()
		s.Lab.Start()
		return now, nil
	case killContainerd:
		return now, errors.Join(s.Lab.Engine.Kill(), s.Lab.RestartEngine())
	case killService:
		k.service.Kill()
		k.service = s.RestartAPI()
		return now, nil
	case killShim:
		return now, k.killShim()
	case loseService:
		s.Proxy.Lose(k.point.reply, 1)
		return func() bool { return s.Proxy.Left(k.point.reply) == 0 }, nil
	case loseAgent:
		return closed(k.relay.Lose()), nil
	case timeOut:
		return closed(s.Engine.Arm(engineproxy.Fault{Method: k.point.call, Way: engineproxy.Withhold})), nil
	case fullDisk:
		return now, k.disk.Fill()
	}
	return nil, fmt.Errorf("no such fault: %s", k.fault)
}

// killShim ends the worker's shim, which the agent may be about to make.
func (k *struck) killShim() error {
	pid := 0
	k.s.Eventually("the worker has a shim", func() (bool, error) {
		shims, err := k.s.Lab.Engine.Shims()
		if err != nil || len(shims) == 0 {
			return false, err
		}
		pid = shims[0].PID
		return true, nil
	})
	return syscall.Kill(pid, syscall.SIGKILL)
}

// refusedWhileFull waits until the job that was admitted before the disk became
// full has ended, recorded and published; no other is begun until there is space
// (I36).
func (k *struck) refusedWhileFull() {
	k.t.Helper()
	if end := endOf(k.s.Await(k.first)); end != once {
		k.t.Errorf("on a full disk the job ended %s", end)
	}
	k.s.Eventually("the lanes say that they admit nothing, and why", func() (bool, error) { return refused(k.work), nil })
	if job := k.s.Job(k.next); len(job.Attempts) != 0 || job.State != api.JobOpen {
		k.t.Errorf("on a full disk the next job is %s with %d attempts", job.State, len(job.Attempts))
	}
	k.disk.Empty()
}

// audit looks at everything that is left, once both jobs have ended.
func (k *struck) audit() {
	k.t.Helper()
	s := k.s
	allowed := map[string][]end{k.first: ends(k.row), k.next: {once}}
	if storage(k.fault) && strings.HasPrefix(k.point.name, "maintenance.") {
		// The first job had ended: the file that failed may be any of the next one's.
		allowed[k.next] = []end{once, again, interrupted}
	}
	for _, id := range []string{k.first, k.next} {
		job := s.Await(id)
		end := endOf(job)
		k.t.Logf("%q ended %s", k.texts[id], end)
		if !slices.Contains(allowed[id], end) {
			k.t.Errorf("%q ended %s (%s, failure %+v), want one of %v", k.texts[id], end, job.State, job.Failure, allowed[id])
		}
		s.VerifyReceipts(id)
	}
	s.AwaitReleased()
	k.noLeak()
	k.work.Stop()
	compare(k.t, s, k.texts)
	if left := s.Lab.Leftovers(); len(left) != 0 {
		k.t.Errorf("left on the machine: %v", left)
	}
}

// How many more an idle controller may hold than when it had done nothing:
// connections that have not been closed yet, and their two goroutines each.
const (
	spareDescriptors = 4
	spareGoroutines  = 8
)

// noLeak compares the lanes with what they were before they did anything.
func (k *struck) noLeak() {
	k.t.Helper()
	k.s.Eventually("descriptors and goroutines are as at the start", func() (bool, error) {
		return k.work.Descriptors() <= k.descriptors+spareDescriptors && k.count() <= k.goroutines+spareGoroutines, nil
	})
}

// count reads the lanes' number of goroutines.
func (k *struck) count() float64 {
	k.t.Helper()
	client := http.Client{Timeout: controllertest.Patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", k.figures)
		}}}
	answer, err := client.Get("http://figures/metrics")
	if err != nil {
		k.t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		k.t.Fatal(err)
	}
	return families["quittance_goroutines"].GetMetric()[0].GetGauge().GetValue()
}

// endOf is which of the four ends a job came to.
func endOf(job api.Job) end {
	switch {
	case job.State == api.JobFinished && len(job.Attempts) > 1:
		return again
	case job.State == api.JobFinished:
		return once
	case job.Failure != nil && (job.Failure.Code == api.FailWorkerLost || job.Failure.Code == api.FailUnavailable):
		return lost
	case job.Failure != nil && job.Failure.Code == api.FailInterrupted && job.Failure.Entered:
		return interrupted
	}
	return end(job.State)
}

// awaitStopped waits until a process stands still at its failpoint.
func awaitStopped(s *controllertest.Site, mark string) {
	s.T.Helper()
	s.Eventually("the process stands still", func() (bool, error) {
		text, err := os.ReadFile(mark)
		if err != nil {
			return false, nil
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			return false, err
		}
		return stopped(mark, pid)
	})
}

// stopped tells whether a process has made its mark and SIGSTOP has reached it.
func stopped(mark string, pid int) (bool, error) {
	if _, err := os.Stat(mark); err != nil {
		return false, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "T"), err
}

// lost: the worker was lost under the attempt, which says so.
const lost end = "lost"

// storage tells the faults that the lanes do not survive.
func storage(fault string) bool { return fault == failWrite || fault == failSync || fault == failName }

// ends are how the job that is struck may end.
func ends(r row) []end {
	p := r.point
	switch r.fault {
	case killAgent, killContainerd:
		// Once the worker was reached, nobody's end but its own matters: the
		// channel is the controller's. Before, the strike may cost the worker.
		switch {
		case p.end == again:
			return []end{again, once}
		case p.failing:
			return []end{once, lost}
		}
	case killShim:
		// The worker ends with its shim, and soon, not at once.
		switch p.name {
		case "executor.allocated":
			return []end{again, lost, once}
		case "record.acknowledged#3", "executor.entered":
			return []end{lost, once}
		}
	case timeOut:
		if p.call == "Tasks/Create" {
			return []end{once, again, lost}
		}
	case failWrite, failSync:
		// The next file is the record's next revision, or what was seen of the
		// host meanwhile: neither is taken, and nothing after it.
		return []end{p.end}
	case failName:
		// What nobody was told of may all the same be found at the next start.
		switch p.name {
		case "record.acknowledged#3":
			return []end{again, interrupted}
		case "executor.entered", "executor.answered", "executor.outcome":
			return []end{interrupted, once}
		}
		return []end{p.end}
	}
	return []end{once}
}
