//go:build engine

package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
)

const misbehave = "/misbehave"

var kit *agenttest.Kit

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	var err error
	if kit, err = agenttest.NewKit("", "github.com/quittance/quittance/integration/workers/misbehave"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := kit.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}

const purpose = "attempt-1"

// wait bounds every long poll.
const wait = 30 * time.Second

// controller is an owner's view of a lab, with the steps that tests repeat.
type controller struct {
	t    *testing.T
	lab  *agenttest.Lab
	gen  *hostclient.Generation
	next protocol.Number // the number that the next allocation gets
}

func newController(t *testing.T, lab *agenttest.Lab) *controller {
	t.Helper()
	c := &controller{t: t, lab: lab, gen: lab.Controller(protocol.NewID()), next: 1}
	if _, err := c.gen.Witness(t.Context(), protocol.WitnessRequest{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// request is an allocation of an available profile.
func (c *controller) request(profile string) protocol.AllocateRequest {
	c.t.Helper()
	request := protocol.AllocateRequest{Profile: profile, Purpose: purpose}
	c.lab.Eventually("profile "+profile+" is available", func() (bool, error) {
		list, err := c.gen.Profiles(c.t.Context())
		for _, p := range list {
			if p.Name == profile && p.Available {
				request.ProfileDigest = p.Digest
				return true, nil
			}
		}
		return false, err
	})
	return request
}

// allocate gets the next number.
func (c *controller) allocate(profile string) protocol.Number {
	c.t.Helper()
	n := c.next
	if _, err := c.gen.Allocate(c.t.Context(), n, c.request(profile)); err != nil {
		c.t.Fatalf("allocate %d: %v", n, err)
	}
	c.next++
	return n
}

func (c *controller) await(n protocol.Number, until protocol.State) protocol.Allocation {
	c.t.Helper()
	for tries := 1; ; tries++ {
		a, err := c.gen.Get(c.t.Context(), n, until, wait)
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

// start allocates and waits until it runs.
func (c *controller) start(profile string) protocol.Number {
	c.t.Helper()
	n := c.allocate(profile)
	if a := c.await(n, protocol.StateStarted); a.State != protocol.StateStarted {
		c.t.Fatalf("%s did not start: %+v", profile, a)
	}
	return n
}

// retire ends an allocation and consumes it.
func (c *controller) retire(n protocol.Number) protocol.RetiredBody {
	c.t.Helper()
	var a protocol.EffectAnswer
	for tries := 0; a.LeafHash == nil; tries++ {
		if tries == longPolls {
			c.t.Fatalf("number %d was not retired within %d times %s: %+v", n, tries, wait, a.Allocation)
		}
		var err error
		if a, err = c.gen.Retire(c.t.Context(), n, protocol.RetireRequest{Purpose: purpose}, wait); err != nil {
			c.t.Fatalf("retire %d: %v", n, err)
		}
	}
	if _, err := c.gen.Consume(c.t.Context(), n, protocol.ConsumeRequest{Purpose: purpose, LeafHash: *a.LeafHash}); err != nil {
		c.t.Fatalf("consume %d: %v", n, err)
	}
	return body[protocol.RetiredBody](c.t, a.Receipt)
}

// ask sends one request over a new channel, once the worker accepts one.
func (c *controller) ask(n protocol.Number, method, path string) (status int, answer string) {
	c.t.Helper()
	c.lab.Eventually("the worker answers", func() (bool, error) {
		conn, err := c.gen.Channel(c.t.Context(), n, purpose)
		if hostclient.IsCode(err, protocol.CodeNotConnectable) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer conn.Close()
		r, err := http.NewRequestWithContext(c.t.Context(), method, "http://localhost"+path, nil)
		if err != nil {
			return false, err
		}
		r.Header.Set("Content-Type", "text/plain")
		if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
			return false, err
		}
		if err := r.Write(conn); err != nil {
			return false, err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), r)
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		status, answer = response.StatusCode, string(text)
		return err == nil, err
	})
	return status, answer
}

// said waits until the worker's captured output contains text.
func (c *controller) said(n protocol.Number, text string) {
	c.t.Helper()
	c.lab.Eventually("the worker says "+text, func() (bool, error) {
		log, err := c.gen.Log(c.t.Context(), n)
		return strings.Contains(string(log.Head)+string(log.Tail), text), err
	})
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

// settled is the audit at the end: nothing on the machine, every receipt
// proved, each number accepted, exited and retired at most once and in order.
func (c *controller) settled() {
	c.t.Helper()
	if left := c.lab.Leftovers(); len(left) != 0 {
		c.t.Errorf("left on the machine: %v", left)
	}
	// Behind a proxy the agent's own audit does not know them by their address.
	if shims, err := c.lab.Engine.Shims(); err != nil || len(shims) != 0 {
		c.t.Errorf("shims %v, %v", shims, err)
	}
	key, err := tlog.ParsePublicKey(c.lab.HostKey)
	if err != nil {
		c.t.Fatal(err)
	}
	leaves, err := c.gen.Receipts(c.t.Context(), hostclient.ReceiptsQuery{})
	if err != nil {
		c.t.Fatal(err)
	}
	seen := map[string]int{}
	for i, l := range leaves {
		if l.Receipt.Index != protocol.Index(i) {
			c.t.Fatalf("receipt %d stands at place %d", l.Receipt.Index, i) // I8
		}
		proof, err := c.gen.Proof(c.t.Context(), l.Receipt.Index)
		if err == nil {
			_, err = proof.Verify(l.Bytes, key)
		}
		if err != nil {
			c.t.Fatalf("receipt %d: %v", i, err)
		}
		if l.Receipt.Number != nil {
			seen[fmt.Sprint(*l.Receipt.Number, " ", l.Receipt.Kind)]++
		}
	}
	for n := protocol.Number(1); n < c.next; n++ {
		for _, kind := range []protocol.Kind{protocol.KindAccepted, protocol.KindRetired, protocol.KindConsumed} {
			if got := seen[fmt.Sprint(n, " ", kind)]; got != 1 { // I5
				c.t.Errorf("number %d has %d receipts %s", n, got, kind)
			}
		}
		if got := seen[fmt.Sprint(n, " ", protocol.KindExited)]; got > 1 {
			c.t.Errorf("number %d has %d receipts exited", n, got)
		}
	}
}
