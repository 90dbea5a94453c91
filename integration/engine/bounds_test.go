//go:build engine

package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// The limits of all allocations stay within the node's memory budget; a
// refusal consumes no number, and a retirement makes room (I7).
func TestMemoryBudget(t *testing.T) {
	lab := kit.NewLab(t, "--memory-budget", "100MiB")
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Profile("small", agenttest.Profile{Args: []string{"serve"}, Memory: "32MiB"})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	if _, err := c.gen.Allocate(t.Context(), 2, c.request("echo")); !hostclient.IsCode(err, protocol.CodeBudget) {
		t.Fatalf("a second 64 MiB within 100 MiB: %v", err)
	}
	c.allocate(2, "small") // what fits is accepted, under the number that was refused
	c.await(2, protocol.StateStarted)
	lab.Kill()
	lab.Start() // the ledger knows what is used
	c.witness()
	if _, err := c.gen.Allocate(t.Context(), 3, c.request("small")); !hostclient.IsCode(err, protocol.CodeBudget) {
		t.Errorf("after a restart: %v", err)
	}
	c.retire(1)
	c.allocate(3, "echo")
	c.retire(2)
	c.retire(3)
}

// Draining refuses new work, over a restart too, and lets the rest end; the
// answer says how much is left. Without a budget of its own the node's is the
// machine's memory.
func TestDrain(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Profile("huge", agenttest.Profile{Args: []string{"serve"}, Memory: "64TiB"})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	operator := lab.Operator().In(lab.Generation)
	list, err := operator.Profiles(t.Context())
	if err != nil || len(list) != 2 || list[1].Available || !strings.Contains(list[1].Reason, "memory_budget") {
		t.Errorf("profiles %+v, %v", list, err)
	}
	answer, err := operator.Drain(t.Context())
	if err != nil || !answer.Draining || answer.Active != 1 || len(answer.Receipt) < 10 {
		t.Fatalf("drain: %+v, %v", answer, err)
	}
	request := c.request("echo")
	lab.Kill()
	lab.Start()
	c.witness()
	if _, err := c.gen.Allocate(t.Context(), 2, request); !hostclient.IsCode(err, protocol.CodeDraining) {
		t.Errorf("allocate while draining: %v", err)
	}
	// A lost request can still be settled by a burn.
	if _, err := c.gen.Retire(t.Context(), 2, protocol.RetireRequest{Purpose: "attempt-1"}, 0); err != nil {
		t.Errorf("burn while draining: %v", err)
	}
	c.retire(1)
	again, err := operator.Drain(t.Context())
	if err != nil || again.Active != 0 || string(again.Receipt) != "null" {
		t.Errorf("drain again: %+v, %v", again, err)
	}
	if _, err := operator.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.allocate(3, "echo")
	c.retire(3)
	if got := kinds(c.leaves()); strings.Count(got, "drained") != 2 || !strings.Contains(got, "undrained") { // undrained has it in its name
		t.Errorf("receipts %s", got)
	}
}

// An operator gives the generation to another store: the old one may act on
// nothing any more, the new one on everything, once it presented what it holds.
func TestOwnerChange(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	id := protocol.NewID()
	next := &caller{t: t, lab: lab, gen: lab.Controller(id)}
	if _, err := next.gen.Retire(t.Context(), 1, protocol.RetireRequest{Purpose: "attempt-1"}, 0); !hostclient.IsCode(err, protocol.CodeOtherOwner) {
		t.Errorf("before the change: %v", err)
	}
	operator := lab.Operator().In(lab.Generation)
	changed, err := operator.SetOwner(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if b := body[protocol.OwnerChangedBody](t, changed.Receipt); b.From == nil || b.To != id || b.UID != 0 {
		t.Errorf("receipt %+v", b)
	}
	lab.Kill()
	lab.Start()
	if _, err := c.gen.Retire(t.Context(), 1, protocol.RetireRequest{Purpose: "attempt-1"}, 0); !hostclient.IsCode(err, protocol.CodeOtherOwner) {
		t.Errorf("the old owner: %v", err)
	}
	if _, err := next.gen.Allocate(t.Context(), 2, next.request("echo")); !hostclient.IsCode(err, protocol.CodeWitnessRequired) {
		t.Errorf("the new owner without a witness: %v", err)
	}
	next.witness()
	next.retire(1)
	next.consume(1)
	next.allocate(2, "echo")
	next.retire(2)
}

// Memory runs out above the allocation, where other cgroups share it: killed,
// and for the host (FR-08, I22).
func TestKilledForTheHost(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("eat", agenttest.Profile{Args: []string{"eat", "128"}, Memory: "256MiB"})
	lab.Start()
	limit := filepath.Join("/sys/fs/cgroup/memory", lab.Cgroup(), "memory.limit_in_bytes")
	if err := os.WriteFile(limit, []byte(fmt.Sprint(48<<20)), 0); err != nil {
		t.Fatal(err)
	}
	c := newCaller(t, lab)
	c.witness()
	c.allocate(1, "eat")
	c.await(1, protocol.StateRetired)
	r := c.retire(1)
	if r.OOM.Verdict != protocol.VerdictKilled || r.OOM.Scope == nil || *r.OOM.Scope != protocol.ScopeHost || *r.OOM.Counters.OOMKill < 1 {
		t.Errorf("oom %+v", r.OOM)
	}
}
