//go:build engine

package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// freezer is the control file of the cgroup v1 freezer that a process is in:
// what is frozen there cannot be killed either. (On v2 a kill thaws.)
func freezer(t *testing.T, pid int) string {
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
	t.Fatal("this machine has no cgroup v1 freezer: nothing makes a process that cannot be killed")
	return ""
}

// cardName is that of the lab's card.
const cardName = "quittance.test/card=0"

// A frozen worker keeps its slot and its device and is stuck, with what was seen:
// nobody else gets the card, and twenty other allocations go through meanwhile,
// at their usual pace. Thawed, it is unstuck and retired by itself, and the card
// is granted again (FR-17, I16, I19).
func TestFrozenWorkerAmongOthers(t *testing.T) {
	lab := kit.NewLab(t, "--stuck-after", "3s", "--max-slots", "2") // longer than any step of the others takes
	lab.Profile("frozen", agenttest.Profile{Args: []string{"serve"}, Grace: "100ms", Tables: lab.Card()})
	lab.Profile("other", agenttest.Profile{Args: []string{"serve"}, NoInit: true, Grace: "100ms"})
	lab.Start()
	c := newController(t, lab)
	// lives goes through some of them and says how long one in the middle takes: one
	// alone may be slow for the machine's sake.
	lives := func(count int) time.Duration {
		t.Helper()
		var took []time.Duration
		for range count {
			began := time.Now()
			if r := c.retire(c.start("other")); r.Reason != protocol.ReasonRequested {
				t.Errorf("reason %s", r.Reason)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[count/2]
	}
	usual := lives(5)
	card := c.request("frozen")
	n := c.start("frozen")
	// onlyTheStuck wants its slot and its card held, and no slot besides.
	onlyTheStuck := func(when string) {
		t.Helper()
		host, err := lab.Operator().Host(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if host.Slots.Max != 2 || host.Slots.Used != 1 || host.Slots.Stuck != 1 {
			t.Errorf("%s: slots %+v, want one of two used, by the stuck one", when, host.Slots)
		}
		if _, err := c.gen.Allocate(t.Context(), c.next, card); !hostclient.IsCode(err, protocol.CodeDeviceUnavailable) ||
			!strings.Contains(err.Error(), fmt.Sprintf("%s is quarantined: number %d holds it and is stuck", cardName, n)) {
			t.Errorf("%s: an allocation of the card: %v", when, err)
		}
	}
	file := freezer(t, c.pid(n))
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
	if _, err := c.gen.Retire(t.Context(), n, protocol.RetireRequest{Purpose: purpose}, 0); err != nil {
		t.Fatal(err)
	}
	lab.Eventually("the allocation is stuck", func() (bool, error) {
		a, err := c.gen.Get(t.Context(), n, "", 0)
		return err == nil && a.Stuck != nil && a.Stuck.Step == "kill" && a.Stuck.ProcessState != "" && a.Stuck.WaitChannel != "", err
	})
	onlyTheStuck("before the others")
	beside := lives(20)
	t.Logf("a life took %s before, and %s beside the stuck one", usual.Round(time.Millisecond), beside.Round(time.Millisecond))
	if beside > 10*usual+10*time.Second {
		t.Errorf("a life beside the stuck one took %s, %s before", beside, usual)
	}
	onlyTheStuck("after the others")
	// Its slot stays held: with one more the node is full.
	held := c.start("other")
	if _, err := c.gen.Allocate(t.Context(), c.next, c.request("other")); !hostclient.IsCode(err, protocol.CodeCapacity) {
		t.Errorf("a third allocation of two slots: %v", err)
	}
	c.retire(held)
	write("THAWED")
	thawed = true
	a := c.await(n, protocol.StateRetired)
	var kinds []protocol.Kind
	for _, r := range a.Receipts {
		kinds = append(kinds, r.Kind)
	}
	if got := fmt.Sprint(kinds); got != "[accepted started stuck unstuck exited retired]" {
		t.Errorf("receipts %s", got)
	}
	next := c.start("frozen")
	if a := c.await(next, protocol.StateStarted); len(a.Devices) != 1 || a.Devices[0].Name != cardName {
		t.Errorf("the card of the stuck one was not granted again: %v", a.Devices)
	}
	c.retire(next)
	c.retire(n)
	c.settled()
}
