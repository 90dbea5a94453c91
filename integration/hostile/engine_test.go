//go:build engine

package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/engineproxy"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// proxied is a lab whose agent reaches its engine through a proxy.
func proxied(t *testing.T, flags ...string) (*agenttest.Lab, *engineproxy.Proxy) {
	t.Helper()
	// Short, because tests wait for them; a loaded machine needs the usual ones.
	lab := kit.NewLab(t, append([]string{"--engine-create-timeout", "5s", "--engine-start-timeout", "5s"}, flags...)...)
	proxy, err := engineproxy.Start(filepath.Join(lab.Engine.Dir(), "proxy.sock"), lab.Engine.Address())
	if err != nil {
		t.Fatal(err)
	}
	// Closed at the end of the test, before the lab stops the agent.
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	lab.EngineAddress = proxy.Address()
	return lab, proxy
}

// met waits until a fault has met its call.
func met(t *testing.T, what string, hit <-chan struct{}) {
	t.Helper()
	select {
	case <-hit:
	case <-time.After(wait):
		t.Fatalf("%s: no such call", what)
	}
}

// A create whose reply was lost is unknown: the same number again gets the same
// receipt, there is one container, and it does not stay (FR-14, I11).
func TestCreateReplyLost(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	request := c.request("echo")
	for _, row := range []struct {
		method string
		way    engineproxy.Way
	}{
		{"Containers/Create", engineproxy.Lose}, {"Containers/Create", engineproxy.Withhold},
		{"Tasks/Create", engineproxy.Lose}, {"Tasks/Create", engineproxy.Withhold},
		{"Containers/Create", engineproxy.Expire}, {"Tasks/Create", engineproxy.Expire},
	} {
		t.Run(fmt.Sprint(filepath.Dir(row.method), " ", row.way), func(t *testing.T) {
			before := proxy.Calls("Containers/Create")
			hit := proxy.Arm(engineproxy.Fault{Method: row.method, Way: row.way})
			n := c.next
			first, err := c.gen.Allocate(t.Context(), n, request)
			if err != nil {
				t.Fatal(err)
			}
			c.next++
			met(t, row.method, hit)
			again, err := c.gen.Allocate(t.Context(), n, request)
			if err != nil || string(again.Receipt) != string(first.Receipt) {
				t.Errorf("the same number again: %s, %v", again.Receipt, err)
			}
			a := c.await(n, protocol.StateRetired)
			if a.State != protocol.StateRetired || *a.Reason != protocol.ReasonSetupFailed {
				t.Errorf("state %s, reason %v, step %s: %s", a.State, a.Reason, a.Step, a.StepError)
			}
			if made := proxy.Calls("Containers/Create") - before; made != 1 {
				t.Errorf("%d containers were asked for", made)
			}
			c.retire(n)
			if left := lab.Leftovers(); len(left) != 0 {
				t.Errorf("left on the machine: %v", left)
			}
		})
	}
	// A new number works.
	c.retire(c.start("echo"))
	c.settled()
}

// Each call of an allocation's life, failing in each way: the life ends all the
// same, with facts that are true, and others go on meanwhile (I11, I13, I16).
func TestEveryCall(t *testing.T) {
	lab, proxy := proxied(t, "--max-slots", "64")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	ways := []engineproxy.Way{engineproxy.Delay, engineproxy.Hold, engineproxy.Lose, engineproxy.Withhold}
	type row struct {
		method string
		way    engineproxy.Way
		number protocol.Number
	}
	var rows []row
	name := func(r row) string { return fmt.Sprint(r.method, " ", r.way) }
	fault := func(r row) engineproxy.Fault {
		return engineproxy.Fault{Method: r.method, Way: r.way, For: time.Second}
	}
	// Calls on the way to a running worker.
	for _, method := range []string{"Leases/Create", "Snapshots/Prepare", "Containers/Create", "Tasks/Create", "Tasks/Start"} {
		for _, way := range ways {
			r := row{method: method, way: way}
			hit := proxy.Arm(fault(r))
			r.number = c.allocate("echo")
			met(t, name(r), hit)
			rows = append(rows, r)
			if way != engineproxy.Delay {
				continue // it fails or times out while the next ones go on
			}
			if a := c.await(r.number, protocol.StateStarted); a.State != protocol.StateStarted {
				t.Errorf("%s: state %s, %s: %s", name(r), a.State, a.Step, a.StepError)
			}
		}
	}
	created := proxy.Calls("Containers/Create")
	if created > len(rows) {
		t.Errorf("%d containers were asked for, for %d numbers", created, len(rows))
	}
	for _, r := range rows {
		c.retire(r.number)
	}
	// Calls on the way out. The exit is seen by its pidfd whatever the engine says.
	rows = rows[:0]
	for _, method := range []string{"Tasks/Get", "Tasks/Delete", "Containers/Get", "Containers/Delete", "Snapshots/Remove", "Leases/Delete"} {
		for _, way := range ways {
			r := row{method: method, way: way, number: c.start("echo")}
			hit := proxy.Arm(fault(r))
			if _, err := c.gen.Retire(t.Context(), r.number, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
				t.Fatal(err)
			}
			met(t, name(r), hit)
			rows = append(rows, r)
		}
	}
	for _, r := range rows {
		body := c.retire(r.number)
		if body.Exit == nil || body.OOM.Verdict != protocol.VerdictNotKilled {
			t.Errorf("%s: exit %+v, oom %+v", name(r), body.Exit, body.OOM)
		}
	}
	c.settled()
}

// silenceOf is for how long the engine is away: longer than every deadline of the
// lab's agent but one, or QUITTANCE_SILENCE, 1m in the long form.
func silenceOf(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("QUITTANCE_SILENCE")
	if text == "" {
		return 12 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("QUITTANCE_SILENCE is %q, not a duration such as 1m", text)
	}
	return d
}

// outage runs lives while the engine is away, and shows what must hold: bounded
// waits, refusals without a number, exits that are not lost, recovery by itself.
func outage(t *testing.T, away, back func(lab *agenttest.Lab) error) {
	silence := silenceOf(t)
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
	lab.Start()
	c := newController(t, lab)
	request := c.request("echo")
	operator := agentctl(t)

	// Running, being created, and being retired while the engine goes away.
	var ends, stays, goes [3]protocol.Number
	for i := range ends {
		ends[i], stays[i], goes[i] = c.start("echo"), c.start("echo"), c.start("echo")
	}
	for i := range ends {
		c.serves(ends[i])
		c.serves(stays[i])
	}
	making := [2]protocol.Number{c.allocate("echo"), c.allocate("echo")}
	for _, n := range goes {
		if _, err := c.gen.Retire(t.Context(), n, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if err := away(lab); err != nil {
		t.Fatal(err)
	}
	gone := true
	defer func() {
		if gone {
			if err := back(lab); err != nil {
				t.Error(err)
			}
		}
	}()
	lab.Eventually("the agent says that the engine is unavailable", func() (bool, error) {
		host, err := lab.Operator().Host(t.Context())
		return err == nil && !host.Engine.Available && host.Engine.Detail != "", err
	})
	out, err := exec.CommandContext(t.Context(), operator, "status", "--socket", lab.Socket()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "unavailable") {
		t.Errorf("agentctl status: %v\n%s", err, out)
	}
	for _, n := range ends {
		pid := c.pid(n)
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range ends { // FR-10, FR-11: seen while the engine says nothing
		if a := c.await(n, protocol.StateExited); a.Exit == nil || a.Exit.Source == protocol.ExitFromNone {
			t.Errorf("number %d: exit %+v", n, a.Exit)
		}
	}
	refusals := 0
	for time.Since(began) < silence {
		asked := time.Now()
		_, err := c.gen.Allocate(t.Context(), c.next, request)
		if !hostclient.IsCode(err, protocol.CodeEngineUnavailable) && !hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
			t.Fatalf("allocate without an engine: %v", err)
		}
		refusals++
		for _, n := range stays {
			if a, err := c.gen.Get(t.Context(), n, "", 0); err != nil || a.State != protocol.StateStarted {
				t.Errorf("number %d: %+v, %v", n, a, err)
			}
		}
		if took := time.Since(asked); took > 9*time.Second {
			t.Errorf("a refusal and three reads took %s", took)
		}
		if _, err := c.gen.Get(t.Context(), stays[0], protocol.StateExited, time.Second); err != nil { // a second's pause
			t.Fatal(err)
		}
	}
	t.Logf("%d refusals in %s", refusals, time.Since(began).Round(time.Second))
	gone = false
	if err := back(lab); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("new work is accepted again", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), c.next, request)
		if hostclient.IsCode(err, protocol.CodeEngineUnavailable) || hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
			return false, nil
		}
		return err == nil, err
	})
	last := c.next
	c.next++
	if a := c.await(last, protocol.StateStarted); a.State != protocol.StateStarted {
		t.Errorf("number %d after the outage: %s, %s: %s", last, a.State, a.Step, a.StepError)
	}
	for _, n := range ends {
		if r := c.retire(n); r.Reason != protocol.ReasonExited || !r.Dispatched {
			t.Errorf("number %d: reason %s", n, r.Reason)
		}
	}
	for _, n := range stays {
		if r := c.retire(n); r.Reason != protocol.ReasonRequested || r.Exit.Code == nil || *r.Exit.Code != 3 {
			t.Errorf("number %d: reason %s, exit %+v", n, r.Reason, r.Exit)
		}
	}
	for _, n := range append(goes[:], making[0], making[1], last) {
		c.retire(n)
	}
	c.settled()
}

// The engine is stopped for a while under load (FR-11).
func TestEngineStopped(t *testing.T) {
	outage(t, func(lab *agenttest.Lab) error { return lab.Engine.Stop() }, func(lab *agenttest.Lab) error { return lab.RestartEngine() })
}

// The engine hangs for a while under load.
func TestEngineHangs(t *testing.T) {
	outage(t, func(lab *agenttest.Lab) error { return lab.Engine.Pause() }, func(lab *agenttest.Lab) error { return lab.Engine.Resume() })
}

// serves waits until the worker answers: before it has a handler for SIGTERM the
// first process of a namespace ignores it.
func (c *controller) serves(n protocol.Number) {
	c.t.Helper()
	if status, answer := c.ask(n, "GET", "/health"); status != 200 {
		c.t.Fatalf("number %d answers %d %s", n, status, answer)
	}
}

// pid is the first process of a started allocation.
func (c *controller) pid(n protocol.Number) int {
	c.t.Helper()
	leaves, err := c.gen.Receipts(c.t.Context(), hostclient.ReceiptsQuery{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range leaves {
		if l.Receipt.Kind == protocol.KindStarted && *l.Receipt.Number == n {
			return int(body[protocol.StartedBody](c.t, l.Bytes).PID)
		}
	}
	c.t.Fatalf("number %d has not started", n)
	return 0
}

// A start whose reply was lost may have begun the worker. Where the engine can
// be asked, it did, and the worker runs; where it is silent until the deadline,
// the worker is killed and its end observed. It is never taken for one that was
// not dispatched (I11, I16, FR-15).
func TestStartReplyLost(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	request := c.request("echo")
	for _, way := range []engineproxy.Way{engineproxy.Lose, engineproxy.Withhold, engineproxy.Hold} {
		t.Run(way.String(), func(t *testing.T) {
			hit := proxy.Arm(engineproxy.Fault{Method: "Tasks/Start", Way: way})
			n := c.next
			first, err := c.gen.Allocate(t.Context(), n, request)
			if err != nil {
				t.Fatal(err)
			}
			c.next++
			met(t, "Tasks/Start", hit)
			want := protocol.ReasonSetupFailed
			if way == engineproxy.Lose {
				want = protocol.ReasonRequested
				if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted {
					t.Errorf("state %s, step %s: %s", a.State, a.Step, a.StepError)
				}
			} else if a := c.await(n, protocol.StateRetired); a.State != protocol.StateRetired {
				t.Fatalf("state %s, step %s: %s", a.State, a.Step, a.StepError)
			}
			again, err := c.gen.Allocate(t.Context(), n, request)
			if err != nil || string(again.Receipt) != string(first.Receipt) {
				t.Errorf("the same number again: %s, %v", again.Receipt, err)
			}
			r := c.retire(n)
			if (r.Error != "") != (way != engineproxy.Lose) {
				t.Errorf("error %q", r.Error)
			}
			if r.Reason != want || !r.Dispatched || r.Exit == nil || r.Exit.Source == protocol.ExitFromNone ||
				r.Removal.Container != protocol.RemovedByUs {
				t.Errorf("reason %s, dispatched %v, exit %+v, removal %+v", r.Reason, r.Dispatched, r.Exit, r.Removal)
			}
		})
	}
	c.settled()
}

// An engine that lies: an end that it invents while the worker runs is not
// recorded, and the true one is; a worker that it calls running after its end
// has ended all the same (FR-09, FR-10, I23).
func TestEngineLies(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
	lab.Start()
	c := newController(t, lab)
	message := func(m proto.Message) []byte {
		t.Helper()
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}

	invented := message(&tasks.WaitResponse{ExitStatus: 137, ExitedAt: timestamppb.Now()})
	hit := proxy.Arm(engineproxy.Fault{Method: "Tasks/Wait", Way: engineproxy.Invent, Reply: invented, Times: 3})
	n := c.start("echo")
	met(t, "Tasks/Wait", hit)
	if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted || a.Exit != nil {
		t.Errorf("state %s, exit %+v", a.State, a.Exit)
	}
	if status, _ := c.ask(n, "GET", "/health"); status != 200 {
		t.Errorf("the worker answers %d", status)
	}
	if r := c.retire(n); r.Exit.Source != protocol.ExitFromEngine || r.Exit.Code == nil || *r.Exit.Code != 3 {
		t.Errorf("exit %+v", r.Exit)
	}

	n = c.start("echo")
	c.serves(n)
	pid := c.pid(n)
	running := message(&tasks.GetResponse{Process: &tasktypes.Process{Pid: uint32(pid), Status: tasktypes.Status_RUNNING}})
	proxy.Arm(engineproxy.Fault{Method: "Tasks/Get", Way: engineproxy.Invent, Reply: running, Times: 4})
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if a := c.await(n, protocol.StateExited); a.Exit == nil || a.Exit.Source == protocol.ExitFromNone {
		t.Errorf("exit %+v", a.Exit)
	}
	c.retire(n)
	proxy.Disarm()
	c.settled()
}
