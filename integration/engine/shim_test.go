//go:build engine

package engine_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// running starts number 1 and gives its process and its shim.
func running(t *testing.T, lab *agenttest.Lab, c *caller) (pid, shim int) {
	t.Helper()
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
	lab.Start()
	c.witness()
	c.allocate(1, "echo")
	c.await(1, protocol.StateStarted)
	c.serves(1) // as its namespace's first process it ignores what it has no handler for yet
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindStarted {
			pid = int(body[protocol.StartedBody](t, l.Bytes).PID)
		}
	}
	shims, err := lab.Engine.Shims()
	if err != nil || len(shims) != 1 {
		t.Fatalf("shims %v, %v", shims, err)
	}
	return pid, shims[0].PID
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// The shim is killed while the worker runs: the status that the engine makes up
// is not recorded (FR-09, I23), and everything is removed.
func TestShimKilledWhileRunning(t *testing.T) {
	lab := kit.NewLab(t)
	c := newCaller(t, lab)
	_, shim := running(t, lab, c)
	signal(t, shim, syscall.SIGKILL)
	a := c.await(1, protocol.StateExited)
	if a.Exit == nil || a.Exit.Source != protocol.ExitFromPIDFD || a.Exit.Code != nil || a.Exit.Signal != nil {
		t.Errorf("exit %+v", a.Exit)
	}
	c.await(1, protocol.StateRetired)
	c.consume(1)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	c.leaves()
}

// The shim stands still around the exit, so that the engine says "running" for
// ever: the pidfd is the witness within exit_grace, and retirement resumes when
// the shim does (FR-10).
func TestShimStalledAroundExit(t *testing.T) {
	lab := kit.NewLab(t)
	c := newCaller(t, lab)
	pid, shim := running(t, lab, c)
	signal(t, shim, syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			signal(t, shim, syscall.SIGCONT)
		}
	}()
	began := time.Now()
	signal(t, pid, syscall.SIGTERM)
	a := c.await(1, protocol.StateExited)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the exit took %s at an exit_grace of 2 s", took)
	}
	if a.Exit == nil || a.Exit.Source != protocol.ExitFromPIDFD || a.Exit.Code != nil {
		t.Errorf("exit %+v", a.Exit)
	}
	signal(t, shim, syscall.SIGCONT)
	stopped = false
	if a := c.await(1, protocol.StateRetired); a.Exit.Source != protocol.ExitFromPIDFD {
		t.Errorf("the exit was amended: %+v", a.Exit) // FR-02
	}
	c.consume(1)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// The shim stands still while the agent restarts: the worker is taken up by its
// process, others are accepted, and its end is seen at once (FR-10, I15).
func TestShimStalledOverRestart(t *testing.T) {
	lab := kit.NewLab(t)
	c := newCaller(t, lab)
	pid, shim := running(t, lab, c)
	request := c.request("echo")
	signal(t, shim, syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			signal(t, shim, syscall.SIGCONT)
		}
	}()
	lab.Kill()
	lab.Start()
	c.witness()
	c.serves(1)
	lab.Eventually("another one is accepted", func() (bool, error) {
		_, err := c.gen.Allocate(t.Context(), 2, request)
		if hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
			return false, nil // not checked yet since the start
		}
		return err == nil, err
	})
	c.await(2, protocol.StateStarted)
	c.retire(2)
	signal(t, pid, syscall.SIGKILL)
	lab.Eventually("the exit is recorded", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		if err == nil && a.Exit != nil && (a.Exit.Source != protocol.ExitFromPIDFD || a.Exit.Code != nil) {
			t.Errorf("exit %+v", a.Exit)
		}
		return err == nil && a.Exit != nil, err
	})
	if a, err := c.gen.Get(t.Context(), 1, "", 0); err != nil || a.State == protocol.StateRetired {
		t.Errorf("retired while its shim stands still: %+v, %v", a, err)
	}
	signal(t, shim, syscall.SIGCONT)
	stopped = false
	lab.Eventually("number 1 is retired", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		return err == nil && a.State == protocol.StateRetired, err
	})
	c.consume(1)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	c.leaves()
}
