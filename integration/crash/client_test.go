//go:build crash

package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quittance/quittance/integration/agenttest"
	"github.com/quittance/quittance/protocol"
	"github.com/quittance/quittance/protocol/hostclient"
	"github.com/quittance/quittance/protocol/tlog"
	sumdb "golang.org/x/mod/sumdb/tlog"
)

// client is a controller that finishes what it began, whatever was lost: it
// reads before it repeats, and keeps every receipt that it was shown.
type client struct {
	t      *testing.T
	lab    *agenttest.Lab
	gen    *hostclient.Generation
	owner  protocol.ID
	key    *tlog.PublicKey
	number protocol.Number // that is driven now
	asked  protocol.Number // the highest whose worker has answered over a channel
	others string          // name of what is in the engine and not the agent's, "" for nothing
	leaves map[protocol.Index][]byte
	latest tlog.Checkpoint
}

const purpose = "attempt-1"

func newClient(t *testing.T, lab *agenttest.Lab) *client {
	key, err := tlog.ParsePublicKey(lab.HostKey)
	if err != nil {
		t.Fatal(err)
	}
	owner := protocol.NewID()
	return &client{t: t, lab: lab, gen: lab.Controller(owner), owner: owner, key: key, number: 1, leaves: map[protocol.Index][]byte{}}
}

// drive brings the number to released; false means that the agent is gone.
func (c *client) drive() bool {
	c.t.Helper()
	return c.until(protocol.StateReleased)
}

// passes tells refusals that end by themselves, with the fault that caused them.
func passes(code protocol.Code) bool {
	switch code {
	case protocol.CodeNoSpace, protocol.CodeEngineUnavailable, protocol.CodeProfileUnavailable, protocol.CodeUnavailable,
		protocol.CodeNotConnectable, protocol.CodeExited, protocol.CodeRetiring:
		return true
	}
	return false
}

// until does the steps up to a state, one after the other.
func (c *client) until(goal protocol.State) bool {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	for {
		done, err := c.step(ctx, goal)
		if err == nil {
			err = c.collect(ctx)
		}
		if p, refused := errors.AsType[*protocol.Problem](err); refused && !passes(p.Code) {
			c.t.Fatalf("refused: %v", err)
		}
		if err != nil {
			select {
			case <-c.lab.Exited():
				return false
			case <-time.After(20 * time.Millisecond): // between tries, not for any outcome
			}
			if ctx.Err() != nil {
				c.t.Fatalf("no progress: %v", err)
			}
			continue
		}
		if done {
			return true
		}
	}
}

// step makes one step towards the goal from what the agent says now.
func (c *client) step(ctx context.Context, goal protocol.State) (done bool, err error) {
	host, err := c.host(ctx)
	if err != nil {
		return false, err
	}
	if host.WitnessRequired {
		return false, c.witness(ctx)
	}
	if host.Frontiers.Released >= c.number {
		return true, nil
	}
	if host.Frontiers.Accepted < c.number {
		return false, c.allocate(ctx, c.number)
	}
	a, err := c.gen.Get(ctx, c.number, "", 0)
	if err != nil {
		return false, err
	}
	switch a.State {
	case protocol.StateRetired:
		for _, r := range a.Receipts {
			if r.Kind == protocol.KindRetired {
				_, err = c.gen.Consume(ctx, c.number, protocol.ConsumeRequest{Purpose: purpose, LeafHash: r.LeafHash})
			}
		}
		return false, err
	case protocol.StateConsumed:
		// What is released is saved before (I32): the reply of the consumption may
		// have been lost.
		if err := errors.Join(c.collect(ctx), c.witness(ctx)); err != nil {
			return false, err
		}
		_, err = c.gen.Release(ctx, protocol.ReleaseRequest{Frontier: c.number, Except: []protocol.Number{}})
		return false, err
	case protocol.StateStarted:
		if goal == protocol.StateStarted {
			return true, nil
		}
		if c.asked < c.number {
			return false, c.ask(ctx)
		}
		_, err = c.gen.Retire(ctx, c.number, protocol.RetireRequest{Purpose: purpose}, 30*time.Second)
		return false, err
	case protocol.StateRetiring, protocol.StateExited:
		_, err = c.gen.Get(ctx, c.number, protocol.StateRetired, 10*time.Second)
		return false, err
	}
	_, err = c.gen.Get(ctx, c.number, protocol.StateStarted, 10*time.Second)
	return false, err
}

// ask has the worker answer over a channel of its own.
func (c *client) ask(ctx context.Context) (err error) {
	conn, err := c.gen.Channel(ctx, c.number, purpose)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreClosed(conn.Close())) }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	const request = "POST /echo HTTP/1.1\r\nHost: worker\r\nConnection: close\r\nContent-Length: 4\r\n\r\nping"
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	answer, err := io.ReadAll(io.LimitReader(conn, 4096))
	if err == nil && !bytes.HasSuffix(answer, []byte("ping")) {
		err = fmt.Errorf("the worker answers %q", answer)
	}
	if err == nil {
		c.asked = c.number
	}
	return err
}

// ignoreClosed passes over that the worker was first.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *client) host(ctx context.Context) (protocol.Host, error) {
	return hostclient.New(c.lab.Socket(), hostclient.Options{Owner: func() protocol.ID { return c.owner }}).Host(ctx)
}

func (c *client) allocate(ctx context.Context, n protocol.Number) error {
	list, err := c.gen.Profiles(ctx)
	if err != nil {
		return err
	}
	answer, err := c.gen.Allocate(ctx, n, protocol.AllocateRequest{Profile: "echo", ProfileDigest: list[0].Digest, Purpose: purpose})
	if err == nil {
		c.keep(answer.Receipt)
	}
	return err
}

// witness presents the last checkpoint and the highest receipt, and verifies
// that the log now extends what was held.
func (c *client) witness(ctx context.Context) error {
	var w protocol.WitnessRequest
	if c.latest.Text != "" {
		w.Checkpoint = &c.latest.Text
	}
	highest := protocol.Index(-1)
	for index := range c.leaves {
		highest = max(highest, index)
	}
	if highest >= 0 {
		w.Highest = &protocol.Seen{Index: highest, LeafHash: tlog.LeafDigest(c.leaves[highest])}
	}
	answer, err := c.gen.Witness(ctx, w)
	if err != nil {
		return err
	}
	now, err := tlog.ParseCheckpoint(answer.Checkpoint, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.latest.Text != "" {
		hashes, err := tlog.ParseHashes(answer.Consistency)
		if err != nil {
			c.t.Fatal(err)
		}
		if err := tlog.VerifyConsistency(c.latest.Tree, now.Tree, hashes); err != nil {
			c.t.Fatalf("the log does not extend what was held: %v", err)
		}
	}
	c.latest = now
	return nil
}

// keep remembers a receipt that was acknowledged; another one under the same
// index is a broken promise.
func (c *client) keep(leaf []byte) {
	c.t.Helper()
	r, err := protocol.DecodeReceipt(leaf)
	if err != nil {
		c.t.Fatal(err)
	}
	if old, ok := c.leaves[r.Index]; ok && !bytes.Equal(old, leaf) {
		c.t.Fatalf("receipt %d changed:\n%s\n%s", r.Index, old, leaf)
	}
	c.leaves[r.Index] = bytes.Clone(leaf)
}

// collect reads everything that the agent serves.
func (c *client) collect(ctx context.Context) error {
	leaves, err := c.gen.Receipts(ctx, hostclient.ReceiptsQuery{})
	for _, l := range leaves {
		c.keep(l.Bytes)
	}
	return err
}

func (c *client) allocation() protocol.Allocation {
	c.t.Helper()
	a, err := c.gen.Get(c.t.Context(), c.number, protocol.StateStarted, 20*time.Second)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func (c *client) started() protocol.StartedBody {
	return one[protocol.StartedBody](c, protocol.KindStarted)
}

// one decodes the only receipt of a kind for the number that is driven.
func one[T any](c *client, kind protocol.Kind) T {
	c.t.Helper()
	var found []T
	for _, leaf := range c.leaves {
		r, err := protocol.DecodeReceipt(leaf)
		if err != nil {
			c.t.Fatal(err)
		}
		if r.Kind != kind || r.Number == nil || *r.Number != c.number {
			continue
		}
		b, err := protocol.BodyOf[T](r)
		if err != nil {
			c.t.Fatal(err)
		}
		found = append(found, b)
	}
	if len(found) != 1 {
		c.t.Fatalf("%d receipts %s, want one", len(found), kind)
	}
	return found[0]
}

// count is how many receipts of a kind the number has.
func (c *client) count(kind protocol.Kind) int {
	n := 0
	for _, leaf := range c.leaves {
		if r, err := protocol.DecodeReceipt(leaf); err == nil && r.Kind == kind && r.Number != nil && *r.Number == c.number {
			n++
		}
	}
	return n
}

// audit is the crash matrix's audit of the host after the number is released.
// What it says of the number must be one of the endings.
func (c *client) audit(endings ...ending) protocol.RetiredBody {
	c.t.Helper()
	retired := one[protocol.RetiredBody](c, protocol.KindRetired)
	end := ending{retired.Reason, retired.Dispatched}
	possible := false
	for _, e := range endings {
		possible = possible || e == end
	}
	if !possible {
		c.t.Errorf("retired: %+v %q; want one of %+v", end, retired.Error, endings)
	}
	// One acceptance, at most one start, and an end exactly of what may have run.
	exits := map[bool]int{true: 1}[retired.Dispatched]
	if a, s, e := c.count(protocol.KindAccepted), c.count(protocol.KindStarted), c.count(protocol.KindExited); a != 1 || s > exits || e != exits {
		c.t.Errorf("%d receipts accepted, %d started, %d exited, with dispatched %t", a, s, e, retired.Dispatched)
	}
	if n := c.count(protocol.KindConsumed); n != 1 {
		c.t.Errorf("%d receipts consumed", n)
	}
	left := slices.DeleteFunc(c.lab.Leftovers(), func(l string) bool { return c.others != "" && strings.HasSuffix(l, " "+c.others) })
	if len(left) != 0 {
		c.t.Errorf("left on the machine: %v", left)
	}
	c.whole()
	// The number is used up for ever (I5).
	if err := c.retry(func(ctx context.Context) error { return c.allocate(ctx, c.number) }); !hostclient.IsCode(err, protocol.CodeReleased) {
		c.t.Errorf("number %d again: %v", c.number, err)
	}
	if out, err := c.lab.TryCommand("ledger", "check"); err != nil {
		c.t.Errorf("ledger check: %v\n%s", err, out)
	}
	return retired
}

// ending is what a retirement says.
type ending struct {
	reason     protocol.Reason
	dispatched bool
}

// retry repeats what is answered by nobody, as long as an agent may come up.
func (c *client) retry(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	for {
		err := do(ctx)
		if _, answered := errors.AsType[*protocol.Problem](err); err == nil || answered {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond): // between tries, not for any outcome
		}
	}
}

// whole shows that the log is what was served of it: indices without a gap,
// every leaf that was ever acknowledged still under the signed root (I8, I10),
// and that root an extension of every one that was held.
func (c *client) whole() {
	c.t.Helper()
	if err := c.retry(func(ctx context.Context) error { return errors.Join(c.collect(ctx), c.witness(ctx), c.collect(ctx)) }); err != nil {
		c.t.Fatalf("receipts at the end: %v", err)
	}
	var stored []sumdb.Hash
	read := sumdb.HashReaderFunc(func(indexes []int64) ([]sumdb.Hash, error) {
		out := make([]sumdb.Hash, len(indexes))
		for i, at := range indexes {
			out[i] = stored[at]
		}
		return out, nil
	})
	for index := range protocol.Index(c.latest.Tree.Size) {
		if c.leaves[index] == nil {
			c.t.Fatalf("receipt %d was never served", index)
		}
		more, err := sumdb.StoredHashes(int64(index), c.leaves[index], read)
		if err != nil {
			c.t.Fatal(err)
		}
		stored = append(stored, more...)
	}
	root, err := sumdb.TreeHash(c.latest.Tree.Size, read)
	if err != nil {
		c.t.Fatal(err)
	}
	if root != c.latest.Tree.Root {
		c.t.Errorf("the signed root of %d receipts is not that of those served", c.latest.Tree.Size)
	}
}
