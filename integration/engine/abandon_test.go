//go:build engine

package engine_test

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
	"github.com/quittance/quittance/protocol/tlog"
)

// running allocates n from the profile echo and waits until it serves.
func (c *caller) running(n protocol.Number) protocol.Allocation {
	c.t.Helper()
	c.allocate(n, "echo")
	a := c.await(n, protocol.StateStarted)
	c.serves(n)
	return a
}

// serves waits until the worker of n listens: a started process may still be
// on its way to its signal handler.
func (c *caller) serves(n protocol.Number) {
	c.t.Helper()
	c.lab.Eventually("the worker listens", func() (bool, error) {
		conn, err := c.gen.Channel(c.t.Context(), n, "attempt-1")
		if hostclient.IsCode(err, protocol.CodeNotConnectable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
}

// copyLedger puts a backup in the place of the lab's ledger.
func copyLedger(t *testing.T, lab *agenttest.Lab, backup string) {
	t.Helper()
	dir := filepath.Join(lab.StateDir(), "ledger")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
}

// refusedBehind tries to get number n, and a burn of it, from an agent whose
// ledger is behind.
func refusedBehind(t *testing.T, c *caller, n protocol.Number, request protocol.AllocateRequest) *protocol.Problem {
	t.Helper()
	_, err := c.gen.Allocate(t.Context(), n, request)
	if !hostclient.IsCode(err, protocol.CodeLedgerBehind) {
		t.Fatalf("allocate %d: %v", n, err)
	}
	if _, err := c.gen.Retire(t.Context(), n, protocol.RetireRequest{Purpose: "attempt-1"}, 0); !hostclient.IsCode(err, protocol.CodeLedgerBehind) {
		t.Errorf("burn %d: %v", n, err)
	}
	if got := hostOf(t, c.lab).Frontiers.Accepted; got != n-1 {
		t.Errorf("accepted %d, want %d", got, n-1)
	}
	return err.(*protocol.Problem)
}

// abandoned runs ledger abandon and returns what it printed, by its labels.
func abandoned(t *testing.T, lab *agenttest.Lab, generations ...protocol.ID) map[string]string {
	t.Helper()
	facts := map[string]string{}
	verb := []string{"ledger", "abandon"}
	for _, generation := range generations {
		verb = append(verb, string(generation))
	}
	for line := range strings.Lines(lab.Command(verb...)) {
		label, value, _ := strings.Cut(strings.TrimSpace(line), "  ")
		facts[label] = strings.TrimSpace(value)
	}
	return facts
}

// goesOn shows that the new generation works, and returns its genesis.
func goesOn(t *testing.T, lab *agenttest.Lab, facts map[string]string) protocol.GenesisBody {
	t.Helper()
	lab.Generation, lab.HostKey = protocol.ID(facts["generation"]), facts["host key"]
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	c.retire(1)
	c.consume(1)
	leaves := c.leaves()
	return body[protocol.GenesisBody](t, leaves[0].Bytes)
}

// The ledger is an older copy while the engine holds newer containers: nothing
// new is accepted, nothing is touched, the message says how to go on, and
// ledger abandon does it (I9).
func TestOlderLedgerRestored(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	backup := filepath.Join(t.TempDir(), "backup")
	lab.Command("ledger", "backup", backup)
	newer := c.running(2)
	request := c.request("echo")
	lab.Kill()
	copyLedger(t, lab, backup)
	lab.Start()
	fresh := lab.Controller(protocol.NewID()) // a store that holds nothing cannot tell
	if _, err := fresh.Witness(t.Context(), protocol.WitnessRequest{}); !hostclient.IsCode(err, protocol.CodeOtherOwner) {
		t.Errorf("another owner's witness: %v", err)
	}
	c.witness()
	p := refusedBehind(t, c, 2, request)
	if !strings.Contains(p.Detail, newer.Container.ID) || p.Next == "" {
		t.Errorf("detail %q, next %q", p.Detail, p.Next)
	}
	// What the ledger knows is still the owner's to retire; the other one runs on.
	c.retire(1)
	c.consume(1)
	if left := strings.Join(lab.Leftovers(), "\n"); !strings.Contains(left, "task "+newer.Container.ID) {
		t.Errorf("the unknown container was touched:\n%s", left)
	}

	if _, err := lab.TryCommand("ledger", "abandon", string(lab.Generation)); err == nil || !strings.Contains(err.Error(), "stop that agent first") {
		t.Errorf("abandon under a running agent: %v", err)
	}
	lab.Stop()
	if _, err := lab.TryCommand("ledger", "abandon"); err == nil || !strings.Contains(err.Error(), "name the generation") || !strings.Contains(err.Error(), string(lab.Generation)) {
		t.Errorf("abandon of nothing: %v", err)
	}
	if _, err := lab.TryCommand("ledger", "abandon", string(protocol.NewID())); err == nil || !strings.Contains(err.Error(), "holds nothing of generation") {
		t.Errorf("abandon of another one: %v", err)
	}
	old := lab.Generation
	facts := abandoned(t, lab, old)
	if facts["containers"] != "1 stopped and removed" {
		t.Errorf("%v", facts)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	genesis := goesOn(t, lab, facts)
	if genesis.Abandoned == nil || genesis.Abandoned.Generation != old || genesis.Abandoned.Index == nil || genesis.HostKey != facts["host key"] {
		t.Errorf("genesis %+v", genesis)
	}
	if _, err := c.gen.Allocate(t.Context(), 2, request); !hostclient.IsCode(err, protocol.CodeOtherGeneration) {
		t.Errorf("the old generation's number: %v", err)
	}
}

// The ledger is deleted: the agent refuses to start, init does not make another
// one in its place, the containers run on, and ledger abandon ends them (I9).
func TestLedgerDeleted(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	first := c.running(1)
	lab.Kill()
	if err := os.RemoveAll(filepath.Join(lab.StateDir(), "ledger")); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.TryCommand("run"); err == nil || !strings.Contains(err.Error(), "exit status 78") || !strings.Contains(err.Error(), "ledger abandon") {
		t.Errorf("run without its ledger: %v", err)
	}
	if _, err := lab.TryCommand("init"); err == nil || !strings.Contains(err.Error(), "a ledger exists, or existed") {
		t.Errorf("init in its place: %v", err)
	}
	if left := strings.Join(lab.Leftovers(), "\n"); !strings.Contains(left, "task "+first.Container.ID) {
		t.Errorf("the container was touched:\n%s", left)
	}
	old := lab.Generation
	facts := abandoned(t, lab, old)
	if facts["containers"] != "1 stopped and removed" || facts["last receipt"] != "not readable" {
		t.Errorf("%v", facts)
	}
	if genesis := goesOn(t, lab, facts); genesis.Abandoned == nil || genesis.Abandoned.Generation != old || genesis.Abandoned.Index != nil {
		t.Errorf("genesis %+v", genesis)
	}
}

// Everything of the state is lost, the marker too, and a new generation was
// made: the engine is ahead of it, and abandoning the old one is the way (I9).
func TestStateLostAndInitialised(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	first := c.running(1)
	lab.Kill()
	for _, path := range []string{lab.StateDir(), lab.StateDir() + ".created"} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	old := lab.Generation
	made := strings.Fields(lab.Command("init"))
	lab.Generation, lab.HostKey = protocol.ID(made[1]), made[len(made)-1]
	lab.Start()
	c = newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	p := refusedBehind(t, c, 1, request)
	if !strings.Contains(p.Detail, first.Container.ID) || !strings.Contains(p.Detail, "ledger abandon "+string(old)) {
		t.Errorf("detail %q", p.Detail)
	}
	lab.Stop()
	if _, err := lab.TryCommand("ledger", "abandon", string(lab.Generation)); err == nil || !strings.Contains(err.Error(), "of generation "+string(old)) {
		t.Errorf("abandon of the wrong one: %v", err)
	}
	// Its own generation is gone with it, and the genesis says so: a controller
	// may have burnt a number there.
	between := lab.Generation
	genesis := goesOn(t, lab, abandoned(t, lab, old))
	if genesis.Abandoned.Generation != old || !slices.Equal(genesis.Abandoned.Also, []protocol.ID{between}) {
		t.Errorf("the genesis names %+v", genesis.Abandoned)
	}
}

// The controller holds receipts that the ledger lacks: the last one alone, as
// when a disk lost what it had acknowledged, and a checkpoint (I9).
func TestControllerAhead(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	c.retire(1)
	c.consume(1)
	backup := filepath.Join(t.TempDir(), "backup")
	lab.Command("ledger", "backup", backup)
	request := c.request("echo")
	burn, err := c.gen.Retire(t.Context(), 2, protocol.RetireRequest{Purpose: "attempt-1"}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	receipt, err := protocol.DecodeReceipt(burn.Receipt)
	if err != nil {
		t.Fatal(err)
	}
	highest := &protocol.Seen{Index: receipt.Index, LeafHash: tlog.LeafDigest(burn.Receipt)}
	checkpoint, err := c.gen.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lab.Kill()
	copyLedger(t, lab, backup)
	for what, held := range map[string]protocol.WitnessRequest{
		"the highest receipt": {Highest: highest}, "a checkpoint": {Checkpoint: &checkpoint}, "both": {Highest: highest, Checkpoint: &checkpoint},
	} {
		lab.Start()
		if _, err := c.gen.Allocate(t.Context(), 2, request); !hostclient.IsCode(err, protocol.CodeWitnessRequired) {
			t.Errorf("%s: before the witness: %v", what, err)
		}
		if _, err := c.gen.Witness(t.Context(), held); !hostclient.IsCode(err, protocol.CodeLedgerBehind) {
			t.Errorf("%s: witness: %v", what, err)
		}
		refusedBehind(t, c, 2, request)
		lab.Kill()
	}
	// Receipts of other numbers took the indices of the lost ones: still seen.
	lab.Start()
	c.witness() // a store that lies
	if _, err := c.gen.Retire(t.Context(), 2, protocol.RetireRequest{Purpose: "another"}, time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{Highest: highest}); !hostclient.IsCode(err, protocol.CodeLedgerBehind) {
		t.Errorf("another history: %v", err)
	}
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{Checkpoint: &checkpoint}); !hostclient.IsCode(err, protocol.CodeLedgerBehind) {
		t.Errorf("another history: %v", err)
	}
}

// With the engine away nothing can be verified: the old generation stands, the
// agent would still start with it, and abandon succeeds later (I16).
func TestAbandonNeedsTheEngine(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	lab.Kill()
	if err := lab.Engine.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.TryCommand("ledger", "abandon", string(lab.Generation), "--wait", "3s"); err == nil || !strings.Contains(err.Error(), "the old generation stands") {
		t.Errorf("abandon without the engine: %v", err)
	}
	if err := lab.RestartEngine(); err != nil {
		t.Fatal(err)
	}
	lab.Start()
	if a := c.await(1, protocol.StateStarted); a.State != protocol.StateStarted {
		t.Errorf("not adopted: %+v", a)
	}
	var exported []string
	for line := range strings.Lines(lab.Command("ledger", "export")) {
		exported = append(exported, strings.TrimSpace(line))
	}
	leaves := c.leaves()
	if len(exported) != len(leaves) {
		t.Fatalf("%d receipts exported, %d served", len(exported), len(leaves))
	}
	for i, l := range leaves {
		if exported[i] != string(l.Bytes) {
			t.Errorf("exported %s, served %s", exported[i], l.Bytes)
		}
	}
	lab.Stop()
	facts := abandoned(t, lab, lab.Generation)
	if facts["last receipt"] != fmt.Sprint(leaves[len(leaves)-1].Receipt.Index) {
		t.Errorf("%v, want the last receipt %d", facts, leaves[len(leaves)-1].Receipt.Index)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}
