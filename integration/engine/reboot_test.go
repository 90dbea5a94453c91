//go:build engine

package engine_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// After a reboot a card is granted again only once its allocation of the earlier
// boot was compared with what lives: nothing while the engine does not answer;
// then the card of what is gone, and not the one of what cannot be ended. No
// exit is invented (I9, I16, I19, FR-13, FR-17).
func TestRebootKeepsLeases(t *testing.T) {
	lab := kit.NewLab(t, append(patientCreate, "--stuck-after", "1s")...)
	cards := newCards(t, lab, 2)
	deviceProfiles(lab)
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	one := c.request("one")
	c.allocate(1, "one")
	c.await(1, protocol.StateStarted)
	shims, err := lab.Engine.Shims()
	if err != nil || len(shims) != 1 {
		t.Fatalf("shims %v, %v", shims, err)
	}
	c.allocate(2, "one")
	c.await(2, protocol.StateStarted)
	retired := func(n protocol.Number) {
		t.Helper()
		lab.Eventually("number "+n.String()+" is retired", func() (bool, error) {
			a, err := c.gen.Get(t.Context(), n, "", 0)
			return err == nil && a.State == protocol.StateRetired, err
		})
	}
	var pids [3]int
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindStarted {
			pids[*l.Receipt.Number] = int(body[protocol.StartedBody](t, l.Bytes).PID)
		}
	}
	signal(t, shims[0].PID, syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			signal(t, shims[0].PID, syscall.SIGCONT)
		}
	}()

	// Another boot, for the agent; the engine hangs.
	lab.Kill()
	if err := lab.Engine.Pause(); err != nil {
		t.Fatal(err)
	}
	paused := true
	defer func() {
		if paused {
			if err := lab.Engine.Resume(); err != nil {
				t.Error(err)
			}
		}
	}()
	lab.BootID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	lab.Launch()
	lab.Eventually("the agent serves", func() (bool, error) {
		host, err := lab.Operator().Host(t.Context())
		return err == nil && strings.HasPrefix(string(host.BootID), "6ba7b810"), nil
	})
	c.witness()
	if _, err := c.gen.Allocate(t.Context(), 3, one); !hostclient.IsCode(err, protocol.CodeEngineUnavailable) && !hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
		t.Errorf("a card before anything was compared: %v", err)
	}
	for n := range protocol.Number(2) {
		if a, err := c.gen.Get(t.Context(), n+1, "", 0); err != nil || a.State == protocol.StateRetired || len(a.Devices) == 0 {
			t.Errorf("number %d: %+v, %v", n+1, a, err)
		}
	}

	paused = false
	if err := lab.Engine.Resume(); err != nil {
		t.Fatal(err)
	}
	retired(2)
	if agenttest.Alive(pids[2]) {
		t.Error("number 2 is retired and its process lives")
	}
	lab.Eventually("number 1 is stuck", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		return err == nil && a.Stuck != nil, err
	})
	var answer protocol.EffectAnswer
	lab.Eventually("the free card is granted", func() (bool, error) {
		var err error
		answer, err = c.gen.Allocate(t.Context(), 3, one)
		if hostclient.IsCode(err, protocol.CodeEngineUnavailable) || hostclient.IsCode(err, protocol.CodeProfileUnavailable) {
			return false, nil
		}
		return err == nil, err
	})
	if b := body[protocol.AcceptedBody](t, answer.Receipt); len(b.Devices) == 0 || b.Devices[0].Nodes[0] != cards.node(1) {
		t.Errorf("number 3 got %v", b.Devices)
	}
	c.refused(4, one, "card=0 is quarantined: number 1 holds it and is stuck")
	if !agenttest.Alive(pids[1]) {
		t.Error("number 1 cannot be ended and its process is gone")
	}
	signal(t, shims[0].PID, syscall.SIGCONT)
	stopped = false
	retired(1)
	if agenttest.Alive(pids[1]) {
		t.Error("number 1 is retired and its process lives")
	}
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindExited {
			if exit := body[protocol.ExitedBody](t, l.Bytes).Exit; exit.Source != protocol.ExitFromReboot || exit.Code != nil {
				t.Errorf("number %d: exit %+v", *l.Receipt.Number, exit)
			}
		}
	}
	c.allocate(4, "one")
	for _, n := range []protocol.Number{3, 4} {
		c.await(n, protocol.StateStarted)
		c.retire(n)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", fmt.Sprint(left))
	}
}
