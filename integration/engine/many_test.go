//go:build engine

package engine_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// Fifty allocations at once, and many in a row through one slot's worth of
// history: nothing of them is left, mounts, snapshots and leases included, and
// the agent holds no more than at the start.
func TestManyAllocations(t *testing.T) {
	const atOnce, inARow = 50, 60
	lab := kit.NewLab(t, "--max-slots", "64", "--max-unreleased", "64", "--memory-budget", "4GiB", "--engine-create-timeout", "60s", "--engine-start-timeout", "60s")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Memory: "32MiB"})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	release := func(up protocol.Number) {
		t.Helper()
		if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: up, Except: []protocol.Number{}}); err != nil {
			t.Fatalf("release %d: %v", up, err)
		}
	}
	one := func(n protocol.Number) {
		t.Helper()
		c.running(n)
		c.retire(n)
		c.consume(n)
	}
	one(1) // whatever is opened once is open now
	release(1)
	files := lab.OpenFiles()

	n := protocol.Number(1)
	for range inARow {
		n++
		one(n)
		if n%8 == 0 {
			release(n)
		}
	}
	release(n)
	first := n + 1
	for range atOnce {
		n++
		c.allocate(n, "echo")
	}
	var all sync.WaitGroup
	failures := make([]error, n+1)
	for i := first; i <= n; i++ {
		all.Go(func() {
			if a, err := c.gen.Get(t.Context(), i, protocol.StateStarted, 60*time.Second); err != nil || a.State != protocol.StateStarted {
				failures[i] = fmt.Errorf("number %d is %s: %w", i, a.State, err)
				return
			}
			_, failures[i] = c.gen.Retire(t.Context(), i, protocol.RetireRequest{Purpose: "attempt-1"}, 60*time.Second)
		})
	}
	all.Wait()
	for _, err := range failures {
		if err != nil {
			t.Error(err)
		}
	}
	for i := first; i <= n; i++ {
		c.consume(i)
	}
	release(n)
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	lab.Eventually("the agent's descriptors are as before", func() (bool, error) { return lab.OpenFiles() <= files+2, nil })
	if host := hostOf(t, lab); host.Frontiers.Accepted != 1+inARow+atOnce || host.Frontiers.Released != host.Frontiers.Accepted || host.Slots.Used != 0 {
		t.Errorf("%+v %+v", host.Frontiers, host.Slots)
	}
}
