//go:build engine

package engine_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
)

// ctr runs the engine's own client in the agent's namespace.
func ctr(t *testing.T, lab *agenttest.Lab, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ctr", append([]string{"--address", lab.Engine.Address(), "--namespace", "quittance"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// The reply to a request is lost again and again, and the same number is asked
// for by many at once: one acceptance, one container, one start (FR-14, FR-26).
func TestLostRepliesMakeOneContainer(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	request := c.request("echo")
	payload := protocol.AppendCanonical(nil, request)
	head := fmt.Sprintf("PUT /v1/%s/allocations/1 HTTP/1.1\r\nHost: agent\r\nQuittance-Version: 1\r\nQuittance-Owner: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		lab.Generation, c.owner, len(payload))
	for range 5 {
		conn, err := net.Dial("unix", lab.Socket())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(append([]byte(head), payload...)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil { // before the answer
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	receipts := make([]string, 8)
	for i := range receipts {
		all.Go(func() {
			a, err := c.gen.Allocate(t.Context(), 1, request)
			if err != nil {
				t.Errorf("repeated: %v", err)
			}
			receipts[i] = string(a.Receipt)
		})
	}
	all.Wait()
	for _, r := range receipts {
		if r != receipts[0] {
			t.Errorf("another receipt: %s and %s", r, receipts[0])
		}
	}
	c.await(1, protocol.StateStarted)
	if n := strings.Count(ctr(t, lab, "containers", "ls", "-q"), "\n"); n != 1 {
		t.Errorf("%d containers", n)
	}
	c.retire(1)
	if got := kinds(c.leaves()); got != "genesis agent_started accepted started exited retired" {
		t.Errorf("receipts %s", got)
	}
}

// Somebody took away what belongs to a container: the missing part completes
// its step, and the retirement ends (FR-19).
func TestMissingLeaseCompletesItsStep(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	a := c.running(1)
	if out := ctr(t, lab, "leases", "ls", "-q"); !strings.Contains(out, a.Container.ID) {
		t.Fatalf("leases before: %s", out)
	}
	ctr(t, lab, "leases", "rm", a.Container.ID)
	r := c.retire(1)
	if r.Removal.Container != protocol.RemovedByUs || r.Removal.Snapshot != protocol.RemovedByUs || *r.Exit.Code != 3 {
		t.Errorf("removal %+v, exit %+v", r.Removal, r.Exit)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
}

// What carries none of our labels is not ours: it stops nothing and is not
// touched, although it lives in our namespace (FR-33).
func TestStrangerIsLeftAlone(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	a := c.running(1)
	image := strings.Fields(ctr(t, lab, "images", "ls", "-q"))[0]
	ctr(t, lab, "containers", "create", image, "stranger")
	defer ctr(t, lab, "containers", "rm", "stranger")
	lab.Kill()
	lab.Start()
	c.witness()
	if after := c.await(1, protocol.StateStarted); after.Container.ID != a.Container.ID || after.State != protocol.StateStarted {
		t.Errorf("not adopted: %+v", after)
	}
	c.allocate(2, "echo")
	c.retire(1)
	c.retire(2)
	if out := ctr(t, lab, "containers", "ls", "-q"); strings.TrimSpace(out) != "stranger" {
		t.Errorf("containers %q, want the stranger alone", out)
	}
}

// The ledger is damaged: a clear error that names file and offset, the
// containers untouched, and with the damage undone everything goes on under the
// same numbers (FR-21).
func TestDamagedLedgerTouchesNothing(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	before := c.running(1)
	lab.Stop()
	segment := lab.StateDir() + "/ledger/0000000001.segment"
	sound, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(sound)
	damaged[bytes.Index(damaged, []byte(`"accepted"`))] ^= 1
	if err := os.WriteFile(segment, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range [][]string{{"run"}, {"ledger", "check"}, {"ledger", "export"}, {"ledger", "backup", t.TempDir() + "/copy"}} {
		if out, err := lab.TryCommand(verb...); err == nil || !strings.Contains(err.Error(), segment) || !strings.Contains(err.Error(), "at byte") || out != "" {
			t.Errorf("%v: %v, %q", verb, err, out)
		}
	}
	if left := strings.Join(lab.Leftovers(), "\n"); !strings.Contains(left, "task "+before.Container.ID) {
		t.Errorf("the container was touched:\n%s", left)
	}
	if after, err := os.ReadFile(segment); err != nil || !bytes.Equal(after, damaged) {
		t.Errorf("the damaged file was touched: %v", err)
	}
	if err := os.WriteFile(segment, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Start()
	c.witness()
	if after := c.await(1, protocol.StateStarted); after.Container.ID != before.Container.ID {
		t.Errorf("not adopted: %+v", after)
	}
	c.allocate(2, "echo")
	c.retire(1)
	c.retire(2)
}

// What a crash leaves of the socket is replaced; a regular file at its path is
// not (FR-24).
func TestSocketPath(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Start()
	lab.Kill()
	if info, err := os.Lstat(lab.Socket()); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Fatalf("the kill left no socket: %v", err)
	}
	lab.Start()
	lab.Stop()
	if err := os.WriteFile(lab.Socket(), []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lab.TryCommand("run"); err == nil {
		t.Error("a regular file was replaced")
	}
	if text, err := os.ReadFile(lab.Socket()); err != nil || string(text) != "somebody's" {
		t.Errorf("the file was touched: %q, %v", text, err)
	}
}

// Reading goes on after a restart where it was, and says so where history is
// gone (FR-25, I8).
func TestReceiptsGoOn(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()
	c.running(1)
	last := c.leaves()[3].Receipt.Index // started
	lab.Kill()
	lab.Start()
	c.witness()
	next, err := c.gen.Receipts(t.Context(), hostclient.ReceiptsQuery{After: &last})
	if err != nil || len(next) == 0 || next[0].Receipt.Index != last+1 || next[0].Receipt.Kind != protocol.KindAgentStarted {
		t.Fatalf("after %d: %s, %v", last, kinds(next), err)
	}
	c.retire(1)
	c.consume(1)
	if _, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: 1, Except: []protocol.Number{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.gen.Receipts(t.Context(), hostclient.ReceiptsQuery{After: &last}); !hostclient.IsCode(err, protocol.CodePruned) {
		t.Errorf("after a release: %v", err)
	}
}
