//go:build engine

package engine_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

// caller is one controller's view of a lab, with the steps that tests repeat.
type caller struct {
	t     *testing.T
	lab   *agenttest.Lab
	owner protocol.ID
	gen   *hostclient.Generation
}

func newCaller(t *testing.T, lab *agenttest.Lab) *caller {
	owner := protocol.NewID()
	return &caller{t: t, lab: lab, owner: owner, gen: lab.Controller(owner)}
}

func (c *caller) witness() {
	c.t.Helper()
	if _, err := c.gen.Witness(c.t.Context(), protocol.WitnessRequest{}); err != nil {
		c.t.Fatalf("witness: %v", err)
	}
}

func (c *caller) request(profile string) protocol.AllocateRequest {
	c.t.Helper()
	list, err := c.gen.Profiles(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range list {
		if p.Name == profile {
			if !p.Available {
				c.t.Fatalf("profile %s is unavailable: %s", profile, p.Reason)
			}
			return protocol.AllocateRequest{Profile: profile, ProfileDigest: p.Digest, Purpose: "attempt-1"}
		}
	}
	c.t.Fatalf("no profile %s", profile)
	return protocol.AllocateRequest{}
}

func (c *caller) allocate(n protocol.Number, profile string) protocol.EffectAnswer {
	c.t.Helper()
	a, err := c.gen.Allocate(c.t.Context(), n, c.request(profile))
	if err != nil {
		c.t.Fatalf("allocate %d: %v", n, err)
	}
	return a
}

func (c *caller) await(n protocol.Number, until protocol.State) protocol.Allocation {
	c.t.Helper()
	for tries := 1; ; tries++ {
		a, err := c.gen.Get(c.t.Context(), n, until, 30*time.Second)
		if err != nil {
			c.t.Fatalf("await %s of %d: %v", until, n, err)
		}
		if tries == longPolls || agenttest.Reached(a.State, until) {
			return a
		}
	}
}

// longPolls is how many in a row bound a wait on a slow machine.
const longPolls = 6

func (c *caller) retire(n protocol.Number) protocol.RetiredBody {
	c.t.Helper()
	for tries := 1; ; tries++ {
		a, err := c.gen.Retire(c.t.Context(), n, protocol.RetireRequest{Purpose: "attempt-1"}, 30*time.Second)
		if err != nil {
			c.t.Fatalf("retire %d: %v", n, err)
		}
		if a.LeafHash != nil {
			return body[protocol.RetiredBody](c.t, a.Receipt)
		}
		if tries == longPolls {
			c.t.Fatalf("number %d was not retired within %d long polls: %+v", n, tries, a.Allocation)
		}
	}
}

// consume settles a retired allocation.
func (c *caller) consume(n protocol.Number) {
	c.t.Helper()
	a := c.await(n, protocol.StateRetired)
	for _, r := range a.Receipts {
		if r.Kind == protocol.KindRetired {
			if _, err := c.gen.Consume(c.t.Context(), n, protocol.ConsumeRequest{Purpose: "attempt-1", LeafHash: r.LeafHash}); err != nil {
				c.t.Fatalf("consume %d: %v", n, err)
			}
			return
		}
	}
	c.t.Fatalf("number %d is not retired: %s", n, a.State)
}

// leaves reads the whole log and verifies every proof against the host key.
func (c *caller) leaves() []hostclient.Leaf {
	c.t.Helper()
	leaves, err := c.gen.Receipts(c.t.Context(), hostclient.ReceiptsQuery{})
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := tlog.ParsePublicKey(c.lab.HostKey)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, l := range leaves {
		proof, err := c.gen.Proof(c.t.Context(), l.Receipt.Index)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := proof.Verify(l.Bytes, key); err != nil {
			c.t.Fatalf("receipt %d: %v", l.Receipt.Index, err)
		}
	}
	return leaves
}

func kinds(leaves []hostclient.Leaf) string {
	var out []string
	for _, l := range leaves {
		out = append(out, string(l.Receipt.Kind))
	}
	return strings.Join(out, " ")
}

func body[T any](t *testing.T, leaf []byte) T {
	t.Helper()
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		t.Fatal(err)
	}
	b, err := protocol.BodyOf[T](r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// One allocation through all states: I6, I12, I16, I18, I20, I21.
func TestOneAllocationToReleased(t *testing.T) {
	lab := kit.NewLab(t)
	lab.Profile("echo", agenttest.Profile{Args: []string{"serve"}})
	lab.Start()
	c := newCaller(t, lab)
	c.witness()

	accepted := c.allocate(1, "echo")
	again := c.allocate(1, "echo")
	if string(accepted.Receipt) != string(again.Receipt) {
		t.Errorf("the same request got another receipt:\n%s\n%s", accepted.Receipt, again.Receipt)
	}
	started := c.await(1, protocol.StateStarted)
	if started.State != protocol.StateStarted || started.Container == nil || started.ReadAt == nil || started.OOM.Verdict != protocol.VerdictNotKilled {
		t.Fatalf("started: %+v", started)
	}

	// A channel reaches the worker itself.
	lab.Eventually("the worker accepts a channel", func() (bool, error) {
		conn, err := c.gen.Channel(t.Context(), 1, "attempt-1")
		if hostclient.IsCode(err, protocol.CodeNotConnectable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer conn.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/echo", strings.NewReader("hello"))
		if err != nil {
			return false, err
		}
		if err := req.Write(conn); err != nil {
			return false, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return false, err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			return false, err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text) == "hello", err
	})

	retired := c.retire(1)
	if !retired.Dispatched || retired.Reason != protocol.ReasonRequested || *retired.RequestedBy != "controller" {
		t.Errorf("retired: %+v", retired)
	}
	if retired.Exit.Source != protocol.ExitFromEngine || *retired.Exit.Code != 3 || retired.OOM.Verdict != protocol.VerdictNotKilled {
		t.Errorf("exit %+v, oom %+v", retired.Exit, retired.OOM)
	}
	want := protocol.Removal{Task: "removed", Container: "removed", Snapshot: "removed", Cgroup: "removed", LogSink: "removed", Devices: "absent"}
	if retired.Removal != want {
		t.Errorf("removal %+v", retired.Removal)
	}
	if left := lab.Leftovers(); len(left) != 0 {
		t.Errorf("left on the machine: %v", left)
	}
	log, err := c.gen.Log(t.Context(), 1)
	if err != nil || !strings.Contains(string(log.Head), "serving") {
		t.Errorf("log %q, %v", log.Head, err)
	}
	c.consume(1)
	if got := kinds(c.leaves()); got != "genesis agent_started accepted started exited retired consumed" {
		t.Errorf("receipts: %s", got)
	}

	// The witness goes first; then history is released up to 1.
	checkpoint, err := c.gen.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{Checkpoint: &checkpoint}); err != nil {
		t.Fatal(err)
	}
	released, err := c.gen.Release(t.Context(), protocol.ReleaseRequest{Frontier: 1, Except: []protocol.Number{}})
	if err != nil || released.Frontier != 1 || len(released.Carried) != 0 {
		t.Fatalf("release: %+v, %v", released, err)
	}
	leaves := c.leaves()
	if got := kinds(leaves); got != "released" || leaves[0].Receipt.Index != 7 {
		t.Errorf("after the release: %s", got)
	}
	if _, err := c.gen.Get(t.Context(), 1, "", 0); !hostclient.IsCode(err, protocol.CodeReleased) {
		t.Errorf("a released number: %v", err)
	}
	lab.Kill()
	lab.Start()
	host, err := lab.Operator().Host(t.Context())
	if err != nil || host.Frontiers.Accepted != 1 || host.Frontiers.Released != 1 || host.Index != (protocol.IndexRange{First: 7, Head: 8}) {
		t.Errorf("after a restart: %+v, %v", host, err)
	}
}
