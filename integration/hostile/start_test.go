//go:build engine

package hostile

import (
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/integration/engineproxy"
	"github.com/quittance/quittance/protocol"
)

// A start whose answer never came may have happened: the retirement does not
// claim that nothing ran, and the end that it names was seen (I11, I13).
func TestStartNeverLearnt(t *testing.T) {
	lab, proxy := proxied(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	for _, way := range []engineproxy.Way{engineproxy.Hold, engineproxy.Withhold} {
		hit := proxy.Arm(engineproxy.Fault{Method: "Tasks/Start", Way: way})
		n := c.allocate("echo")
		met(t, "Tasks/Start", hit)
		if a := c.await(n, protocol.StateRetired); a.Reason == nil || *a.Reason != protocol.ReasonSetupFailed {
			t.Errorf("way %v: %+v", way, a)
		}
		body := c.retire(n)
		if !body.Dispatched || body.Exit == nil || body.Exit.Source == protocol.ExitFromNone || body.Error == "" {
			t.Errorf("way %v: dispatched %v, exit %+v, error %q", way, body.Dispatched, body.Exit, body.Error)
		}
	}
	c.settled()
}
