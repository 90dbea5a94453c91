//go:build engine

package engine_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// Allocations that the kernel kills right at their start, one after the other:
// every verdict is killed, scope container, however late the agent reads (FR-01,
// FR-02): it is stalled for up to 500 ms around the kill. Slots, history and the
// machine are as before. QUITTANCE_KILLED is how many, 200 in the long form.
func TestManyKilledAtStart(t *testing.T) {
	many := protocol.Number(howMany(t, "QUITTANCE_KILLED", 40))
	lab := kit.NewLab(t, "--max-unreleased", "5")
	lab.Profile("eat", agenttest.Profile{Args: []string{"eat", "128"}, NoInit: true})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	for n := protocol.Number(1); n <= many; n++ {
		c.allocate(n, "eat")
		if n%2 == 0 {
			lab.Stall(rand.N(500 * time.Millisecond))
		}
		a := c.await(n, protocol.StateRetired)
		if a.OOM.Verdict != protocol.VerdictKilled || *a.OOM.Scope != protocol.ScopeContainer || *a.Reason != protocol.ReasonOOM {
			t.Errorf("number %d: reason %s, oom %+v", n, *a.Reason, a.OOM)
		}
		exited := 0
		for _, r := range a.Receipts {
			if r.Kind == protocol.KindExited {
				exited++
			}
		}
		if exited != 1 {
			t.Errorf("number %d: %d exited", n, exited)
		}
		c.consume(n)
		if n%4 == 0 {
			checkpoint, err := c.gen.Checkpoint(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{Checkpoint: &checkpoint}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: n, Except: []protocol.Number{}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	host := hostOf(t, lab)
	if host.Slots.Used != 0 || host.Slots.Unreleased != 0 || host.Frontiers != (protocol.Frontiers{Accepted: many, Released: many}) {
		t.Errorf("at the end: %+v %+v", host.Slots, host.Frontiers)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	// Idle is also what Go's collector gives back by itself.
	resident := lab.ResidentBytes()
	lab.Eventually("the idle agent has at most 40 MiB resident", func() (bool, error) {
		resident = lab.ResidentBytes()
		return resident <= 40<<20, nil
	})
	lab.Eventually("the idle agent has at most 40 descriptors open", func() (bool, error) { return lab.OpenFiles() <= 40, nil })
	t.Logf("the idle agent has %d MiB resident", resident>>20)
}
