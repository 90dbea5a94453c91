//go:build engine

package engine_test

import (
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// An engine that hangs while the agent starts delays neither the socket nor
// what is known, and refuses new work before a number is consumed; what ran is
// adopted when the engine answers again.
func TestEngineHangsAtStart(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	c.allocate(1, "echo")
	before := c.await(1, protocol.StateStarted)
	lab.Kill()
	if err := lab.Engine.Pause(); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := lab.Engine.Resume(); err != nil {
				t.Error(err)
			}
		}
	}
	defer resume()
	began := time.Now()
	lab.Launch()
	lab.Eventually("the agent answers", func() (bool, error) {
		_, err := lab.Operator().Host(t.Context())
		return err == nil, nil
	})
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the socket answered after %s", took)
	}
	if host := hostOf(t, lab); host.Engine.Available || host.Engine.Detail == "" {
		t.Errorf("engine %+v", host.Engine)
	}
	c.witness()
	if _, err := c.gen.Allocate(t.Context(), 2, request); !hostclient.IsCode(err, protocol.CodeEngineUnavailable) {
		t.Errorf("allocate while the engine hangs: %v", err)
	}
	if a, err := c.gen.Get(t.Context(), 1, "", 0); err != nil || a.State != protocol.StateStarted {
		t.Errorf("the allocation while the engine hangs: %+v, %v", a, err)
	}
	resume()
	lab.Eventually("the container is adopted", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		return err == nil && a.Step == "running" && *a.Container == *before.Container, err
	})
	c.retire(1)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}
