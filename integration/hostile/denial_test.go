//go:build engine

package hostile

import (
	"path/filepath"
	"testing"

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
