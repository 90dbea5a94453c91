//go:build engine

package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/engineproxy"
	"github.com/quittance/quittance/protocol"
)

// An engine that denies what it has: a worker that runs is taken up by its
// process, and none is retired before its process is gone and its cgroup empty;
// what the engine shows again later is removed (I16, I23, FR-11, FR-15).
func TestEngineDenies(t *testing.T) {
	for _, method := range []string{"Containers/Get", "Tasks/Get"} {
		t.Run(filepath.Dir(method), func(t *testing.T) {
			lab, proxy := proxied(t)
			lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
			lab.Start()
			c := newController(t, lab)
			n := c.start("echo")
			pid := c.pid(n)
			lab.Kill()
			hit := proxy.Arm(engineproxy.Fault{Method: method, Way: engineproxy.Deny})
			proxy.Arm(engineproxy.Fault{Method: method, Way: engineproxy.Deny, Times: 1 << 20})
			lab.Start()
			met(t, method, hit)
			if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
				t.Fatal(err)
			}
			if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted {
				t.Fatalf("state %s, exit %+v, step %s: %s", a.State, a.Exit, a.Step, a.StepError)
			}
			if status, _ := c.ask(n, "GET", "/health"); status != 200 {
				t.Errorf("the worker answers %d", status)
			}
			r := c.retire(n)
			if agenttest.Alive(pid) {
				t.Error("retired, and its process lives")
			}
			if r.Exit == nil || r.Exit.Source != protocol.ExitFromPIDFD || r.Exit.Code != nil || !r.Dispatched {
				t.Errorf("dispatched %t, exit %+v; nobody saw the code", r.Dispatched, r.Exit)
			}
			if r.OOM.Verdict != protocol.VerdictNotKilled || r.Removal.Cgroup != protocol.RemovedByUs {
				t.Errorf("verdict %s, removal %+v", r.OOM.Verdict, r.Removal)
			}
			// The engine tells the truth again; what it still has is found at the
			// next connection.
			proxy.Disarm()
			lab.Kill()
			lab.Start()
			lab.Eventually("nothing is left", func() (bool, error) { return len(lab.Leftovers()) == 0, nil })
			if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
				t.Fatal(err)
			}
			c.retire(c.start("echo"))
			c.settled()
		})
	}
}

// An engine that names another process as the one that it made: it is never
// taken for the worker, never signalled, and the allocation ends (I16, I17,
// FR-20).
func TestEngineNamesAStranger(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	stranger := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	const nobody = 1 << 22 // above every process number
	for name, pid := range map[string]int{"a stranger": stranger.Process.Pid, "this test": os.Getpid(), "the first process": 1, "nobody": nobody} {
		hit := proxy.Arm(engineproxy.Fault{Method: "Tasks/Create", Way: engineproxy.Invent, Reply: wire(t, &tasks.CreateTaskResponse{Pid: uint32(pid)})})
		n := c.allocate("echo")
		met(t, "Tasks/Create", hit)
		c.await(n, protocol.StateRetired)
		r := c.retire(n)
		if r.Reason != protocol.ReasonSetupFailed || r.Dispatched || !strings.Contains(r.Error, "prove the process") {
			t.Errorf("%s: reason %s, dispatched %t: %s", name, r.Reason, r.Dispatched, r.Error)
		}
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger: %v", err)
	}
	if err := errors.Join(stranger.Process.Kill(), ended(stranger)); err != nil {
		t.Error(err)
	}
	c.settled()
}

// ended waits for a killed process.
func ended(cmd *exec.Cmd) error {
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		return fmt.Errorf("ended with %v, not by our signal", err)
	}
	return nil
}

// An engine that tells a new life of the agent that a worker which runs has
// ended, with a code and a time, and later that it removed what it did not: the
// worker is taken up, and what is left is seen (I16, I23, FR-09).
func TestEngineLiesToANewLife(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, NoInit: true})
	lab.Start()
	c := newController(t, lab)
	n := c.start("echo")
	lab.Kill()
	ended := wire(t, &tasks.GetResponse{Process: &tasktypes.Process{Status: tasktypes.Status_STOPPED, ExitStatus: 0, ExitedAt: timestamppb.Now()}})
	hit := proxy.Arm(engineproxy.Fault{Method: "Tasks/Get", Way: engineproxy.Invent, Reply: ended})
	proxy.Arm(engineproxy.Fault{Method: "Tasks/Get", Way: engineproxy.Invent, Reply: ended, Times: 1 << 20})
	lab.Start()
	met(t, "Tasks/Get", hit)
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
		t.Fatal(err)
	}
	if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted || a.Exit != nil {
		t.Fatalf("state %s, exit %+v", a.State, a.Exit)
	}
	if status, _ := c.ask(n, "GET", "/health"); status != 200 {
		t.Errorf("the worker answers %d", status)
	}
	proxy.Disarm()
	hit = proxy.Arm(engineproxy.Fault{Method: "Tasks/Delete", Way: engineproxy.Invent, Reply: wire(t, &tasks.DeleteResponse{})})
	r := c.retire(n)
	met(t, "Tasks/Delete", hit)
	if r.Exit == nil || r.Exit.Source != protocol.ExitFromEngine || *r.Exit.Code != 3 {
		t.Errorf("exit %+v", r.Exit)
	}
	c.settled()
}

// wire is a message as it goes over the wire.
func wire(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
