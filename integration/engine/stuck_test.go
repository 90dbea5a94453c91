//go:build engine

package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// freezer finds the control file that keeps a process from running, SIGKILL
// included, and what to write into it. On v2 the kernel kills frozen processes,
// so only v1's freezer makes a container that cannot be stopped.
func freezer(t *testing.T, pid int64) (file string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if fields[1] == "freezer" {
			return filepath.Join("/sys/fs/cgroup/freezer", fields[2], "freezer.state")
		}
	}
	t.Fatal("this machine has no cgroup v1 freezer; the test needs one to make an unkillable process")
	return ""
}

// A container that cannot be killed is stuck: its slot stays held, others go
// on, release passes over it, and it is retired once it dies (FR-17, I19).
func TestStuckContainer(t *testing.T) {
	lab := kit.NewLab(t, "--stuck-after", "3s") // longer than any step of the others takes
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}, Grace: "100ms"})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "echo")
	c.await(1, protocol.StateStarted)
	var pid int64
	for _, l := range c.leaves() {
		if l.Receipt.Kind == protocol.KindStarted {
			pid = body[protocol.StartedBody](t, l.Bytes).PID
		}
	}
	file := freezer(t, pid)
	write := func(state string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(state), 0); err != nil {
			t.Fatal(err)
		}
	}
	write("FROZEN")
	thawed := false
	defer func() {
		if !thawed {
			write("THAWED")
		}
	}()
	answer, err := c.gen.Retire(t.Context(), 1, protocol.RetireRequest{Purpose: "attempt-1"}, 2*time.Second)
	if err != nil || string(answer.Receipt) != "null" {
		t.Fatalf("retire: %+v, %v", answer, err)
	}
	lab.Eventually("the allocation is stuck", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), 1, "", 0)
		return err == nil && a.Stuck != nil && a.Stuck.Step == "kill" && a.Stuck.ProcessState != "" && a.Stuck.SinceMillis >= 3000, err
	})

	// Others go on, and release passes over it.
	const last = 21
	for n := protocol.Number(2); n <= last; n++ {
		c.allocate(n, "echo")
		c.await(n, protocol.StateStarted)
		c.retire(n)
		c.consume(n)
	}
	if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: last, Except: []protocol.Number{}}); !hostclient.IsCode(err, protocol.CodeNotConsumed) {
		t.Errorf("release without except: %v", err)
	}
	released, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: last, Except: []protocol.Number{1}})
	if err != nil || len(released.Carried) != 1 || released.Carried[0] != 1 {
		t.Fatalf("release: %+v, %v", released, err)
	}

	// The next life of the agent still knows it, and goes on with it.
	lab.Kill()
	lab.Start()
	host := hostOf(t, lab)
	if host.Slots.Stuck != 1 || host.Slots.Used != 1 || host.Frontiers.Released != last {
		t.Errorf("after a restart: %+v %+v", host.Slots, host.Frontiers)
	}
	write("THAWED")
	thawed = true
	a := c.await(1, protocol.StateRetired)
	var kinds []protocol.Kind
	for _, r := range a.Receipts {
		kinds = append(kinds, r.Kind)
		if _, err := c.gen.Proof(t.Context(), r.Index); err != nil {
			t.Errorf("proof of the carried receipt %d: %v", r.Index, err)
		}
	}
	if got := fmt.Sprint(kinds); got != "[accepted started stuck unstuck exited retired]" {
		t.Errorf("receipts %s", got)
	}
	c.witness()
	c.consume(1)
	released, err = c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: last, Except: []protocol.Number{}})
	if err != nil || len(released.Carried) != 0 {
		t.Errorf("release of the carried one: %+v, %v", released, err)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}
