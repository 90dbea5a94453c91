//go:build engine

package engine_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
)

// howMany is a count that the environment may name for a test's long form.
func howMany(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number of allocations", variable, text)
	}
	return n
}

// Fifty allocations at once, and many in a row through one slot's worth of
// history: nothing of them is left, mounts, snapshots, leases, cgroups and shims
// included, and agent and engine hold no more than at the start: goroutines,
// descriptors, memory. QUITTANCE_MANY is how many in a row, 2,000 in the long form.
func TestManyAllocations(t *testing.T) {
	const atOnce = 50
	many := howMany(t, "QUITTANCE_MANY", 60)
	lab := kit.NewLab(t, "--max-slots", fmt.Sprint(atOnce+14), "--max-unreleased", fmt.Sprint(atOnce+14), "--memory-budget", "4GiB",
		"--engine-create-timeout", "5m", "--engine-start-timeout", "5m")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Memory: "32MiB"})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	release := func(up protocol.Number) {
		t.Helper()
		checkpoint, err := c.gen.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{Checkpoint: &checkpoint}); err != nil {
			t.Fatal(err)
		}
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
	goroutines := lab.Goroutines()
	lab.Start()
	c.witness()
	one(2)
	release(2)
	files, engineFiles, resident := lab.OpenFiles(), openFiles(t, lab.Engine.PID()), lab.ResidentBytes()

	began := time.Now()
	n := protocol.Number(2)
	for range many {
		n++
		one(n)
		if n%8 == 0 {
			release(n)
		}
	}
	release(n)
	inARow := time.Since(began)
	first := n + 1
	for range atOnce {
		n++
		c.allocate(n, "echo")
	}
	var all sync.WaitGroup
	failures := make([]error, n+1)
	for i := first; i <= n; i++ {
		all.Go(func() {
			failures[i] = c.through(i)
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
	lab.Eventually("the engine's descriptors are as before", func() (bool, error) { return openFiles(t, lab.Engine.PID()) <= engineFiles+4, nil })
	if host := hostOf(t, lab); host.Frontiers.Accepted != n || host.Frontiers.Released != n || host.Slots.Used != 0 || host.Slots.Unreleased != 0 {
		t.Errorf("%+v %+v", host.Frontiers, host.Slots)
	}
	t.Logf("%d in a row within %s, %d at once; agent: %d and %d descriptors, %d and %d MiB resident; engine: %d and %d descriptors",
		many, inARow.Round(time.Second), atOnce, files, lab.OpenFiles(), resident>>20, lab.ResidentBytes()>>20, engineFiles, openFiles(t, lab.Engine.PID()))
	// What the collector has not given back after the burst is within this.
	lab.Eventually("the agent's memory is as before", func() (bool, error) { return lab.ResidentBytes() <= resident+32<<20, nil })
	after := lab.Goroutines() // ends the agent
	t.Logf("%d and %d goroutines", goroutines, after)
	if after > goroutines+4 {
		t.Errorf("%d goroutines, %d at the start: see the stacks in the log", after, goroutines)
	}
}

// through has a number start and end, beside others.
func (c *caller) through(n protocol.Number) error {
	for tries := 1; ; tries++ {
		a, err := c.gen.Get(c.t.Context(), n, protocol.StateStarted, 60*time.Second)
		if err != nil {
			return err
		}
		if a.State == protocol.StateStarted {
			break
		}
		if tries == longPolls || agenttest.Reached(a.State, protocol.StateStarted) {
			return fmt.Errorf("number %d is %s, %s: %s", n, a.State, a.Step, a.StepError)
		}
	}
	for tries := 1; ; tries++ {
		a, err := c.gen.Retire(c.t.Context(), n, protocol.RetireRequest{Purpose: "attempt-1"}, 60*time.Second)
		if err != nil || a.LeafHash != nil {
			return err
		}
		if tries == longPolls {
			return fmt.Errorf("number %d is not retired: %+v", n, a.Allocation)
		}
	}
}

// openFiles counts a process's descriptors.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
