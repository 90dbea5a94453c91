//go:build engine

package hostile

import (
	"fmt"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// Five thousand children that nobody reaps and that ignore SIGTERM: the removal
// is retried until their cgroup is empty, and others go on meanwhile (FR-18).
func TestChildStorm(t *testing.T) {
	const children = 5000
	lab := kit.NewLab(t)
	lab.Profile("storm", agenttest.Profile{
		Program: misbehave, Args: []string{"-mode", "storm", "-count", fmt.Sprint(children)},
		Memory: "4GiB", Resources: fmt.Sprintf("pids = %d", children+100), Grace: "200ms",
	})
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newController(t, lab)
	n := c.start("storm")
	c.said(n, fmt.Sprint("children ", children))
	if a := c.await(n, protocol.StateStarted); a.Peaks == nil || a.Peaks.PIDs == nil || *a.Peaks.PIDs < children {
		t.Errorf("peaks %+v", a.Peaks)
	}
	if _, err := c.gen.Retire(t.Context(), n, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
		t.Fatal(err)
	}
	other := c.start("echo")
	began := time.Now()
	c.retire(other)
	if took := time.Since(began); took > time.Minute {
		t.Errorf("another allocation took %s to retire", took)
	}
	r := c.retire(n)
	if r.Removal.Cgroup != protocol.RemovedByUs || r.OOM.Verdict != protocol.VerdictNotKilled || r.Exit.Signal == nil || *r.Exit.Signal != 9 {
		t.Errorf("removal %+v, oom %+v, exit %+v", r.Removal, r.OOM, r.Exit)
	}
	c.settled()
}
